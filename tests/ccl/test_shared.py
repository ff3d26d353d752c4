"""Shared windows: how neighbours get to see each other's, and that walks over them cannot mix anything up."""

from __future__ import annotations

import gc
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ccl.conftest import MakeWorld
from tests.ccl.operations import OPERATIONS, Operation
from tests.ccl.test_faults_in_flight import BREAKING, SIZE, Fault, run, strike_until_prompt
from tests.ccl.worlds import GROUP, World, add, done_within
from tests.waiting import wait_until
from trainmover.ccl import algorithms, shared, sizes, walks
from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.shared import Window, Windows, swap_windows
from trainmover.ccl.tags import tag_of
from trainmover.errors import LinkError
from trainmover.topology.bracket import reduce_in_order

TAG = tag_of("all_reduce")
LARGE = [
    item for item in OPERATIONS if "large" in item.name and item.name.split()[0] not in ("send", "all_to_all")
]
"""The operations that use windows."""

COUNT = 32 * 1024 + 1


@pytest.fixture(autouse=True)
def from_a_small_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of the size that the tests use goes through windows."""
    for name in ("SHARED_BYTES", "SHARED_PARTS_BYTES", "SHARED_BROADCAST_BYTES"):
        monkeypatch.setattr(sizes, name, COUNT)


def window_of(world: World, rank: int) -> Window:
    """A rank's own window."""
    return world[rank].engine.ask(lambda: world[rank].table.window(GROUP))


def families(world: World, rank: int) -> dict[int, socket.AddressFamily]:
    """What kind of socket a rank has to each other one, in its group."""
    return {
        item.other(rank): connection.sock.family
        for item, connection in world[rank].connections().items()
        if item.group == GROUP
    }


def sums(world: World, count: int = COUNT) -> None:
    """A large all_reduce brings the right sum."""
    values = [torch.full((count,), float(rank + 1)) for rank in range(world.size)]

    def body(group: walks.Group) -> Steps:
        return algorithms.all_reduce(group, values[group.me], add, TAG)

    world.each(lambda member: member.walk(body))
    assert all(bool((value == world.size * (world.size + 1) / 2).all()) for value in values)


# -- windows ---------------------------------------------------------------------------------------


def test_a_neighbour_sees_what_is_written() -> None:
    """Two processes swap windows over a unix socket; each then reads what the other one writes."""
    windows = Windows()
    mine, theirs = windows.own("a"), windows.own("b")
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(5.0)
        socket.send_fds(here, [b"W"], [mine.fileno()])
        seen = swap_windows(there, theirs, first=False)
    like = torch.empty(0)
    mine.input(1, like, 3, 64).copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert seen.input(1, like, 3, 64).tolist() == [1.0, 2.0, 3.0]
    assert seen.name == mine.name != theirs.name
    windows.close()
    with pytest.raises(LinkError, match="giving up its windows"):
        windows.own("c")
    with pytest.raises(LinkError, match="given up"):
        mine.fileno()
    assert seen.input(1, like, 3, 64).tolist() == [1.0, 2.0, 3.0], "what is mapped stays"


