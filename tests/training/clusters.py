"""A job in one process: real sessions, boundaries and courses on threads, told what to do by a test.

The test plays the machine programs and the services: it hears every event that a rank says and
tells the ranks to prepare, to give up, or that a machine has failed.  Everything between the ranks
is real, over sockets.  Only the generators of random numbers are shared between such ranks, so the
gradients here are drawn from seeds.
"""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.ccl.worlds import LIMIT, wait_until
from tests.training.trainees import StandIn, Trainee, undisturbed
from trainmover.ccl.engine import Steps
from trainmover.ccl.tags import tag_of
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.ccl.vote_walks import Poll
from trainmover.errors import DecodeError, JobError, LinkError
from trainmover.events.catalogue import (
    Event,
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
from trainmover.events.frames import Decoder, encode_frame
from trainmover.faults import FaultSpec, parse_faults
from trainmover.sandbox.player import Player
from trainmover.topology.layout import Layout
from trainmover.training import agreement
from trainmover.training.boundary import Boundary
from trainmover.training.environment import Environment
from trainmover.training.job import Job, Step
from trainmover.training.live import LiveCourse
from trainmover.training.session import Released, Session

E = TypeVar("E", bound=Event)


class Killed(BaseException):
    """Ends the main thread of a rank that was killed there."""


TELLER = 0
"""The rank that counts the ballots."""

IN_WALKS = ("mirror", "voting", "prepared", "meeting", "copy")
"""Fault points that are passed by whoever runs the engine just then."""


class Muffled(Group):
    """A group in which only some members hear me."""

    heard_by: Sequence[int] = ()

    def send_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        if member in self.heard_by:
            return super().send_bytes(member, view, tag, keep)
        lost = Transfer(view, tag, keep)
        lost.finish()
        return lost


class Doomed(Boundary):
    """A boundary whose rank dies inside a vote, at a chosen point."""

    when = ""
    candidate = -1
    told: Sequence[int] = ()
    learned: Callable[[], bool]
    die: Callable[[], None]

    def _vote(self, candidate: int, private: bytes, numbers: list[float], names: list[str]) -> Steps:
        if candidate != self.candidate:
            return (yield from super()._vote(candidate, private, numbers, names))
        group = self._group()
        if self.when == "before the mirror":
            self.die()
        yield from self.wards.exchange(group, candidate, private)
        tag = tag_of("vote", zlib.crc32(" ".join(names).encode()))
        if self.when == "with its ballot out":
            yield [group.send_bytes(TELLER, struct.pack(f"<{len(numbers)}d", *numbers), tag, None)]
        elif self.when == "with the tally out":
            muffled = Muffled(
                group.engine, group.group, group.channel, group.ranks, group.positions, group.me
            )
            object.__setattr__(muffled, "heard_by", self.told)  # a group is frozen for those who use it
            yield from Poll(muffled, len(numbers), tag).vote(numbers, agreement.tally)
        if self.when.endswith("out"):
            wait_until(self.learned, "those who were told have the outcome", 5.0)
        self.die()


class Rank:
    """One rank process, as a thread."""

    def __init__(
        self,
        cluster: Cluster,
        machine: str,
        rank: int,
        *,
        sandbox: bool = False,
        slot: int = 0,
        role: str = "",
        recording: str = "",
        park: str = "resident",
    ) -> None:
        self.cluster, self.machine, self.slot, self.role = cluster, machine, slot, role
        self.heard: list[Event] = []
        self.error: BaseException | None = None
        self.dead = False
        self.struck = ""
        self.digest = ""
        self.losses: dict[int, float] = {}
        self.ran: list[tuple[int, bool]] = []
        self.samples: list[tuple[int, int]] = []
        self.hook: Callable[[Step, str], None] = lambda _step, _where: None
        folder = cluster.folder
        path = str(folder / f"{machine}-{role}-{slot}.sock")
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()
        env = Environment(
            socket=path,
            job="job",
            machine=machine,
            incarnation=f"{machine}-life",
            slot=slot,
            rank=rank,
            world_size=cluster.size,
            ranks_per_machine=cluster.ranks_per_machine,
            mode="sandbox" if sandbox else "live",
            generation=1,
            run_dir=folder,
            secret=b"secret",
            host="127.0.0.1",
            record=cluster.record and not sandbox,
            recording=recording,
            warmup_steps=cluster.warmup_steps,
            faults=tuple(spec for spec in cluster.faults if spec.machine == machine),
            role=role,
            park=park,
        )
        self.session = Session(env, LIMIT)
        self.line, _ = server.accept()
        server.close()
        self.trainee = cluster.trainee()
        player: Any = None
        if sandbox:
            player = Player(recording) if recording else StandIn()
        self.course = LiveCourse(self.session, self.trainee.tracked, player)
        self.boundary = Doomed(self.session, self.trainee.tracked)
        self.boundary.die = self._die
        self.course._boundary = self.boundary
        self.session.points.carry_out = self._struck
        self.trainee.groups(self.session.communicator)
        self.threads = [
            threading.Thread(target=target, name=f"{machine} {target.__name__}", daemon=True)
            for target in (self._listen, self._main)
        ]
        for thread in self.threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<{self.machine}.{self.slot} {self.role}>".replace(" >", ">")

    # -- the machine program -------------------------------------------------------------------

    def _listen(self) -> None:
        decoder = Decoder(self.machine)
        while True:
            try:
                data = self.line.recv(1 << 16)
                events = decoder.feed(data)
            except (OSError, DecodeError):
                return
            if not data:
                return
            self.heard += events

    def tell(self, event: Event) -> None:
        """Say something to the rank."""
        if not self.dead and self.error is None:
            self.line.sendall(encode_frame(event))

    def said(self, kind: type[E]) -> list[E]:
        """What the rank has said of one kind."""
        return [event for event in list(self.heard) if isinstance(event, kind)]

    # -- the process -----------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.error = error
        finally:
            self.course._log.close()
            if not self.dead:
                self.session.close()

    def _train(self) -> None:
        trainee, job = self.trainee, Job(self.course, self.trainee.tracked)
        self.session.start()
        if not self.session.sandbox:
            self.course.begin()
        trainee.begin(self, job)
        for step in job.steps(self.cluster.steps):
            self.hook(step, "before")
            trainee.step(self, step)
            self.hook(step, "reduced")
            trainee.optimizer.step()
            trainee.scheduler.step()
            live = self.session.communicator.player is None
            if live:
                self.ran.append((step.index, step.committed))
            if live and step.committed:
                self.samples.append((step.index, trainee.data.at))
                self.losses[step.index] = step.metrics["loss"]
            self.hook(step, "voted")
        self.digest = job.digest()

    def _die(self) -> None:
        """Close every socket, as the system does for a killed process (engine's thread)."""
        self.dead = True
        table = self.session.engine.table
        for connection in table.connections():
            self.session.engine.unwatch(connection)
            connection.close()
        table.close()
        self.session.engine._stopping = True
        self.session.control._closing = True
        self.session._tell(failed="killed")
        raise LinkError("killed")

    def _struck(self, fault: FaultSpec) -> None:
        """A fault has found this rank at its point: all ranks of the machine die, this one here."""
        self.struck = self.session.points.last
        for rank in self.cluster.on(self.machine):
            if rank is not self:
                rank.kill()
        if fault.at in IN_WALKS:
            self._die()
        self.kill()
        raise LinkError("killed") if fault.at == "prepare" else Killed

    def kill(self) -> None:
        """Die now, whatever the rank is doing."""
        try:
            self.session.engine.ask(self._die)
        except LinkError:
            return

    def end(self) -> None:
        """Join the threads; the machine's line is closed last."""
        self.session.control._closing = True
        self.session._tell(failed="the test is over")
        self.session.engine.break_epoch(self.session.engine.epoch, "the test is over", told=True)
        self.threads[1].join(LIMIT)
        self.session.engine.stop()
        self.session.control.close()
        self.line.close()
        self.threads[0].join(LIMIT)
        assert not any(thread.is_alive() for thread in self.threads), self


class Cluster:
    """Machines, a layout, and what the switcher would say."""

    trainee: type[Trainee] = Trainee
    record = False
    warmup_steps = 1

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
            state = f"committed {rank.boundary.committed}, epoch {engine.epoch} ({engine._reason or 'whole'})"
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


__all__ = ["Cluster", "JobError", "Rank", "at", "released", "undisturbed"]
