"""Training: what ranks do together, at the grain of whole steps.

What lives here: meeting, stepping, voting and breaking, as the protocol in
``training.session`` and ``training.boundary`` has it, without tensors.  What never lives here: what
one rank knows (``ranks``), how it prepares (``preparing``), decisions of the services.

An *assembly* is all ranks of one epoch.  It meets once everybody has entered, then steps for as long
as all of them run and reach each other; when one is gone it breaks, and whoever is left waits for
another epoch.  Members that merely hang (frozen, cut off, without power) break nothing: the step takes
for ever, until somebody is told.

At the end of a step all ranks vote: when all are prepared for the same coming epoch, they enter it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from trainmover.events import catalogue as say
from trainmover.simulator.assembly import Assembly
from trainmover.simulator.clock import VirtualLoop
from trainmover.simulator.describing import WARMUP_STEPS, Describing
from trainmover.simulator.mirrors import Mirrors
from trainmover.simulator.preparing import Preparing
from trainmover.simulator.ranks import Doing, SimulatedRank
from trainmover.simulator.reach import Reach
from trainmover.simulator.setup import Setup

ASK_SECONDS = 5.0
REMIND_SECONDS = 10.0
LOOK_SECONDS = 0.25
"""A rank that cannot go on looks again this often."""

LOST_SECONDS = 12.0
"""A connection on which nothing is acknowledged is given up after this; see ``ccl.reach``."""

WITNESSES = 4
"""Ranks that tell of a lost peer; the others were told by them."""


class Training:
    """The training of one job; see the module.

    Attributes:
        total: steps that the job has.
        steps: most steps that any rank has committed.
        reach: who reaches whom.
        on_enter: told of every rank that enters an epoch.
        on_step: told of every assembly that commits a step.
    """

    def __init__(self, loop: VirtualLoop, setup: Setup) -> None:
        self.setup = setup
        self.total = setup.total_steps or 1 << 40
        self.steps = 0
        self.on_enter: Callable[[SimulatedRank, int], None] = lambda _rank, _epoch: None
        self.on_step: Callable[[Assembly], None] = lambda _: None
        self._loop = loop
        self._chance = setup.random("training")
        self.describing = Describing(setup, self._chance)
        self.mirrors = Mirrors(setup)
        self._pids = itertools.count(100)
        self._assemblies: dict[int, Assembly] = {}
        self._waiting: dict[SimulatedRank, None] = {}
        self.reach = Reach()
        self._preparing = Preparing(loop, self._chance, self.reach, self._prepared)
        loop.later(LOOK_SECONDS, self._look)

    def next_pid(self) -> int:
        """A process id."""
        return next(self._pids)

    # -- what ranks hear ---------------------------------------------------------------------------

    def heard(self, rank: SimulatedRank, event: say.Event) -> None:
        """A machine has handed an event to one of its ranks."""
        match event:
            case say.SwitchPrepare():
                self._preparing.ordered(rank, event)
            case say.SwitchAborted():
                rank.aborted.add(event.epoch)
                rank.ready.discard(event.epoch)
                self._preparing.forget(rank, event.epoch)
                if rank.epoch == event.epoch and rank.assembly is not None:
                    self._break(rank.assembly, ())
            case say.MachineFailed():
                assembly = rank.assembly
                if assembly is not None and event.machine in assembly.order.machines:
                    self._break(assembly, ())
            case say.RolesFound():
                rank.roles = event
                self.describing.decide_recording(rank)
            case _:
                pass

    # -- entering epochs -----------------------------------------------------------------------------

    def waits(self, rank: SimulatedRank) -> None:
        """It is up, or parked, or its epoch broke: it takes the next epoch that it is prepared for."""
        rank.doing, rank.waiting_since = Doing.WAITING, self._loop.now
        self._waiting[rank] = None
        rank.machine.later(ASK_SECONDS, self._ask, rank, rank.waiting_since)
        self._enter_best(rank)

    def _ask(self, rank: SimulatedRank, since: float) -> None:
        """A rank that waits for long says so, unless it leaves."""
        if rank.doing is not Doing.WAITING or rank.waiting_since != since:
            return
        rank.machine.later(REMIND_SECONDS, self._ask, rank, since)
        order = rank.orders.get(rank.epoch)
        leaves = any(
            epoch > rank.epoch and epoch not in rank.aborted and not rank.has_place(later)
            for epoch, later in rank.orders.items()
        )
        if order is not None and not leaves and not rank.stopped:
            self._tell_lost(rank, order, rank.machine.name, rank.place, "waits at the boundary")

    def _prepared(self, rank: SimulatedRank) -> None:
        if rank.doing is Doing.WAITING:
            self._enter_best(rank)

    def _enter_best(self, rank: SimulatedRank) -> None:
        order = rank.best()
        if order is not None and rank.runs:
            self._enter(rank, order)

    def _enter(self, rank: SimulatedRank, order: say.SwitchPrepare) -> None:
        self._waiting.pop(rank, None)
        rank.place = rank.place_in(order)
        before, rank.epoch, rank.doing = rank.epoch, order.epoch, Doing.MEETING
        rank.orders = {e: o for e, o in rank.orders.items() if e >= order.epoch}
        rank.ready = {e for e in rank.ready if e > order.epoch}
        self.on_enter(rank, before)
        assembly = self._assemblies.get(order.epoch)
        if assembly is None:
            assembly = self._assemblies[order.epoch] = Assembly(order)
        rank.assembly = assembly
        if assembly.over:
            self._loop.later(0.002, self._left_behind, rank, assembly)
            return
        assembly.ranks[rank.place] = rank
        if assembly.whole:
            self._loop.later(self._chance.uniform(0.005, 0.05), self._met, assembly)

    def _runs(self, assembly: Assembly) -> bool:
        """Everybody is there, runs, and reaches those with whom there are links."""
        return assembly.runs and (self.reach.whole or not self._parted_in(assembly))

    def _parted_in(self, assembly: Assembly) -> list[frozenset[str]]:
        """Neighbours in an assembly that do not reach each other, or not with what a step sends."""
        reached = self.reach.wide if assembly.running else self.reach.between
        taken = [name for name in assembly.order.machines if name]
        pairs = {frozenset({name, taken[place - 1]}) for place, name in enumerate(taken)}
        return sorted((pair for pair in pairs if len(pair) == 2 and not reached(*pair)), key=sorted)

    def _give_up_links(self) -> None:
        """Connections on which nothing is acknowledged break, and both ends say so."""
        for assembly in list(self._assemblies.values()):
            pairs = [] if assembly.over or not assembly.whole else self._parted_in(assembly)
            if not pairs:
                assembly.parted_since = None
            elif assembly.parted_since is None:
                assembly.parted_since = self._loop.now
            elif self._loop.now - assembly.parted_since > LOST_SECONDS:
                ranks = {rank.machine.name: rank for rank in assembly.ranks.values()}
                self._break(assembly, ())
                for one, other in (pair for found in pairs for pair in itertools.permutations(found)):
                    if ranks[one].runs:
                        peer = ranks[other].place
                        self._tell_lost(ranks[one], assembly.order, other, peer, "nothing was acknowledged")

    def _left_behind(self, rank: SimulatedRank, assembly: Assembly) -> None:
        if rank.assembly is assembly and not rank.over:
            rank.assembly = None
            self.waits(rank)

    def _met(self, assembly: Assembly) -> None:
        """Everybody is there: where training stands is settled, and joiners get their state."""
        if assembly.over:
            return
        if not self._runs(assembly):
            self._loop.later(LOOK_SECONDS, self._met, assembly)
            return
        self._loop.later(self._chance.uniform(0.01, 0.3), self._settled, assembly)

    def _settled(self, assembly: Assembly) -> None:
        if assembly.over:
            return
        if not self._runs(assembly):
            self._loop.later(LOOK_SECONDS, self._settled, assembly)
            return
        ranks = assembly.ranks.values()
        committed = max((rank.committed for rank in ranks if rank.history), default=0)
        self.mirrors.settled(assembly, committed)
        for rank in ranks:
            rank.committed, rank.doing, rank.resumed = committed, Doing.RUNNING, True
            rank.history = rank.history or assembly.order.kind != "start"
            rank.mode = "live"
            rank.tell(
                say.SwitchAdopted(
                    epoch=assembly.epoch,
                    rank=rank.place,
                    machine=rank.machine.name,
                    step=committed,
                    switch_seconds=0.0,
                    copy_seconds=0.0,
                    verify_seconds=0.0,
                    bytes_received=0,
                    bytes_sent=0,
                )
            )
        assembly.running = True
        self._next_step(assembly)

    # -- steps -----------------------------------------------------------------------------------------

    def _next_step(self, assembly: Assembly) -> None:
        if next(iter(assembly.ranks.values())).committed >= self.total:
            self._finish(assembly)
            return
        self._loop.later(self.setup.step_seconds * self._chance.uniform(0.9, 1.1), self._step, assembly)

    def _step(self, assembly: Assembly) -> None:
        if assembly.over:
            return
        if not self._runs(assembly):
            self._loop.later(LOOK_SECONDS, self._step, assembly)
            return
        self.on_step(assembly)
        for place in sorted(assembly.ranks):
            rank = assembly.ranks[place]
            rank.committed += 1
            rank.history = True
            self.steps = max(self.steps, rank.committed)
            if place == min(assembly.ranks):
                self._say_progress(rank)
            if rank.launched and rank.committed == WARMUP_STEPS and not rank.described:
                self.describing.describe(rank, assembly)
        self.mirrors.stepped(assembly)
        votes = {rank.ballot() for rank in assembly.ranks.values()}
        epoch = next(iter(votes))
        if len(votes) == 1 and epoch > assembly.epoch:
            self._switch(assembly, epoch)
        else:
            self._next_step(assembly)

    def _switch(self, assembly: Assembly, epoch: int) -> None:
        assembly.over = True
        for rank in list(assembly.ranks.values()):
            rank.assembly = None
            order = rank.orders[epoch]
            if rank.has_place(order):
                self._enter(rank, order)
            else:
                self.waits(rank)

    def _say_progress(self, rank: SimulatedRank) -> None:
        if rank.committed == WARMUP_STEPS:
            rank.tell(
                say.TrainingStarted(
                    generation=rank.generation, epoch=rank.epoch, step=1, groups={"default": (0,)}
                )
            )
        if rank.resumed:
            rank.resumed = False
            rank.tell(say.TrainingResumed(epoch=rank.epoch, step=rank.committed))

    def _finish(self, assembly: Assembly) -> None:
        for rank in assembly.ranks.values():
            stage = self.describing.stage_of(rank.place // assembly.order.ranks_per_machine)
            rank.finished = True
            rank.tell(
                say.RankFinished(
                    machine=rank.machine.name,
                    slot=rank.slot,
                    rank=rank.place,
                    step=rank.committed,
                    digest=f"digest-{stage}",
                )
            )

    # -- losses ----------------------------------------------------------------------------------------

    def lost(self, rank: SimulatedRank, *, hanging: bool) -> None:
        """A rank process is gone.  ``hanging``: nobody notices."""
        self._waiting.pop(rank, None)
        assembly = rank.assembly
        if not hanging:
            self._loop.later(self._chance.uniform(0.001, 0.01), self._noticed, rank, assembly)

    def _noticed(self, rank: SimulatedRank, assembly: Assembly | None) -> None:
        met = [other for epoch, other in sorted(self._assemblies.items()) if epoch in rank.orders]
        for whole in dict.fromkeys([*([assembly] if assembly is not None else []), *met]):
            if not whole.over and rank.machine.name in whole.order.machines:
                self._break(whole, self._near(rank, whole), rank)
        # Those who were about to have links with it tell, too: of the epoch that they prepare.
        for other, epoch in self._preparing.under_way:
            order = other.orders.get(epoch)
            if order is not None and rank.machine.name in order.machines and other.runs:
                place = rank.place_in(order)
                if other.machine is not rank.machine and self._chance.random() < 0.5:
                    self._tell_lost(other, order, rank.machine.name, place, "connection lost")

    def _near(self, rank: SimulatedRank, assembly: Assembly) -> list[SimulatedRank]:
        """Who had links with a rank and tells of it: its neighbours, and a few more."""
        slots, size = assembly.order.ranks_per_machine, assembly.size
        if rank.machine.name not in assembly.order.machines:
            return []
        place = rank.place_in(assembly.order)
        places = [(place + step) % size for step in (-slots, slots, -1, 1, size // 2)]
        found = [assembly.ranks[near] for near in dict.fromkeys(places) if near in assembly.ranks]
        return [other for other in found if other.machine is not rank.machine][:WITNESSES]

    def _break(
        self, assembly: Assembly, witnesses: Iterable[SimulatedRank], lost: SimulatedRank | None = None
    ) -> None:
        """The epoch is over for everybody: who can be reached is told."""
        if assembly.over:
            return
        assembly.over = True
        ranks = [assembly.ranks[place] for place in sorted(assembly.ranks)]
        for rank in ranks:
            if rank.assembly is assembly and not rank.over:
                rank.assembly = None
                self.waits(rank)
        for witness in witnesses:
            if lost is not None and witness.runs:
                place = lost.place_in(assembly.order)
                self._tell_lost(witness, assembly.order, lost.machine.name, place, "connection reset")

    def break_link(self, one: SimulatedRank, other: SimulatedRank) -> None:
        """A connection between two ranks breaks."""
        assembly = one.assembly
        if assembly is None or assembly is not other.assembly or assembly.over:
            return
        self._break(assembly, ())
        for rank, peer in ((one, other), (other, one)):
            if rank.runs:
                self._tell_lost(rank, assembly.order, peer.machine.name, peer.place, "connection reset")

    def _tell_lost(
        self, rank: SimulatedRank, order: say.SwitchPrepare, name: str, peer: int, reason: str
    ) -> None:
        rank.tell(
            say.LinkBroken(
                epoch=order.epoch,
                rank=max(rank.place, 0),
                machine=rank.machine.name,
                peer=peer,
                peer_machine=name,
                reason=reason,
            )
        )

    # -- looking again ---------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Somebody is back who could not be reached."""
        for rank in list(self._waiting):
            self._enter_best(rank)

    def _look(self) -> None:
        self._loop.later(LOOK_SECONDS, self._look)
        if not self.reach.whole:
            self._give_up_links()
        self._preparing.look_again()
        self.look_again()