@pytest.mark.parametrize("size", [0, shared.WINDOW_BYTES])
def test_a_file_that_could_shrink_is_no_window(size: int) -> None:
    """A peer's file must have the agreed size and be sealed: reading it can then never fail."""
    fd = os.memfd_create("window", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    with pytest.raises(LinkError, match="sealed memory file"):
        Window(fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_peer_without_a_window_is_refused() -> None:
    """Bytes without an open file are no window."""
    windows = Windows()
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(5.0)
        here.send(b"W")
        with pytest.raises(LinkError, match="gave no window"):
            swap_windows(there, windows.own("a"), first=False)
    windows.close()


# -- links -----------------------------------------------------------------------------------------


def test_neighbours_use_the_door_and_others_the_network(world: MakeWorld) -> None:
    """Links inside a machine are unix sockets, links across are TCP; both carry the same frames."""
    made = world(4, 2)
    for rank in range(4):
        beside = rank ^ 1
        kinds = families(made, rank)
        assert {other for other, kind in kinds.items() if kind == socket.AF_UNIX} == {beside}
    made.check()


def test_a_closed_door_means_the_network(make_world: MakeWorld) -> None:
    """A rank that cannot be reached by its door is reached by TCP; all agree to do without windows."""
    made = make_world(3, 3)
    made[1].table._connectors._doors[1].close()
    made.switch()
    kinds = families(made, 1)
    assert kinds[0] == socket.AF_INET
    sums(made)
    assert [window_of(made, rank).usable for rank in range(3)] == [False] * 3
    assert not any(member.engine.broken for member in made.members)


def mapped() -> int:
    """How many windows are mapped into this process, by all its ranks."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count(f"memfd:trainmover {GROUP}")


def test_windows_stay_through_switches(world: MakeWorld) -> None:
    """A switch makes no new windows, leaves no descriptor, and a newcomer gets those of its neighbours."""
    made = world(3, 3)
    sums(made)
    before, others = window_of(made, 0), mapped() - 3 * 3
    open_files = len(os.listdir("/proc/self/fd"))
    for rank in (1, 2, 1, 2, 1, 2):
        made[rank].kill()
        made.replace(rank)
        made.switch()
        sums(made)
    assert window_of(made, 0) is before
    assert all(window_of(made, rank).usable for rank in range(3))
    assert len(os.listdir("/proc/self/fd")) <= open_files + 2
    made.gone.clear()
    wait_until(
        lambda: mapped() - others <= 3 * 3, "three windows are mapped by three ranks each, and no more"
    )


def test_a_window_of_an_earlier_group_is_not_taken_for_the_new_one(world: MakeWorld) -> None:
    """When a neighbour has made its window anew since the link was made, nobody uses windows."""
    made = world(3, 3)
    sums(made)
    table = made[2].table
    made[2].engine.ask(lambda: table._connectors.windows.drop(GROUP))
    for rank in range(2):
        window_of(made, rank).epoch = 0
    sums(made)
    assert [window_of(made, rank).usable for rank in range(3)] == [False] * 3


# -- walks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", LARGE, ids=str)
@pytest.mark.parametrize("fault", BREAKING, ids=lambda fault: fault.__name__)
def test_a_fault_between_neighbours_ends_the_step_and_no_more(
    world: MakeWorld, fault: Fault, operation: Operation
) -> None:
    """In shared memory too: all are unblocked in 200 ms, and the next epoch's results are right."""
    strike_until_prompt(world(SIZE, SIZE), operation, fault)


@pytest.mark.parametrize("operation", LARGE, ids=str)
def test_every_operation_between_neighbours(world: MakeWorld, operation: Operation) -> None:
    """Each large operation brings what it must, again and again, in the same windows."""
    made = world(3, 3)
    for _ in range(3):
        run(made, operation)
    assert all(window_of(made, rank).usable for rank in range(3))


def late(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Make everybody late at any time: touching a window takes up to two milliseconds, now and then."""
    luck = random.Random(seed)

    def slowed(method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def touch(*args: object) -> torch.Tensor:
            if luck.random() < 0.2:
                time.sleep(luck.random() * 0.002)
            return method(*args)

        return touch

    monkeypatch.setattr(Window, "input", slowed(Window.input))
    monkeypatch.setattr(Window, "result", slowed(Window.result))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 40_000), st.integers(0, 2)), min_size=2, max_size=12
    ),
    st.integers(0, 2**16),
)
def test_calls_that_follow_each_other_do_not_mix(calls: list[tuple[int, int, int]], seed: int) -> None:
    """Any sequence of calls, with every rank late at any time, brings each call its own results."""
    size = 3
    made = World(size, size)
    made.switch()
    generator = torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "SHARED_PIECE_BYTES", 48 * 1024)
        patch.setattr(sizes, "BLOCK_BYTES", 4096)
        patch.setattr(sizes, "SHARED_WHOLE_BYTES", 16 * 1024)
        patch.setattr(sizes, "SHARED_BYTES", 1)
        patch.setattr(sizes, "SHARED_PARTS_BYTES", 1)
        patch.setattr(sizes, "SHARED_BROADCAST_BYTES", 1)
        late(patch, seed)
        for kind, count, root in calls:
            start_call(made, kind, count, root, generator)
    made.stop()


def start_call(made: World, kind: int, count: int, root: int, generator: torch.Generator) -> None:
    """One call of a kind on everybody, and its results."""
    size = made.size
    parts = [torch.randint(-99, 99, (count,), generator=generator) for _ in range(size)]
    mine = [part.clone() for part in parts]
    outs = [[torch.zeros(count, dtype=torch.int64) for _ in range(size)] for _ in range(size)]
    bounds = walks.slices(count, size)

    def body(group: walks.Group) -> Steps:
        me = group.me
        if kind == 0:
            return algorithms.all_reduce(group, mine[me], add, TAG)
        if kind == 1:
            return algorithms.reduce(group, mine[me], root, add, TAG)
        if kind == 2:
            return algorithms.broadcast(group, mine[me], root, TAG)
        if kind == 3:
            return algorithms.all_gather(group, mine[me], outs[me], TAG)
        if kind == 4:
            a, b = bounds[me]
            return algorithms.reduce_scatter(group, mine[me], outs[me][0][: b - a], bounds, add, TAG)
        return algorithms.all_to_all(group, [mine[me]] * size, outs[me], TAG)

    made.each(lambda member: member.walk(body))
    for rank in range(size):
        assert came_right(kind, mine[rank], outs[rank], parts, root, rank), (kind, count, root, rank)


def came_right(
    kind: int, mine: torch.Tensor, outs: list[torch.Tensor], parts: list[torch.Tensor], root: int, rank: int
) -> bool:
    """Whether a rank has what :func:`start_call` should have brought."""
    total = sum(parts[1:], parts[0])
    if kind in (0, 1):
        return torch.equal(mine, total if kind == 0 or rank == root else parts[rank])
    if kind == 2:
        return torch.equal(mine, parts[root])
    if kind == 4:
        a, b = walks.slices(len(total), len(parts))[rank]
        return torch.equal(outs[0][: b - a], total[a:b])
    return all(map(torch.equal, outs, parts))


def sum_call(tensor: torch.Tensor) -> Call:
    """An all_reduce as the process group makes it."""

    def walk(group: walks.Group, tag: int) -> Steps:
        return algorithms.all_reduce(group, tensor, add, tag)

    return Call("all_reduce", f"SUM, {tensor.numel()}", [tensor], True, walk)


def test_a_broken_call_leaves_the_windows_to_the_next_epoch(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch that breaks in a large call, at another place each time, spoils none that follow."""
    made = world(3, 3)
    monkeypatch.setattr(sizes, "SHARED_PIECE_BYTES", 64 * 1024)
    late(monkeypatch, 7)
    for number in range(8):
        futures = [member.start(sum_call(torch.ones(400_000))) for member in made.members]
        time.sleep(0.002 * number)
        epoch = made.epoch
        made[number % 3].engine.break_epoch(epoch, "enough", told=False)
        done_within(futures, 5.0)
        made.switch()
        sums(made, 100_003)


def test_canonical_bits_with_odd_block_sizes(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the chunks and blocks, a sum of eight has the bits of the reference."""
    made = world(8, 8)
    monkeypatch.setattr(sizes, "SHARED_WHOLE_BYTES", 0)
    parts = [torch.randn(30_011) * 10.0 ** (rank % 4) for rank in range(8)]
    expected = reduce_in_order((0,) * 8, parts, torch.add)
    for chunk, block in ((64 * 1024, 512), (16 * 1024, 16 * 1024), (shared.INPUT_BYTES, sizes.BLOCK_BYTES)):
        monkeypatch.setattr(sizes, "SHARED_PIECE_BYTES", chunk)
        monkeypatch.setattr(sizes, "BLOCK_BYTES", block)
        outs = [part.clone() for part in parts]

        def body(group: walks.Group, outs: list[torch.Tensor] = outs) -> Steps:
            return algorithms.all_reduce(group, outs[group.me], add, TAG)

        made.each(lambda member, body=body: member.walk(body))
        assert all(torch.equal(out, expected) for out in outs)
