"""A world of rank "processes" in one process: an engine, a link table and a communicator each.

They talk over real sockets of this machine, so everything but the process boundary is real.  A
rank can be killed abruptly (its sockets close without a BYE) and replaced by a newcomer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
import torch

from tests.waiting import wait_until
from trainmover.ccl import algorithms, sizes, walks
from trainmover.ccl.communicator import Call, Communicator
from trainmover.ccl.connection import Connection
from trainmover.ccl.engine import Engine, Steps
from trainmover.ccl.handshake import Hello, dial
from trainmover.ccl.secure import LinkTls
from trainmover.ccl.table import LinkTable, Peer, Plan, new_life
from trainmover.topology.links import Link

T = TypeVar("T")

JOB = "test-job"
SECRET = b"a secret of thirty-two bytes...."
GROUP = "g"
LIMIT = 40.0
PROMPT = 1.0
"""What the design promises: a broken epoch ends every call within a second."""

OFTEN = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17)
SIZES = [n if n in OFTEN else pytest.param(n, marks=pytest.mark.long(every=0)) for n in range(1, 18)]
"""Group sizes up to the first that is no mesh.  Powers of two, what is beside them, and one that halves into
odd parts are in every run of the tests."""


def small_pieces(patch: pytest.MonkeyPatch, **more: int) -> None:
    """Pieces so small that a few thousand elements are many of them, on every road; ``more``: other sizes."""
    small = {
        "SHARED_PIECE_BYTES": 32 * 1024,
        "SHARED_BYTES": 4096,
        "SHARED_PARTS_BYTES": 4096,
        "LAYERED_BYTES": 4096,
        "DOUBLING_BYTES": 1024,
        "MESH_PIECE_BYTES": 8192,
        "LEAST_MESH_PIECE_BYTES": 4096,
        "TREE_PIECE_BYTES": 8192,
        "HALVING_PIECE_BYTES": 8192,
    }
    for name, size in (small | more).items():
        patch.setattr(sizes, name, size)


@dataclass
class Break:
    """What ``on_break`` was told."""

    epoch: int
    peer: int | None
    reason: str
    told: bool


@dataclass
class Member:
    """One rank process of a world."""

    rank: int
    size: int
    ranks_per_machine: int
    limit: float
    tls: LinkTls | None = None
    breaks: list[Break] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    killed: bool = False

    def __post_init__(self) -> None:
        self.table = LinkTable(JOB, new_life(f"m{self.rank}", 0), SECRET, "127.0.0.1", self.tls)
        self.engine = Engine(
            self.table,
            lambda epoch, peer, reason, told: self.breaks.append(Break(epoch, peer, reason, told)),
            lambda connection, reason: self.lost.append(f"{connection.peer}: {reason}"),
        )
        self.comm = Communicator(self.engine, self.rank, self.size, self.ranks_per_machine, self.limit)

    @property
    def peer(self) -> Peer:
        """Where this process listens."""
        return Peer(self.table.host, self.table.port, self.table.life)

    def connection(self, other: int, group: str = GROUP) -> Connection:
        """The connection to another rank in a group."""
        link = Link(group, "collective", min(self.rank, other), max(self.rank, other))
        return self.engine.ask(lambda: self.table.slot(link).connected)

    def connections(self) -> dict[Link, Connection]:
        """All connections in use, by link."""
        slots = self.engine.ask(lambda: dict(self.table._slots))
        return {link: slot.connection for link, slot in slots.items() if slot.connection is not None}

    def start(self, call: Call, group: str = GROUP) -> torch.futures.Future[Any]:
        """Hand a call to the communicator."""
        return self.comm.run(group, call)

    def walk(self, body: Callable[[walks.Group], Steps], limit: float = LIMIT) -> Any:
        """Run one walk of the group and wait for its result."""
        group = self.comm.view(GROUP, self.comm.groups[GROUP].ranks)
        return self.engine.run(GROUP, "test walk", lambda: body(group), limit)

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """Start an in-place sum over the world."""
        return self.start(sum_call(tensor))

    def kill(self) -> None:
        """End abruptly: every socket closes at once, nothing is said, as when a process is killed."""
        self.killed = True

        def die() -> None:
            for connection in self.table.connections():
                self.engine.unwatch(connection)
                connection.close()
            self.table.close()
            self.engine._stopping = True

        self.engine.ask(die)
        self.engine._thread.join(LIMIT)

    def stop(self) -> None:
        """End in good order."""
        self.engine.stop()


def sum_call(tensor: torch.Tensor) -> Call:
    """An in-place all_reduce (sum) as the process group makes it."""
    flat = tensor.view(-1)

    def walk(group: walks.Group, tag: int) -> Steps:
        return algorithms.all_reduce(group, flat, add, tag)

    return Call("all_reduce", f"SUM, {flat.numel()} x {flat.dtype}", [tensor], True, walk)


def say(group: walks.Group, tensor: torch.Tensor, member: int, tag: int) -> Steps:
    """Send over a collective link."""
    yield [group.send(member, tensor, tag)]


def hear(group: walks.Group, tensor: torch.Tensor, member: int, tag: int) -> Steps:
    """Receive over a collective link."""
    yield [group.receive(member, tensor, tag)]


def add(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """The sum of two tensors."""
    torch.add(left, right, out=out)


class World:
    """Ranks that are connected, epoch by epoch; those of one machine share windows of memory.

    Args:
        size: number of ranks.
        ranks_per_machine: K.
        limit: seconds that a call may take.
        groups: process groups by name, beside the one of all ranks.
        tls: encrypts the links; None: they are plain.
    """

    def __init__(
        self,
        size: int,
        ranks_per_machine: int = 1,
        limit: float = LIMIT,
        groups: Mapping[str, tuple[int, ...]] | None = None,
        tls: LinkTls | None = None,
    ) -> None:
        self.tls = tls
        self.size, self.ranks_per_machine, self.limit = size, ranks_per_machine, limit
        self.groups = {GROUP: tuple(range(size)), **(groups or {})}
        self.epoch = 0
        self.gone: list[Member] = []
        self.members = [self._member(rank) for rank in range(size)]

    def __getitem__(self, rank: int) -> Member:
        return self.members[rank]

    def _member(self, rank: int) -> Member:
        member = Member(rank, self.size, self.ranks_per_machine, self.limit, self.tls)
        for name, ranks in self.groups.items():
            if rank in ranks:
                member.comm.add_group(name, ranks)
        return member

    def plan(self, rank: int, epoch: int, links: Iterable[Link] = ()) -> Plan:
        """What an epoch needs of a rank."""
        here = rank // self.ranks_per_machine
        peers = {
            member.rank: replace(member.peer, beside=member.rank // self.ranks_per_machine == here)
            for member in self.members
        }
        wanted = self[rank].comm.links() | frozenset(links)
        return Plan(epoch, rank, peers, wanted, LIMIT)

    def prepare(self, epoch: int, ranks: Sequence[int] | None = None) -> Callable[[], bool]:
        """Phase 1 on the ranks; the answer tells whether all are ready."""
        ready: dict[int, tuple[float, int, int]] = {}
        chosen = range(self.size) if ranks is None else ranks
        for rank in chosen:
            plan, table = self.plan(rank, epoch), self[rank].table

            def note(seconds: float, made: int, kept: int, rank: int = rank) -> None:
                ready[rank] = (seconds, made, kept)

            self[rank].engine.call(lambda table=table, plan=plan, note=note: table.prepare(plan, note))
        return lambda: len(ready) == len(chosen)

    def adopt(self, epoch: int) -> list[dict[str, int]]:
        """Phase 2 everywhere, at the same time."""
        self.epoch = epoch

        def enter(member: Member) -> dict[str, int]:
            plan = self.plan(member.rank, epoch)
            counts = member.engine.adopt(plan)
            member.comm.plan = plan
            return counts

        return self.each(enter)

    def switch(self) -> list[dict[str, int]]:
        """Both phases of the next epoch."""
        epoch = self.epoch + 1
        wait_until(self.prepare(epoch), f"epoch {epoch} prepared everywhere")
        return self.adopt(epoch)

    def replace(self, rank: int) -> Member:
        """A newcomer takes a rank's place (in the next epoch)."""
        old, self.members[rank] = self.members[rank], self._member(rank)
        self.gone.append(old)
        return old

    def each(self, action: Callable[[Member], T], ranks: Sequence[int] | None = None) -> list[T]:
        """Run an action on every rank, each on its own thread; results by rank."""
        chosen = self.members if ranks is None else [self[rank] for rank in ranks]
        with ThreadPoolExecutor(len(chosen)) as pool:
            futures = [pool.submit(action, member) for member in chosen]
            return [future.result(LIMIT * 3) for future in futures]

    def check(self) -> None:
        """An all_reduce must bring the right sum to everybody."""
        values = [torch.full((5,), float(rank + 1)) for rank in range(self.size)]
        futures = [member.all_reduce(value) for member, value in zip(self.members, values, strict=True)]
        for future in futures:
            future.wait()
        assert [member.engine.broken for member in self.members] == [False] * self.size
        total = self.size * (self.size + 1) / 2
        assert all(torch.equal(value, torch.full((5,), total)) for value in values)

    def stop(self) -> None:
        """End everybody in good order."""
        self.each(lambda member: None if member.killed else member.stop())
        for member in self.gone:
            if not member.killed:
                member.stop()


