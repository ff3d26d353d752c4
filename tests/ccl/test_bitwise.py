"""Every reduction has the bits of the one reference, whatever carries it out.

The table ``ALGORITHMS`` names every way in which a reduction can be carried out; a new one gets a row
here.  At every group size from 1 to 17 each is run with members on any machines, on sizes below
and above those at which algorithms and pieces change, in several dtypes, and compared bit for bit
with :func:`trainmover.topology.bracket.reduce_in_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.ccl.worlds import GROUP, LIMIT, SIZES, Member, World
from trainmover.ccl import (
    algorithms,
    doubling_walks,
    halving_walks,
    layered_walks,
    shared_walks,
    tree_walks,
    walks,
)
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine, combine_of
from trainmover.ccl.tags import tag_of
from trainmover.ccl.view import Group
from trainmover.topology.bracket import bracket, cells, reduce_in_order
from trainmover.topology.members import MESH_LIMIT, is_layered

TAG = tag_of("all_reduce")
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int32)
COUNTS = (1, 5, 16, 17, 1000, 4097, 20_011, 70_001)
"""From one element to more than fits a frame, a piece of a large group, or what goes through windows."""


class FinePieces(Group):
    """A group whose reductions move in small pieces."""

    @property
    def piece_bytes(self) -> int:
        return 4096


@dataclass(frozen=True)
class Case:
    """One reduction."""

    positions: tuple[int, ...]
    kind: torch.dtype
    count: int
    root: int
    operation: str
    seed: int

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.positions)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Uneven runs, one for each member."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        cuts = torch.randint(0, self.count + 1, (self.size - 1,), generator=generator).sort().values.tolist()
        return list(zip([0, *cuts], [*cuts, self.count], strict=True))

    def parts(self) -> list[torch.Tensor]:
        """What the members bring: numbers whose combination depends on its brackets."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.kind == torch.int32:
            return [
                torch.randint(-9, 9, (self.count,), generator=generator, dtype=self.kind)
                for _ in self.positions
            ]
        real = torch.complex64 if self.kind.is_complex else torch.float32
        scale = 10.0 if self.operation == "SUM" else 1.0
        found = []
        for member in range(self.size):
            part = torch.randn(self.count, generator=generator, dtype=real) * scale ** (member % 4)
            which = torch.randint(0, 8, (self.count,), generator=generator)
            part[which == 0], part[which == 1] = 0.0, -0.0
            found.append(part.to(self.kind))
        return found


@st.composite
def cases(draw: st.DrawFn, size: int) -> Case:
    """Members on any machines in any order, or equally many on each."""
    machines = draw(st.integers(1, size))
    even = [members % machines for members in range(size)]
    positions = st.one_of(
        st.lists(st.integers(0, machines - 1), min_size=size, max_size=size), st.permutations(even)
    ).map(tuple)
    kind = draw(st.sampled_from(KINDS))
    operations = ["SUM", "PRODUCT"] if kind.is_complex else ["SUM", "PRODUCT", "MIN", "MAX"]
    return Case(
        draw(positions),
        kind,
        draw(st.sampled_from(COUNTS)),
        draw(st.integers(0, size - 1)),
        draw(st.sampled_from(operations)),
        draw(st.integers(0, 2**16)),
    )


Body = Callable[[Group, torch.Tensor, Case, Combine], Steps]


def _shared_all_reduce(group: Group, flat: torch.Tensor, case: Case, combine: Combine) -> Steps:
    room = yield from shared_walks.enter(group, TAG)
    assert room is not None
    yield from shared_walks.all_reduce(room, flat, combine)


def _shared_reduce(group: Group, flat: torch.Tensor, case: Case, combine: Combine) -> Steps:
    room = yield from shared_walks.enter(group, TAG)
    assert room is not None
    yield from shared_walks.reduce(room, flat, case.root, combine)


def _reduce_scatter(group: Group, flat: torch.Tensor, case: Case, combine: Combine) -> Steps:
    start, end = case.bounds[group.me]
    output = torch.empty(end - start, dtype=flat.dtype)
    yield from walks.reduce_scatter(group, flat.clone(), output, case.bounds, combine, TAG)
    flat[start:end] = output


def _shared_reduce_scatter(group: Group, flat: torch.Tensor, case: Case, combine: Combine) -> Steps:
    start, end = case.bounds[group.me]
    output = torch.empty(end - start, dtype=flat.dtype)
    room = yield from shared_walks.enter(group, TAG)
    assert room is not None
    yield from shared_walks.reduce_scatter(room, flat.clone(), output, case.bounds, combine)
    flat[start:end] = output


