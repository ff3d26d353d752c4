"""The choice of algorithms: whatever is chosen for a size and a placement, the bits are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ccl.test_walks import same, values
from tests.ccl.worlds import GROUP, SIZES, World, add, small_pieces
from trainmover.ccl import (
    algorithms,
    layered_walks,
    tree_walks,
    walks,
)
from trainmover.ccl.engine import Steps
from trainmover.ccl.tags import tag_of
from trainmover.topology.bracket import cells, reduce_in_order

TAG = tag_of("all_reduce")
CHUNK = 32 * 1024
KINDS = [torch.float32, torch.bfloat16, torch.int64]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Many pieces and blocks of a few thousand elements."""
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch, SHARED_PIECE_BYTES=CHUNK, BLOCK_BYTES=2048, SHARED_WHOLE_BYTES=16 * 1024)
        yield


def placements(size: int) -> list[int]:
    """Ranks per machine: one, all, and what leaves a machine over or divides the ranks evenly."""
    return sorted({1, size, *(per for per in (2, 3, 4, 8) if per < size)})


COUNTS = [1, 100, 3 * CHUNK // 4 - 1, CHUNK // 2 * 3 + 17]
"""What is exchanged whole, what goes in pieces, and chunks that end before and after a boundary."""


@pytest.mark.parametrize("size", SIZES)
def test_every_size_and_placement_has_the_bits_of_the_reference(size: int) -> None:
    """From 1 to 17 ranks, on machines of any width, reductions have the bits of reduce_in_order."""
    for per_machine in placements(size):
        world = World(size, per_machine)
        try:
            world.switch()
            for number, count in enumerate(COUNTS if size <= 9 else COUNTS[1:3]):
                check(world, count, KINDS[(size + number) % len(KINDS)])
        finally:
            world.stop()


def check(world: World, count: int, kind: torch.dtype) -> None:
    """all_reduce, reduce and reduce_scatter of one size."""
    size = world.size
    positions = tuple(rank // world.ranks_per_machine for rank in range(size))
    parts = values(size, count, kind, seed=count)
    expected = reduce_in_order(positions, parts, torch.add)
    everywhere, at_root, whole = ([part.clone() for part in parts] for _ in range(3))
    bounds, root = walks.slices(count, size), size // 2
    runs = [torch.empty(b - a, dtype=kind) for a, b in bounds]

    def body(group: walks.Group) -> Steps:
        me = group.me
        yield from algorithms.all_reduce(group, everywhere[me], add, TAG)
        yield from algorithms.reduce(group, at_root[me], root, add, TAG)
        yield from algorithms.reduce_scatter(group, whole[me], runs[me], bounds, add, TAG)

    world.each(lambda member: member.walk(body))
    what = f"{size} ranks, {world.ranks_per_machine} per machine, {count} x {kind}"
    assert all(same(out, expected) for out in everywhere), f"all_reduce of {what}"
    assert same(at_root[root], expected), f"reduce of {what}"
    assert all(same(part, parts[rank]) for rank, part in enumerate(at_root) if rank != root), what
    assert all(same(run, expected[a:b].clone()) for run, (a, b) in zip(runs, bounds, strict=True)), what


@pytest.fixture(scope="module")
def neighbours() -> Iterator[World]:
    """Eight ranks that all see each other's windows."""
    world = World(8, 8)
    world.switch()
    yield world
    world.stop()


@settings(max_examples=40, deadline=None)
@given(
    positions=st.one_of(
        st.lists(st.integers(0, 3), min_size=2, max_size=8),
        st.permutations([0, 0, 1, 1, 2, 2]),
        st.permutations([0, 0, 0, 0, 1, 1, 1, 1]),
    ).map(tuple),
    count=st.integers(1, 20_000),
    seed=st.integers(0, 2**16),
)
def test_all_algorithms_agree(neighbours: World, positions: tuple[int, ...], count: int, seed: int) -> None:
    """Mesh, tree, layers and windows bring the same bits, wherever the members sit and in whatever order."""
    size = len(positions)
    parts = values(size, count, seed=seed)
    expected = reduce_in_order(positions, parts, torch.add)

    def run(body: object) -> bool:
        outs = [part.clone() for part in parts]

        def one(member) -> None:
            # Cells differ from case to case, as they never do in a group: the windows' steps start anew.
            member.engine.ask(lambda: setattr(member.table.window(GROUP), "epoch", 0))
            group = walks.Group(
                member.engine, GROUP, "collective", tuple(range(size)), positions, member.rank
            )
            member.engine.run(GROUP, "placed", lambda: body(group, outs[member.rank], add, TAG), 20.0)

        neighbours.each(one, range(size))
        return all(same(out, expected) for out in outs)

    assert run(walks.all_reduce)
    assert run(tree_walks.all_reduce)
    assert run(algorithms.all_reduce)
    widths = {len(cell) for cell in cells(positions)}
    if len(widths) == 1 and 1 not in widths:
        assert run(layered_walks.all_reduce)


def test_layers_need_no_windows(make_world) -> None:
    """Where neighbours cannot be reached by their doors, layers run over links alone, with the same bits."""
    made = make_world(4, 2)
    for member in made.members:
        member.table._connectors._doors[1].close()
    made.switch()
    check(made, 9_001, torch.float32)
    assert not any(made[rank].table.window(GROUP).usable for rank in range(4))
