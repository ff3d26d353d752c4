"""Describing: what ranks say of themselves after their first steps, and who records.

What lives here: descriptions, by which stages of a pipeline become roles, and recordings, which may
fail.  What never lives here: roles (the standby service finds them).

Stages fill seats in blocks; the ranks in one slot of a stage are replicas, unless state is mirrored: then no
two ranks have the same.
"""

from __future__ import annotations

import random

from trainmover.events import catalogue as say
from trainmover.simulator.assembly import Assembly
from trainmover.simulator.ranks import SimulatedRank
from trainmover.simulator.setup import Setup

WARMUP_STEPS = 2
"""Steps after which a rank describes itself."""


class Describing:
    """Descriptions and recordings of one job; see the module.

    Attributes:
        unrecorded: roles that cannot be recorded.
    """

    def __init__(self, setup: Setup, chance: random.Random) -> None:
        self.setup = setup
        self.unrecorded: set[str] = set()
        self._chance = chance

    def stage_of(self, seat: int) -> int:
        """The pipeline stage of a seat: stages fill seats in blocks."""
        return seat * self.setup.roles // self.setup.machines

    def describe(self, rank: SimulatedRank, assembly: Assembly) -> None:
        rank.described = True
        machine, setup, slots = rank.machine, self.setup, assembly.order.ranks_per_machine
        stage = self.stage_of(rank.place // slots)
        last = setup.roles - 1
        kind = "first" if stage == 0 else "last" if stage == last else "middle"
        rank.tell(
            say.RankDescribed(
                machine=machine.name,
                incarnation=machine.incarnation,
                slot=rank.slot,
                rank=rank.place,
                generation=rank.generation,
                signature=f"{kind}-{rank.slot}",
                state=f"{stage}-{rank.place if setup.state == 'mirror' else rank.slot}",
                stage=(stage, setup.roles) if setup.roles > 1 else None,
                groups=(say.GroupRow(name="default", first=0, count=assembly.size), *self._pipeline(rank)),
                shares=setup.on_exhausted == "shrink",
            )
        )
        self.decide_recording(rank)

    def _pipeline(self, rank: SimulatedRank) -> list[say.GroupRow]:
        """What ties the stages of a replica, in jobs that can shrink and have equally many seats in each."""
        setup = self.setup
        if setup.on_exhausted != "shrink" or setup.roles == 1 or setup.machines % setup.roles:
            return []
        width = setup.machines // setup.roles * setup.slots
        first = rank.place % width
        return [say.GroupRow(name=f"pipeline:{first}", first=first, stride=width, count=setup.roles)]

    def decide_recording(self, rank: SimulatedRank) -> None:
        roles = rank.roles
        if roles is None or not rank.described or rank.recorded or roles.generation != rank.generation:
            return
        rank.recorded = True
        seat = rank.place // rank.machine.slots
        role = next((role for role in roles.roles if role.representative == seat), None)
        if role is not None:
            rank.machine.later(self._chance.uniform(0.02, 1.0), self._record, rank, role.name)

    def _record(self, rank: SimulatedRank, role: str) -> None:
        if role in self.unrecorded:
            rank.tell(
                say.RecordingFailed(
                    machine=rank.machine.name, slot=rank.slot, generation=rank.generation, reason="disk full"
                )
            )
            return
        rank.tell(
            say.RecordingReady(
                machine=rank.machine.name,
                slot=rank.slot,
                generation=rank.generation,
                path=f"/r/g{rank.generation}/{role}/slot-{rank.slot}",
                steps=WARMUP_STEPS,
                bytes=1,
            )
        )
