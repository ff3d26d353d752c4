"""Groups with absent members: walks over those who are there, in what is left of the bracketing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest
import torch

from tests.ccl.test_walks import same, values
from tests.ccl.worlds import GROUP, Member, World, add, small_pieces
from trainmover.ccl import algorithms, walks
from trainmover.ccl.calls import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.tags import MESSAGE, tag_of
from trainmover.errors import LinkError
from trainmover.topology.bracket import bracket, reduce_along, restricted

T = TypeVar("T")
TAG = tag_of("all_reduce")

SHRUNK = [
    (2, 1, (1,)),
    (3, 1, (0,)),
    (4, 1, (1,)),
    (4, 1, (0, 3)),
    (4, 2, (1,)),
    (8, 1, (2,)),
    (12, 4, (1,)),
    (17, 1, (16,)),
    (20, 1, (0, 7, 8)),
    (24, 2, (3, 11)),
]
"""Ranks, ranks per machine, vacant seats: meshes, trees, layers, one machine that is left."""


class Shrunk(World):
    """A world in which nobody has some seats."""

    def __init__(self, size: int, ranks_per_machine: int, vacant: Sequence[int]) -> None:
        super().__init__(size, ranks_per_machine)
        self.present = [rank for rank in range(size) if rank // ranks_per_machine not in vacant]
        for member in self.members:
            member.comm.vacant = frozenset(vacant)

    def prepare(self, epoch: int, ranks: Sequence[int] | None = None) -> Callable[[], bool]:
        return super().prepare(epoch, self.present if ranks is None else ranks)

    def each(self, action: Callable[[Member], T], ranks: Sequence[int] | None = None) -> list[T]:
        return super().each(action, self.present if ranks is None else ranks)

    def stop(self) -> None:
        self.each(lambda member: member.stop(), range(self.size))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces of a few thousand elements."""
    small_pieces(monkeypatch)


@pytest.fixture(params=SHRUNK, ids=lambda case: f"{case[0]}x{case[1]}-{case[2]}")
def world(request: pytest.FixtureRequest) -> Iterator[Shrunk]:
    """Ranks that are connected, but for the absent ones, to which there is no link."""
    made = Shrunk(*request.param)
    made.switch()
    for rank in made.present:
        ends = {end for link in made[rank].connections() for end in (link.low, link.high)}
        assert ends <= set(made.present)
    yield made
    made.stop()


def in_order(world: Shrunk, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reference: the canonical bracketing without the absent leaves."""
    positions = tuple(rank // world.ranks_per_machine for rank in range(world.size))
    tree = restricted(bracket(positions), tuple(world.present))
    return reduce_along(tree, [parts[rank] for rank in world.present], torch.add)


def test_reductions_leave_the_absent_out(world: Shrunk) -> None:
    """Sums have the bits of the bracketing without the absent leaves, by every road and at every size."""
    for count in (1, 600, 20_000):
        parts = values(world.size, count, seed=count)
        expected = in_order(world, parts)
        everywhere, at_root, whole = ([part.clone() for part in parts] for _ in range(3))
        bounds, root = walks.slices(count, world.size), world.present[len(world.present) // 2]
        runs = [torch.empty(b - a) for a, b in bounds]

        def body(group: walks.Group) -> Steps:
            me = group.me
            yield from algorithms.all_reduce(group, everywhere[me], add, TAG)  # noqa: B023 - run at once
            yield from algorithms.reduce(group, at_root[me], root, add, TAG)  # noqa: B023
            yield from algorithms.reduce_scatter(group, whole[me], runs[me], bounds, add, TAG)  # noqa: B023

        world.each(lambda member: member.walk(body))
        assert all(same(everywhere[rank], expected) for rank in world.present), count
        assert same(at_root[root], expected), count
        for rank in world.present:
            a, b = bounds[rank]
            assert same(runs[rank], expected[a:b].clone()), count


def test_what_would_come_from_the_absent_is_zero(world: Shrunk) -> None:
    """Gathers and exchanges bring everybody's part, and zeros in the places of who is not there."""
    size, root = world.size, world.present[-1]
    parts = values(size, 700, seed=3)
    gathered = [[torch.ones(700) for _ in range(size)] for _ in range(size)]
    at_root = [torch.ones(700) for _ in range(size)]
    swapped = [[torch.ones(3) for _ in range(size)] for _ in range(size)]
    dealt = [torch.ones(700) for _ in range(size)]

    def body(group: walks.Group) -> Steps:
        me = group.me
        mine = [torch.tensor([1.0, me, other]) for other in range(size)]
        yield from algorithms.all_gather(group, parts[me], gathered[me], TAG)
        yield from algorithms.gather(group, parts[me], at_root if me == root else [], root, TAG)
        yield from algorithms.all_to_all(group, mine, swapped[me], TAG)
        yield from algorithms.scatter(group, parts if me == root else [], dealt[me], root, TAG)

    world.each(lambda member: member.walk(body))
    for other in range(size):
        there = other in world.present
        wanted = parts[other] if there else torch.zeros(700)
        assert same(at_root[other], wanted)
        for rank in world.present:
            assert same(gathered[rank][other], wanted)
            assert swapped[rank][other].tolist() == ([1.0, other, rank] if there else [0.0] * 3)
    assert all(same(dealt[rank], parts[rank]) for rank in world.present)


def test_a_broadcast_of_who_is_absent_is_the_first_one_s(world: Shrunk) -> None:
    """Replicas have the same to say, so the first member that is there speaks for an absent root."""
    parts = values(world.size, 5_000, seed=5)
    outs = [part.clone() for part in parts]
    root = next(rank for rank in range(world.size) if rank not in world.present)
    untouched = [part.clone() for part in parts]

    def body(group: walks.Group) -> Steps:
        yield from algorithms.broadcast(group, outs[group.me], root, TAG)
        yield from algorithms.reduce(group, untouched[group.me], root, add, TAG)
        yield from algorithms.gather(group, parts[group.me], [], root, TAG)

    world.each(lambda member: member.walk(body))
    assert all(same(outs[rank], parts[world.present[0]]) for rank in world.present)
    assert all(same(untouched[rank], parts[rank]) for rank in world.present)


def test_a_message_to_the_absent_is_an_error_that_says_so() -> None:
    """What depends on an absent rank alone cannot be made up: the call raises, and the epoch stays whole."""
    world = Shrunk(3, 1, (1,))
    try:
        world.switch()
        call = Call(MESSAGE, "tag 0", [], True, lambda group, tag: iter(()), peer=1)
        with pytest.raises(LinkError, match="a message of group 'g' needs rank 1, whose machine was lost"):
            world[0].comm.run(GROUP, call)
        assert not world[0].engine.broken
    finally:
        world.stop()


def test_members_come_and_go_between_epochs() -> None:
    """The same groups, with a member less in one epoch and all again in the next."""
    world = Shrunk(3, 1, ())
    try:
        for vacant in ((), (1,), ()):
            world.present = [rank for rank in range(3) if rank not in vacant]
            for rank in world.present:
                world[rank].comm.vacant = frozenset(vacant)
            world.switch()
            parts = values(3, 40, seed=len(vacant))
            outs = [part.clone() for part in parts]
            futures = [world[rank].all_reduce(outs[rank]) for rank in world.present]
            for future in futures:
                future.wait()
            assert all(same(outs[rank], in_order(world, parts)) for rank in world.present)
    finally:
        world.stop()
