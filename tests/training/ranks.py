"""A rank process as threads: a real session, boundary and course, whose machine program is the test.

It can die as a process does: at a point of a step, inside a vote, or whenever the test says so.
"""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tests.ccl.worlds import LIMIT
from tests.training.trainees import StandIn
from tests.waiting import wait_until
from trainmover.ccl.engine import Steps
from trainmover.ccl.tags import tag_of
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.ccl.vote_walks import Poll
from trainmover.errors import DecodeError, LinkError
from trainmover.events.catalogue import Event
from trainmover.events.frames import Decoder, encode_frame
from trainmover.faults import FaultSpec
from trainmover.sandbox.player import Player
from trainmover.training import agreement
from trainmover.training.boundary import Boundary
from trainmover.training.environment import Environment
from trainmover.training.job import Job, Step
from trainmover.training.live import LiveCourse
from trainmover.training.session import Session

if TYPE_CHECKING:
    from tests.training.clusters import Cluster

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
            checkpoint_every=cluster.checkpoint_every,
            checkpoints=str(folder / "checkpoints") if cluster.checkpoint_every else "",
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
        self.course._boundary = self.course._keeper._boundary = self.boundary
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
