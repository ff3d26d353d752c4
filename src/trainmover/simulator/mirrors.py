"""Mirrors: state that no two ranks have, and in whose memory it is once more.

What lives here: which rank keeps whose state as of which step, as ``training.mirror`` has it, at the grain
of whole steps and without a byte.  What never lives here: what services make of it.

A rank that has heard that nobody else has its state says so with its next vote, and from the vote after that
its guardian has the state as of each committed step; so it says then that its mirror is whole.  A new
guardian has the state before its epoch is adopted.  A joiner gets its own from the rank that its order names.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmover.events import catalogue as say
from trainmover.simulator.assembly import Assembly
from trainmover.simulator.ranks import SimulatedRank
from trainmover.simulator.setup import Setup
from trainmover.topology import Layout

WHOLE_AFTER = 2
"""Votes from which on a mirror is whole: one that announces it, and one that finds it whole."""


class Mirrors:
    """The mirrors of one job; see the module.

    Attributes:
        on_taken: told of each joiner, of the rank that gives it its state (None: of nobody), and of the
            committed steps.
    """

    def __init__(self, setup: Setup) -> None:
        self.on_taken: Callable[[SimulatedRank, SimulatedRank | None, int], None] = lambda *_: None
        self._wanted = setup.state == "mirror" and setup.machines > 1

    def settled(self, assembly: Assembly, committed: int) -> None:
        """The ranks of an epoch have met; joiners get their state, new guardians their wards'."""
        if not self._wanted or assembly.order.kind == "start":
            return
        told = {item.rank: item for item in assembly.order.joiner_ranks}
        for rank in assembly.ranks.values():
            if rank.machine.name in assembly.order.joiners:
                mirrored = told[rank.place].mirrored if rank.place in told else None
                self.on_taken(rank, None if mirrored is None else assembly.ranks[mirrored], committed)
                rank.mirroring, rank.keeps = WHOLE_AFTER - 1, {}
        for rank in assembly.ranks.values():
            if rank.machine.name not in assembly.order.joiners and rank.mirroring >= 0:
                self._keep(rank, assembly, committed)

    def stepped(self, assembly: Assembly) -> None:
        """A step is committed."""
        if not self._wanted:
            return
        for rank in assembly.ranks.values():
            if rank.roles is not None and rank.roles.generation == rank.generation:
                rank.mirroring = max(rank.mirroring, 0)
            if rank.mirroring < 0:
                continue
            rank.mirroring += 1
            if rank.mirroring < WHOLE_AFTER:
                continue
            guardian = self._keep(rank, assembly, rank.committed)
            if rank.mirroring == WHOLE_AFTER:
                rank.tell(
                    say.MirrorWhole(
                        machine=rank.machine.name,
                        rank=rank.place,
                        guardian=guardian.place,
                        generation=rank.generation,
                        step=rank.committed,
                        image_bytes=3,
                        changes_bytes=1,
                    )
                )

    @staticmethod
    def _keep(rank: SimulatedRank, assembly: Assembly, committed: int) -> SimulatedRank:
        """The guardian has the rank's state now."""
        order = assembly.order
        layout = Layout(order.epoch, order.machines, order.ranks_per_machine)
        guardian = assembly.ranks[layout.guardian(rank.place)]
        guardian.keeps = {rank.place: committed}
        return guardian
