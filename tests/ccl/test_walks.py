"""Every walk against what it must bring, and every reduction against the canonical bracketing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import World, add
from trainmover.ccl import doubling_walks, halving_walks, sizes, tree_walks, view, walks
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import combine_of
from trainmover.ccl.tags import tag_of
from trainmover.topology.bracket import reduce_in_order

TAG = tag_of("all_reduce")
KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
PIECE = sizes.MESH_PIECE_BYTES // 4
"""Elements of float32 in a piece."""
COUNTS = [1, 17, 4096, 4097, 3 * PIECE + 7]
"""One element; odd; the most that is exchanged whole; one more; several pieces per slice."""


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[int], World]]:
    """Worlds by size, made once: two ranks per machine where that goes up."""
    made: dict[int, World] = {}

    def get(size: int) -> World:
        if size not in made:
            made[size] = World(size, 2 if size % 2 == 0 else 1)
            made[size].switch()
        return made[size]

    yield get
    for world in made.values():
        world.stop()


def values(size: int, count: int, kind: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """One tensor per rank, of magnitudes whose sum depends on its brackets."""
    generator = torch.Generator().manual_seed(seed)
    if kind.is_floating_point:
        found = [torch.randn(count, generator=generator) * 10.0 ** (rank % 4) for rank in range(size)]
        return [tensor.to(kind) for tensor in found]
    return [torch.randint(0, 9, (count,), generator=generator).to(kind) for _ in range(size)]


def reference(world: World, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The canonical sum."""
    positions = tuple(rank // world.ranks_per_machine for rank in range(world.size))
    return reduce_in_order(positions, parts, torch.add)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal bit for bit."""
    return left.dtype == right.dtype and bytes(view.as_bytes(left)) == bytes(view.as_bytes(right))


def on_all(world: World, body: Callable[[walks.Group], Steps]) -> None:
    """Run a walk on every rank at once."""
    world.each(lambda member: member.walk(body))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_reduce_follows_the_bracketing(worlds, size: int, count: int) -> None:
    """By doubling, by halving or by slices, every rank has the bits of the canonical sum."""
    world = worlds(size)
    parts = values(size, count)
    expected = reference(world, parts)
    ways = [walks.all_reduce, doubling_walks.all_reduce]
    if halving_walks.fits(world[0].comm.view("g", tuple(range(size))).tree, size):
        ways.append(halving_walks.all_reduce)
    assert (len(ways) == 3) == (size in (1, 2, 4))
    for walk in ways:
        outs = [part.clone() for part in parts]
        on_all(world, lambda group, walk=walk, outs=outs: walk(group, outs[group.me], add, TAG))
        assert [same(out, expected) for out in outs] == [True] * size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 40_001])
def test_all_reduce_knows_every_dtype(worlds, kind: torch.dtype, count: int) -> None:
    """Sums, minima and maxima of every supported dtype, small and large."""
    world = worlds(3)
    for name, expected in (
        ("SUM", torch.add),
        ("MIN", torch.minimum),
        ("MAX", torch.maximum),
        ("PRODUCT", torch.mul),
    ):
        parts = values(3, count, kind)
        outs = [part.clone() for part in parts]
        on_all(world, lambda group, name=name, outs=outs: walks.all_reduce(
            group, outs[group.me], combine_of(name), TAG))  # fmt: skip
        right = reduce_in_order((0, 1, 2), parts, expected)
        assert all(same(out, right) for out in outs), name


@pytest.mark.parametrize("count", [1, 5000, 2 * PIECE + 3])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 16])
def test_the_tree_gives_the_same_bits(worlds, size: int, count: int) -> None:
    """In a mesh both algorithms can run: the tree's bits are the slices' bits."""
    if size == 16 and count > 5000:
        count = 5001
    world = worlds(size)
    parts = values(size, count, seed=1)
    slices, tree = [p.clone() for p in parts], [p.clone() for p in parts]
    on_all(world, lambda group: walks.all_reduce(group, slices[group.me], add, TAG))
    on_all(world, lambda group: tree_walks.all_reduce(group, tree[group.me], add, TAG))
    expected = reference(world, parts)
    assert all(same(out, expected) for out in slices + tree)


@pytest.mark.parametrize("size", [17, 20])
def test_large_groups_have_what_the_tree_needs(worlds, size: int) -> None:
    """Above the mesh limit the links of the topology are enough for all_reduce, broadcast, all_gather."""
    world = worlds(size)
    for count in (1, PIECE + 5):
        parts = values(size, count)
        outs = [part.clone() for part in parts]
        on_all(world, lambda group, outs=outs: tree_walks.all_reduce(group, outs[group.me], add, TAG))
        expected = reference(world, parts)
        assert all(same(out, expected) for out in outs)
    sent = [torch.full((PIECE + 1,), float(rank)) for rank in range(size)]
    on_all(world, lambda group: tree_walks.broadcast(group, sent[group.me], 3, TAG))
    assert all(torch.equal(tensor, torch.full((PIECE + 1,), 3.0)) for tensor in sent)
    rows = [torch.zeros(size, 7) for _ in range(size)]
    on_all(world, lambda group: tree_walks.all_gather(
        group, torch.full((7,), float(group.me)), list(rows[group.me].unbind(0)), TAG))  # fmt: skip
    assert all(torch.equal(row, torch.arange(float(size)).repeat(7, 1).t()) for row in rows)


@pytest.mark.parametrize("count", [1, 1001, PIECE + 9])
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_reduce_brings_the_sum_to_the_root_only(worlds, size: int, count: int) -> None:
    """The root has the canonical bits; everybody else keeps its own values."""
    world = worlds(size)
    parts = values(size, count)
    for root in {0, size - 1}:
        outs = [part.clone() for part in parts]
        on_all(world, lambda group, outs=outs, root=root: walks.reduce(
            group, outs[group.me], root, add, TAG))  # fmt: skip
        expected = reference(world, parts)
        assert [same(out, expected if rank == root else parts[rank]) for rank, out in enumerate(outs)] == [
            True
        ] * size


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_reduce_scatter_gives_each_its_run(worlds, size: int) -> None:
    """Member i has the canonical sum of run i; runs may differ in length and be empty."""
    world = worlds(size)
    counts = [PIECE + 3, 0, 1, 17, 4096][:size]
    starts = [sum(counts[:i]) for i in range(size)]
    bounds = [(start, start + count) for start, count in zip(starts, counts, strict=True)]
    parts = values(size, sum(counts))
    wholes, outs = [p.clone() for p in parts], [torch.empty(count) for count in counts]
    on_all(world, lambda group: walks.reduce_scatter(
        group, wholes[group.me], outs[group.me], bounds, add, TAG))  # fmt: skip
    expected = reference(world, parts)
    assert all(same(out, expected[a:b].clone()) for out, (a, b) in zip(outs, bounds, strict=True))


@pytest.mark.parametrize("count", [1, 999, 2_000_001])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_data_that_is_only_moved_arrives_unchanged(worlds, size: int, count: int) -> None:
    """broadcast, all_gather, gather and scatter bring exactly the bytes that were given."""
    world = worlds(size)
    given_, root = values(size, count), size - 1
    copies = [part.clone() for part in given_]
    on_all(world, lambda group: walks.broadcast(group, copies[group.me], root, TAG))
    assert all(same(copy, given_[root]) for copy in copies)

    gathered = [[torch.empty(count) for _ in range(size)] for _ in range(size)]
    on_all(world, lambda group: walks.all_gather(group, given_[group.me], gathered[group.me], TAG))
    assert all(same(got, given_[i]) for row in gathered for i, got in enumerate(row))

    at_root = [torch.empty(count) for _ in range(size)]
    on_all(world, lambda group: walks.gather(
        group, given_[group.me], at_root if group.me == root else [], root, TAG))  # fmt: skip
    assert all(same(got, given_[i]) for i, got in enumerate(at_root))

    outs = [torch.empty(count) for _ in range(size)]
    on_all(world, lambda group: walks.scatter(
        group, given_ if group.me == root else [], outs[group.me], root, TAG))  # fmt: skip
    assert all(same(out, given_[i]) for i, out in enumerate(outs))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_to_all_moves_every_part_to_its_owner(worlds, size: int) -> None:
    """Member i ends with everybody's i-th part; parts may differ in length and be empty."""
    world = worlds(size)

    def part(source: int, target: int) -> torch.Tensor:
        return torch.full((source * 3 + target * 1000,), float(10 * source + target))

    ins = [[part(i, j) for j in range(size)] for i in range(size)]
    outs = [[torch.empty_like(part(j, i)) for j in range(size)] for i in range(size)]
    on_all(world, lambda group: walks.all_to_all(group, ins[group.me], outs[group.me], TAG))
    assert all(same(outs[i][j], part(j, i)) for i in range(size) for j in range(size))


def test_send_does_not_wait_for_the_receiver(worlds) -> None:
    """A message of a pipeline's size is out before anybody asks for it, and arrives whole."""
    world = worlds(2)
    message, got = torch.arange(10_000.0), torch.empty(10_000)
    world[0].walk(lambda group: walks.send(group, message, 1, TAG))
    world[1].walk(lambda group: walks.receive(group, got, 0, TAG))
    assert same(got, message)


@settings(max_examples=40, deadline=None)
@given(
    positions=st.lists(st.integers(0, 4), min_size=2, max_size=5).map(tuple),
    count=st.integers(1, 9000),
    seed=st.integers(0, 2**16),
)
def test_any_placement_follows_its_bracketing(
    worlds, positions: tuple[int, ...], count: int, seed: int
) -> None:
    """Whatever machines the members sit on, every algorithm has the bits of reduce_in_order."""
    world = worlds(5)
    size = len(positions)
    parts = values(size, count, seed=seed)
    expected = reduce_in_order(positions, parts, torch.add)
    bounds = walks.slices(count, size)
    outs = [torch.empty(b - a) for a, b in bounds]

    def run(body: Callable[[walks.Group, torch.Tensor], Steps]) -> list[torch.Tensor]:
        flats = [part.clone() for part in parts]

        def one(member) -> None:
            group = walks.Group(member.engine, "g", "collective", tuple(range(size)), positions, member.rank)
            member.engine.run("g", "placed", lambda: body(group, flats[member.rank]), 20.0)

        world.each(one, range(size))
        return flats

    large, least, tree = sizes.MESH_PIECE_BYTES, sizes.LEAST_MESH_PIECE_BYTES, sizes.TREE_PIECE_BYTES
    try:
        assert all(same(o, expected) for o in run(lambda g, t: doubling_walks.all_reduce(g, t, add, TAG)))
        assert all(same(o, expected) for o in run(lambda g, t: walks.all_reduce(g, t, add, TAG)))
        sizes.MESH_PIECE_BYTES = sizes.LEAST_MESH_PIECE_BYTES = sizes.TREE_PIECE_BYTES = 4096
        assert all(same(o, expected) for o in run(lambda g, t: walks.all_reduce(g, t, add, TAG)))
        assert all(same(o, expected) for o in run(lambda g, t: tree_walks.all_reduce(g, t, add, TAG)))
        assert same(run(lambda g, t: walks.reduce(g, t, 1, add, TAG))[1], expected)
        kept = run(lambda g, t: walks.reduce_scatter(g, t, outs[g.me], bounds, add, TAG))
        assert all(map(same, outs, [expected[a:b].clone() for a, b in bounds]))
        assert all(map(same, kept, parts)), "the inputs are left as they are"
    finally:
        sizes.MESH_PIECE_BYTES, sizes.LEAST_MESH_PIECE_BYTES, sizes.TREE_PIECE_BYTES = large, least, tree


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_slices_cover_everything_once(count: int, size: int) -> None:
    """The slices are consecutive runs from the first element to the last."""
    cut = walks.slices(count, size)
    assert len(cut) == size
    assert [a for a, _ in cut] == [0, *(b for _, b in cut[:-1])]
    assert cut[-1][1] == count


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_pieces_cover_a_run_and_stay_small(length: int, item: int) -> None:
    """No piece is larger than the staging memory that it must fit into."""
    cut = list(walks.pieces(5, 5 + length, item, sizes.LEAST_MESH_PIECE_BYTES))
    assert sum(b - a for a, b in cut) == length
    assert all((b - a) * item <= sizes.LEAST_MESH_PIECE_BYTES for a, b in cut)


def test_nothing_to_move_needs_no_memory(world: MakeWorld) -> None:
    """Empty tensors go through every reduction, whole or tree."""
    made = world(3)
    for body in (doubling_walks.all_reduce, walks.all_reduce, tree_walks.all_reduce):
        on_all(made, lambda group, body=body: body(group, torch.empty(0), add, TAG))
    on_all(made, lambda group: walks.reduce(group, torch.empty(0), 0, add, TAG))
    on_all(made, lambda group: walks.broadcast(group, torch.empty(0), 0, TAG))
    made.check()