def done_within(futures: Iterable[torch.futures.Future[Any]], limit: float) -> None:
    """All futures complete within ``limit`` seconds."""
    pending = list(futures)
    wait_until(lambda: all(future.done() for future in pending), "the calls complete", limit)


class Wire:
    """A peer written by hand: rank 0 of a world of two, as bare bytes on its link to rank 1."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> None:
        """Say these bytes."""
        self.sock.sendall(data)

    def receive(self, size: int) -> bytes:
        """Hear exactly so many bytes."""
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            assert piece, "the rank hung up"
            data += piece
        return data

    def hung_up(self) -> bool:
        """Wait until the rank has hung up."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


@contextmanager
def by_hand(epoch: int = 1):
    """A real rank 1 in an epoch whose only peer, rank 0, is a :class:`Wire`."""
    member = Member(1, 2, 1, LIMIT)
    member.comm.add_group(GROUP, (0, 1))
    link = Link(GROUP, "collective", 0, 1)
    plan = Plan(epoch, 1, (Peer("127.0.0.1", 1, "wire"), member.peer), frozenset({link}), LIMIT)
    ready = threading.Event()
    member.engine.call(lambda: member.table.prepare(plan, lambda *_: ready.set()))
    sock = socket.create_connection((member.table.host, member.table.port), LIMIT)
    try:
        dial(sock, Hello(JOB, link, epoch, 0, "wire", member.table.life), SECRET)
        assert ready.wait(LIMIT)
        member.engine.adopt(plan)
        yield member, Wire(sock)
    finally:
        member.stop()
        sock.close()