@dataclass(frozen=True)
class Algorithm:
    """One way to reduce.

    Attributes:
        body: makes the walk; ``flat`` is the own part and becomes the result, where ``holds`` says so.
        holds: "all" members have the whole result, the "root", or each its "run".
        beside: works between ranks that share windows.
        own_links: runs over the links that the topology gives a group of this size.
        layered: works with equally many members on each of several machines.
        even: works where every bracket has two halves of the same size.
    """

    name: str
    body: Body
    holds: str = "all"
    beside: bool = False
    own_links: bool = True
    layered: bool = False
    even: bool = False

    def fits(self, case: Case) -> bool:
        """Whether it can carry this reduction out."""
        if self.layered and not is_layered([len(cell) for cell in cells(case.positions)]):
            return False
        if self.even and not (
            case.size <= MESH_LIMIT and halving_walks.fits(bracket(case.positions), case.size)
        ):
            return False
        return not (self.beside or self.layered) or 1 < case.size <= MESH_LIMIT


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("mesh", lambda g, t, c, f: walks.all_reduce(g, t, f, TAG)),
    Algorithm("mesh reduce", lambda g, t, c, f: walks.reduce(g, t, c.root, f, TAG), "root"),
    Algorithm("mesh reduce_scatter", _reduce_scatter, "run"),
    Algorithm("pairs", lambda g, t, c, f: walks.all_reduce(g.pairs, t, f, TAG), own_links=False),
    Algorithm(
        "pairs reduce_scatter", lambda g, t, c, f: _reduce_scatter(g.pairs, t, c, f), "run", own_links=False
    ),
    Algorithm("doubling", lambda g, t, c, f: doubling_walks.all_reduce(g, t, f, TAG)),
    Algorithm("halving", lambda g, t, c, f: halving_walks.all_reduce(g, t, f, TAG), even=True),
    Algorithm("tree", lambda g, t, c, f: tree_walks.all_reduce(g, t, f, TAG)),
    Algorithm("layers", lambda g, t, c, f: layered_walks.all_reduce(g, t, f, TAG), layered=True),
    Algorithm("tree reduce", lambda g, t, c, f: tree_walks.reduce(g, t, c.root, f, TAG), "root"),
    Algorithm("chosen", lambda g, t, c, f: algorithms.all_reduce(g, t, f, TAG)),
    Algorithm("chosen reduce", lambda g, t, c, f: algorithms.reduce(g, t, c.root, f, TAG), "root"),
    Algorithm("windows", _shared_all_reduce, beside=True),
    Algorithm("windows reduce", _shared_reduce, "root", beside=True),
    Algorithm("windows reduce_scatter", _shared_reduce_scatter, "run", beside=True),
)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[int, bool], World]]:
    """Worlds by size, made once; the last ones are kept."""
    made: dict[tuple[int, bool], World] = {}

    def get(size: int, beside: bool) -> World:
        if (size, beside) not in made:
            for world in made.values():
                if world.size != size:
                    world.stop()
            for key in [key for key in made if key[0] != size]:
                del made[key]
            made[size, beside] = World(size, size if beside else 1)
            made[size, beside].switch()
        return made[size, beside]

    yield get
    for world in made.values():
        world.stop()


def bits(tensor: torch.Tensor) -> bytes:
    """The tensor's memory."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def reduced(world: World, algorithm: Algorithm, case: Case, kind: type[Group]) -> list[torch.Tensor]:
    """The members' tensors after the algorithm has run on all of them."""
    flats = case.parts()
    ranks, combine = tuple(range(case.size)), combine_of(case.operation)
    on_demand = case.size > MESH_LIMIT and algorithm.own_links

    def one(member: Member) -> None:
        group = kind(member.engine, GROUP, "collective", ranks, case.positions, member.rank)
        group = group.pairs if on_demand else group
        body = lambda: algorithm.body(group, flats[member.rank], case, combine)  # noqa: E731
        member.engine.run(GROUP, algorithm.name, body, LIMIT)

    world.each(one)
    return flats


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_algorithm_has_the_same_bits(worlds: Callable[[int, bool], World], size: int) -> None:
    """Whole, in runs or at the root only, through sockets or windows: the bits of the reference."""

    @settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    @given(case=cases(size), kind=st.sampled_from([Group, FinePieces]))
    def hold(case: Case, kind: type[Group]) -> None:
        combine = combine_of(case.operation)

        def combined(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(left)
            combine(left, right, out)
            return out

        expected = reduce_in_order(case.positions, case.parts(), combined)
        for algorithm in ALGORITHMS:
            if not algorithm.fits(case):
                continue
            found = reduced(worlds(size, algorithm.beside), algorithm, case, kind)
            for member, flat in enumerate(found):
                if algorithm.holds == "run":
                    start, end = case.bounds[member]
                    assert bits(flat[start:end]) == bits(expected[start:end]), algorithm.name
                elif algorithm.holds == "all" or member == case.root:
                    assert bits(flat) == bits(expected), algorithm.name

    hold()
