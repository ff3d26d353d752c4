"""Every operation in flight meets every fault: nobody hangs, nothing healthy is lost, training goes on.

In a world of four, three ranks have called an operation and wait for rank 1, which does not call it.
Then a fault happens to rank 1 or on a link of its own.  *Breaking* faults end everybody's calls
within 200 ms of the moment in which the first engine knows; the step is void, links between the
others are the same connections afterwards, and the next epoch, with a newcomer where rank 1 is gone,
brings right results.  *Harmless* ones (what belongs to an old epoch, who does not know the secret) are
not noticed at all: the operation completes once rank 1 calls it too.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.ccl.conftest import MakeWorld
from tests.ccl.operations import HEARER, OPERATIONS, SOURCE, Operation
from tests.ccl.worlds import GROUP, JOB, PROMPT, World
from tests.waiting import wait_until
from trainmover.ccl import frames
from trainmover.ccl.connection import Connection
from trainmover.ccl.handshake import Hello, dial
from trainmover.errors import LinkError
from trainmover.topology.links import link

SIZE = 4
TREE_SIZE = 18
"""More than a mesh has: BREAK is passed on from rank to rank."""
UNBLOCKED_SECONDS = 0.2
"""From the moment in which a fault is known to the first rank until nobody waits any more."""
ATTEMPTS = 3
"""A busy machine may take a time slice away: the best of so many attempts must keep the limit."""


Fault = Callable[[World, Operation, ExitStack], None]
"""Happens to a world in which an operation is under way; the stack is unwound in the next epoch."""


class CutSocket:
    """A socket that fails after its first bytes: all of a frame's header and at most half its payload."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendmsg(self, buffers: Sequence[memoryview], *_: object) -> int:
        data = b"".join(bytes(buffer[:2000]) for buffer in buffers)
        return self.send(data)

    def send(self, data: bytes | memoryview, *_: object) -> int:
        self._sock.send(bytes(data)[: max(frames.HEADER_SIZE, len(data) // 2)])
        self._sock.shutdown(socket.SHUT_RDWR)
        self.used = True
        raise ConnectionResetError("cut")


def of_group(world: World, others: Container[int] = range(1000)) -> list[Connection]:
    """Rank 1's connections to others in the group, whatever their channels."""
    found = world[SOURCE].connections().items()
    return [c for item, c in found if item.group == GROUP and item.other(SOURCE) in others]


def killed(world: World, _: Operation, _after: ExitStack) -> None:
    """Rank 1's process is killed: its sockets close, nothing is said."""
    world[SOURCE].kill()


def killed_at_work(world: World, operation: Operation, _after: ExitStack) -> None:
    """Rank 1 calls the operation too, and is killed while its bytes are on their way."""
    operation.start(world[SOURCE])
    world[SOURCE].kill()


def stopped(world: World, _: Operation, after: ExitStack) -> None:
    """Rank 1's process is stopped, its sockets stay open; then one rank hears that it is dead."""
    victim, wake = world[SOURCE], threading.Event()
    victim.engine.call(lambda: wake.wait(20.0) and None)
    after.callback(wake.set)
    here = world[HEARER].engine
    here.break_epoch(world.epoch, "machine m1 failed", told=True, dead=[victim.table.life])


def cut(world: World, operation: Operation, _after: ExitStack) -> None:
    """Rank 1 calls the operation too; its connection fails in the middle of the first frame that it sends."""
    cuts = []
    for connection in of_group(world):
        cuts.append(CutSocket(connection.sock))
        connection.sock = cuts[-1]  # type: ignore[assignment]
    operation.start(world[SOURCE])
    wait_until(lambda: any(sock.used for sock in cuts), "the cut", PROMPT)


def garbage(world: World, _: Operation, _after: ExitStack) -> None:
    """Rank 1 says something on its link to rank 0 that is no frame."""
    for connection in of_group(world, [HEARER]):
        connection.sock.send(b"\xff" * 64)


BREAKING: dict[Fault, bool] = {
    killed: True,
    killed_at_work: True,
    stopped: True,
    cut: False,
    garbage: False,
}
"""Faults that end the step; True: rank 1 is replaced, else its link is made anew."""


def old_epoch(world: World) -> None:
    """Rank 1 says on its link to rank 0 what belongs to the epoch before: a payload and a BREAK."""
    old = world.epoch - 1
    for connection in of_group(world, [HEARER]):
        connection.sock.send(frames.pack(frames.DATA, old, 0, 9 << 24, 40) + b"\1" * 40)
        connection.sock.send(frames.pack(frames.BREAK, old))


def wrong_secret(world: World) -> None:
    """Somebody who does not know the job's secret dials rank 0 in rank 1's name, for the link in use."""
    here, peer = world[HEARER].peer, world[SOURCE].peer
    item = link(GROUP, "collective", HEARER, SOURCE)
    with socket.create_connection((here.host, here.port), PROMPT) as sock:
        hello = Hello(JOB, item, world.epoch, SOURCE, peer.life, here.life)
        with pytest.raises(LinkError, match="secret"):
            dial(sock, hello, b"another secret")


HARMLESS = (old_epoch, wrong_secret)

IN_A_TREE = [
    operation for operation in OPERATIONS if operation.name in ("all_reduce", "broadcast", "barrier")
]


def others(world: World) -> list[int]:
    """Everybody but rank 1."""
    return [rank for rank in range(world.size) if rank != SOURCE]


class Waiting:
    """Everybody but rank 1 has called the operation; rank 0 surely waits in it.

    Args:
        blocked: each rank has a thread that waits for its calls, which may then move the bytes itself;
            else the calls are asynchronous and nobody waits for them yet.
    """

    def __init__(self, world: World, operation: Operation, *, blocked: bool) -> None:
        self.started = {rank: operation.start(world[rank]) for rank in others(world)}
        self.threads = [
            threading.Thread(target=started.wait, daemon=True) for started in self.started.values() if blocked
        ]
        for thread in self.threads:
            thread.start()
        for rank in self.started:
            world[rank].engine.ask(lambda: None)
        assert not self.started[HEARER].done

    @property
    def over(self) -> bool:
        """All calls have completed and nobody waits."""
        done = all(started.done for started in self.started.values())
        return done and not any(thread.is_alive() for thread in self.threads)


def links_between(world: World, ranks: Sequence[int]) -> dict[tuple[int, object], object]:
    """The connections that both ends of which are on these ranks."""
    return {
        (rank, item): connection
        for rank in ranks
        for item, connection in world[rank].connections().items()
        if item.other(rank) in ranks
    }


def run(world: World, operation: Operation) -> None:
    """The operation on everybody, with right results."""
    started = [operation.start(member) for member in world.members]
    wait_until(lambda: all(item.done for item in started), f"{operation} completes")
    assert all(item.right() for item in started)


def strike(world: World, operation: Operation, fault: Fault, after: ExitStack, *, blocked: bool) -> float:
    """A breaking fault and the epoch after it; returns how long anybody was still blocked."""
    replaced = BREAKING[fault]
    run(world, operation)  # makes the links that are made when they are first needed
    waiting, stayers = Waiting(world, operation, blocked=blocked), others(world)
    healthy = links_between(world, stayers)
    known = [float("inf")] * world.size
    for rank, member in enumerate(world.members):
        member.breaks.clear()
        member.engine._on_break = _noting(member.engine._on_break, known, rank)
    fault(world, operation, after)
    affected = stayers if replaced else list(range(world.size))

    def unblocked() -> bool:
        return waiting.over and all(world[rank].engine.broken for rank in affected)

    wait_until(unblocked, f"{operation}, {fault.__name__}: everybody is unblocked", PROMPT * 3)
    seconds = time.monotonic() - min(known)
    assert all(world[rank].comm.swallowing for rank in affected), "the step is void"
    late = {rank: operation.start(world[rank]) for rank in affected}
    assert all(item.done for item in late.values()), "a later call of the step returns at once"
    assert [world[rank].engine.fatal for rank in affected] == [None] * len(affected)
    if replaced:
        world.replace(SOURCE)
    world.switch()
    assert healthy.items() <= links_between(world, stayers).items()
    run(world, operation)
    return seconds


def _noting(on_break: Callable[..., None], known: list[float], rank: int) -> Callable[..., None]:
    def note(*told: Any) -> None:
        known[rank] = time.monotonic()
        on_break(*told)

    return note


def strike_until_prompt(made: World, operation: Operation, fault: Fault, *, blocked: bool = True) -> None:
    """Strike until nobody was blocked for too long; everything else must hold each time."""
    delays = []
    for _ in range(ATTEMPTS):
        with ExitStack() as after:
            delays.append(strike(made, operation, fault, after, blocked=blocked))
        made.check()  # one that wakes up after it was replaced disturbs nobody
        if delays[-1] <= UNBLOCKED_SECONDS:
            return
    raise AssertionError(f"blocked for {', '.join(f'{seconds:.3f} s' for seconds in delays)}")


@pytest.mark.long(every=3)
@pytest.mark.parametrize("blocked", [True, False], ids=["waited for", "asynchronous"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@pytest.mark.parametrize("fault", BREAKING, ids=lambda fault: fault.__name__)
def test_a_fault_ends_the_step_and_no_more(
    world: MakeWorld, fault: Fault, operation: Operation, blocked: bool
) -> None:
    """Everybody is unblocked in 200 ms, healthy links stay, the next epoch's results are right."""
    strike_until_prompt(world(SIZE), operation, fault, blocked=blocked)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("operation", [item for item in OPERATIONS if "large" in item.name], ids=str)
@pytest.mark.parametrize("fault", BREAKING, ids=lambda fault: fault.__name__)
def test_a_fault_beside_shared_memory_ends_the_step_and_no_more(
    world: MakeWorld, fault: Fault, operation: Operation
) -> None:
    """The same where all ranks are on one machine and large tensors go through windows of memory."""
    made = world(SIZE, SIZE)
    run(made, next(item for item in OPERATIONS if item.name == "all_reduce large"))
    assert all(member.engine.ask(lambda m=member: m.table.window(GROUP).usable) for member in made.members)
    strike_until_prompt(made, operation, fault)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("operation", IN_A_TREE, ids=str)
@pytest.mark.parametrize("fault", BREAKING, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_tree_ends_the_step_and_no_more(
    world: MakeWorld, fault: Fault, operation: Operation
) -> None:
    """The same where ranks have links with few others, and hear of the fault through them."""
    strike_until_prompt(world(TREE_SIZE), operation, fault)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@pytest.mark.parametrize("fault", HARMLESS, ids=lambda fault: fault.__name__)
def test_what_does_not_belong_here_disturbs_nothing(
    world: MakeWorld, fault: Callable[[World], None], operation: Operation
) -> None:
    """The operation in flight completes with right results, in the same epoch and on the same links."""
    made = world(SIZE)
    made.switch()
    run(made, operation)  # makes the links that are made when they are first needed
    before = links_between(made, range(SIZE))
    waiting = Waiting(made, operation, blocked=True)
    fault(made)
    made[HEARER].engine.ask(lambda: None)
    assert not waiting.started[HEARER].done
    last = operation.start(made[SOURCE])
    wait_until(lambda: waiting.over and last.done, f"{operation} completes")
    assert all(item.right() for item in (*waiting.started.values(), last))
    assert [member.breaks for member in made.members] == [[]] * SIZE
    assert before.items() <= links_between(made, range(SIZE)).items()
