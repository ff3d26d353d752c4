"""A job in one process: real sessions, boundaries and courses on threads, told what to do by a test.

The test plays the machine programs and the services: it hears every event that a rank says and
tells the ranks to prepare, to give up, or that a machine has failed.  Everything between the ranks
is real, over sockets.  Only the generators of random numbers are shared between such ranks, so the
gradients here are drawn from seeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.ccl.worlds import LIMIT
from tests.training.ranks import Rank
from tests.training.trainees import Trainee, undisturbed
from tests.waiting import wait_until
from trainmover.errors import JobError
from trainmover.events.catalogue import (
    JobCompleted,
    JoinerRank,
    MachineFailed,
    RankFinished,
    RankStarted,
    StandbyParked,
    SwitchAborted,
    SwitchAdopted,
    SwitchCommitted,
    SwitchPrepare,
    SwitchPrepared,
)
from trainmover.faults import parse_faults
from trainmover.topology.layout import Layout
from trainmover.training.job import Step
from trainmover.training.session import Released


class Cluster:
    """Machines, a layout, and what the switcher would say."""

    trainee: type[Trainee] = Trainee
    record = False
    warmup_steps = 1
    checkpoint_every = 0

    def __init__(
        self,
        folder: Path,
        machines: int,
        steps: int,
        ranks_per_machine: int = 1,
        faults: Sequence[str] = (),
    ) -> None:
        self.faults = parse_faults(faults)
        self.folder, self.steps, self.ranks_per_machine = folder, steps, ranks_per_machine
        self.size = machines * ranks_per_machine
        self.epoch = 0
        self.layout = [f"m{i}" for i in range(machines)]
        self.all: list[Rank] = []
        for position, machine in enumerate(self.layout):
            self._machine(machine, position)

    def _machine(self, machine: str, position: int = 0, *, sandbox: bool = False) -> list[Rank]:
        made = []
        for slot in range(self.ranks_per_machine):
            made.append(
                Rank(self, machine, position * self.ranks_per_machine + slot, sandbox=sandbox, slot=slot)
            )
            self.all.append(made[-1])
        return made

    def on(self, machine: str) -> list[Rank]:
        """The ranks of a machine."""
        return [rank for rank in self.all if rank.machine == machine]

    @property
    def ranks(self) -> list[Rank]:
        """The ranks of the layout, by rank."""
        return [rank for machine in self.layout for rank in self.on(machine)]

    def describe(self) -> str:
        """Where every rank stands, for the message of a test that waits in vain."""
        lines = []
        for rank in self.all:
            engine = rank.session.engine
            calls = engine.schedule.labels()
            state = f"committed {rank.boundary.committed}, epoch {engine.epoch} ({engine.reason or 'whole'})"
            coming = [order.epoch for order in rank.session.orders.after(engine.epoch)]
            lines.append(f"{rank}: {state}, prepared for {coming}, waits for {calls}, error {rank.error!r}")
        return "\n".join(lines)

    # -- what the services do --------------------------------------------------------------------

    def standby(self, machine: str) -> list[Rank]:
        """A standby that has warmed up and parked."""
        made = self._machine(machine, sandbox=True)
        wait_until(lambda: all(rank.said(StandbyParked) or rank.error for rank in made), "parked")
        return made

    def prepare(
        self, kind: str, changes: dict[str, str] | None = None, filled: dict[int, str] | None = None
    ) -> list[str]:
        """Ask everybody for the next epoch; returns its machines.

        Args:
            kind: of the switch.
            changes: joiner by leaver; "" where the seat is vacated.
            filled: joiner by vacant seat.
        """
        changes, filled = changes or {}, filled or {}
        self.epoch += 1
        machines = [changes.get(machine, machine) for machine in self.layout]
        for seat, joiner in filled.items():
            machines[seat] = joiner
        joiners = {leaver: joiner for leaver, joiner in changes.items() if joiner}
        joiners |= {f"seat {seat}": joiner for seat, joiner in filled.items()}
        present = Layout(self.epoch, tuple(machines), self.ranks_per_machine).present
        members = [rank for machine in machines for rank in self.on(machine)]
        wait_until(lambda: all(rank.said(RankStarted) for rank in members), "started")
        event = SwitchPrepare(
            epoch=self.epoch,
            kind=kind,
            generation=1,
            incidents=(),
            machines=tuple(machines),
            ranks_per_machine=self.ranks_per_machine,
            leavers=tuple(changes),
            joiners=tuple(joiners.values()),
            joiner_ranks=self.joiner_ranks(machines, joiners),
            endpoints=tuple(rank.said(RankStarted)[0].endpoint for rank in members),
            endpoint_ranks=() if len(present) == self.size else tuple(present),
            limit_seconds=LIMIT,
        )
        self._leaving = list(changes)
        for machine in dict.fromkeys([*machines, *self.layout]):
            for rank in self.on(machine):
                rank.tell(event)
        return machines

    def joiner_ranks(self, machines: Sequence[str], changes: dict[str, str]) -> tuple[JoinerRank, ...]:
        """What the planner says of the joiners' ranks; nothing where ranks do not describe themselves."""
        return ()

    def adopted(self, machines: Sequence[str], kind: str, limit: float = LIMIT) -> None:
        """Wait until everybody works in the epoch, then commit the switch."""
        epoch, members = self.epoch, [rank for machine in machines for rank in self.on(machine)]

        def settled() -> bool:
            for rank in members:
                if rank.error is not None and not rank.dead:
                    raise AssertionError(f"{rank} failed: {rank.error!r}") from rank.error
            # A rank that the test has doomed may be dead before this is asked for the first time.
            return all(
                rank.dead or any(event.epoch == epoch for event in rank.said(SwitchAdopted))
                for rank in members
            )

        try:
            wait_until(settled, f"epoch {epoch} adopted", limit)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from error
        changes = set(self.layout) - {*machines, ""}
        event = SwitchCommitted(
            epoch=epoch,
            kind=kind,
            incidents=(),
            machines=tuple(machines),
            leavers=tuple(sorted(changes)),
            joiners=tuple(sorted(set(machines) - {*self.layout, ""})),
            step=0,
            generation=1,
        )
        for machine in dict.fromkeys([*machines, *self.layout]):
            for rank in self.on(machine):
                rank.tell(event)
        self.layout = list(machines)

    def switch(
        self, kind: str, changes: dict[str, str] | None = None, filled: dict[int, str] | None = None
    ) -> None:
        """One whole switch."""
        self.adopted(self.prepare(kind, changes, filled), kind)

    def shrink(self, *machines: str) -> None:
        """The seats of these machines are vacated."""
        self.switch("shrink", dict.fromkeys(machines, ""))

    def grow(self, filled: dict[int, str]) -> None:
        """Standbys sit down on vacant seats."""
        self.switch("grow", filled=filled)

    def prepared(self) -> None:
        """Wait until every rank of the coming layout is prepared for it."""
        wait_until(
            lambda: (
                sum(1 for rank in self.all for e in rank.said(SwitchPrepared) if e.epoch == self.epoch)
                == self.size
            ),
            f"epoch {self.epoch} prepared",
        )

    def abort(self) -> None:
        """The epoch in preparation will not come."""
        for rank in self.all:
            rank.tell(SwitchAborted(epoch=self.epoch, incidents=(), reason="for the test"))

    def failed(self, machine: str) -> None:
        """Tell everybody else that a machine is dead."""
        for rank in self.all:
            if rank.machine != machine:
                rank.tell(MachineFailed(machine=machine, incarnation=f"{machine}-life", reason="killed"))

    def finish(self) -> list[Rank]:
        """Wait until all ranks have done all steps, complete the job and check the result."""
        members = self.ranks

        def done() -> bool:
            for rank in members:
                if rank.error is not None:
                    raise AssertionError(f"{rank} failed: {rank.error!r}") from rank.error
            return all(rank.said(RankFinished) for rank in members)

        wait_until(done, "all steps done", 40.0)
        digests = {event.digest for rank in members for event in rank.said(RankFinished)}
        for rank in members:
            rank.tell(JobCompleted(steps=self.steps, digest=next(iter(digests)), identical=len(digests) == 1))
        for rank in members:
            rank.threads[1].join(LIMIT)
        assert [rank.error for rank in members] == [None] * len(members)
        self.check(members)
        return members

    def check(self, members: Sequence[Rank]) -> None:
        """The run must have ended as if nothing had happened."""
        digest, losses = undisturbed(self.size, self.steps, self.ranks_per_machine)
        assert {rank.said(RankFinished)[-1].digest for rank in members} == {digest}
        for rank in members:
            assert {index: losses[index] for index in rank.losses} == rank.losses

    def end(self) -> None:
        """End every thread."""
        for rank in self.all:
            rank.end()


def at(rank: Rank, index: int, where: str, action: Callable[[], None]) -> threading.Event:
    """Do something once in a rank's step; the event tells when it has been done."""
    done = threading.Event()

    def hook(step: Step, place: str) -> None:
        if step == index and place == where and not done.is_set():
            done.set()
            action()

    rank.hook = hook
    return done


def released(rank: Rank) -> bool:
    """True when the rank's machine has left in good order."""
    return isinstance(rank.error, Released)


__all__ = ["Cluster", "JobError", "at", "released", "undisturbed"]
