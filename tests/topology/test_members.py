"""One member's links: what it finds by itself is what a walk of the whole group gives it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.topology import Listed, Row, boundary_links, merges
from trainmover.topology.links import edges
from trainmover.topology.members import (
    MESH_LIMIT,
    Members,
    boundary_partners,
    boundary_total,
    pairs_in,
    partners,
    tree_partners,
    twos,
)

Pairs = set[tuple[int, int]]


def whole(ranks: tuple[int, ...], ranks_per_machine: int) -> Pairs:
    """All links of a group as the bracketing of the whole group has them, by member."""
    index = {rank: number for number, rank in enumerate(ranks)}
    found = ((index[a], index[b]) for a, b in edges(ranks, ranks_per_machine))
    return {(min(pair), max(pair)) for pair in found}


def local(members: Members, ranks_per_machine: int) -> Pairs:
    """All links of a group as its members find them one by one."""
    return {
        (min(index, other), max(index, other))
        for index in range(members.size)
        for other in partners(members, index, ranks_per_machine)
    }


@pytest.mark.parametrize("size", range(1, 301))
def test_the_tree_is_that_of_the_bracketing(size: int) -> None:
    """Walking down the recursion to one part names exactly the merges that this part is in."""
    expected: dict[int, set[int]] = {part: set() for part in range(size)}
    for into, source in merges(tuple(range(size))):
        expected[into].add(source)
        expected[source].add(into)
    assert {part: set(tree_partners(size, part)) for part in range(size)} == expected


@pytest.mark.parametrize("size", range(1, 301))
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_size_with_random_machines(size: int, seed: int) -> None:
    """For each size from 1 to 300 and machines of any shape, one by one gives the edges of the whole."""
    luck = random.Random(seed)
    ranks_per_machine = luck.randint(1, 12)
    ranks = luck.sample(range(size + luck.choice((0, 5, 200))), size)
    if luck.random() < 0.5:
        ranks.sort()
    members = Listed(ranks)
    expected = whole(members.ranks, ranks_per_machine)
    assert local(members, ranks_per_machine) == expected
    assert pairs_in(members, ranks_per_machine) == len(expected)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 20), st.integers(2, 17), st.integers(1, 3), st.randoms())
def test_layers_one_by_one(machines: int, width: int, apart: int, luck: random.Random) -> None:
    """Where all machines have the same number of members, in any order, each finds its mesh and its lane."""
    per_machine = width * apart
    ranks = [m * per_machine + place * apart for m in range(machines) for place in range(width)]
    row, listed = Row(0, apart, len(ranks)), Listed(ranks)
    expected = whole(listed.ranks, per_machine)
    assert local(row, per_machine) == local(listed, per_machine) == expected
    assert pairs_in(row, per_machine) == pairs_in(listed, per_machine) == len(expected)
    mixed = Listed(luck.sample(ranks, len(ranks)))
    assert local(mixed, per_machine) == whole(mixed.ranks, per_machine)
    assert mixed.even_width(per_machine) == width


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 300), st.integers(1, 16))
def test_rows_by_arithmetic(first: int, stride: int, size: int, ranks_per_machine: int) -> None:
    """A row answers as the list of its ranks does: members, cells, links and their number."""
    row, listed = Row(first, stride, size), Listed(range(first, first + size * stride, stride))
    assert row.ranks == listed.ranks
    assert row.cells(ranks_per_machine) == listed.cells(ranks_per_machine)
    for index in range(size):
        assert row.rank(index) == listed.rank(index)
        assert row.index(listed.rank(index)) == listed.index(listed.rank(index)) == index
        cell, place, width = row.cell_of(index, ranks_per_machine)
        assert (cell, place, width) == listed.cell_of(index, ranks_per_machine)
        assert row.member(cell, place, ranks_per_machine) == index
    assert local(row, ranks_per_machine) == whole(row.ranks, ranks_per_machine)
    assert pairs_in(row, ranks_per_machine) == len(whole(row.ranks, ranks_per_machine))
    widths = {row.cell_of(index, ranks_per_machine)[2] for index in range(size)}
    assert row.even_width(ranks_per_machine) in (None, *widths)
    assert row.even_width(ranks_per_machine) is None or len(widths) == 1


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12))
def test_the_boundary_one_by_one(machines: int, ranks_per_machine: int) -> None:
    """Each rank finds its own boundary links, and their number is known without them."""
    world = machines * ranks_per_machine
    links = boundary_links(world, ranks_per_machine)
    found = {
        (min(rank, other), max(rank, other))
        for rank in range(world)
        for other in boundary_partners(rank, world, ranks_per_machine)
    }
    assert found == {(item.low, item.high) for item in links}
    assert boundary_total(world, ranks_per_machine) == len(links)


def test_pairs_of_parts() -> None:
    """The number of brackets that hold two parts, written out, and far away."""
    assert [twos(size) for size in range(13)] == [0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 4]
    assert twos(2**40) == 2**39


def test_another_number_of_ranks_per_machine_divides_anew() -> None:
    """A list keeps its cells for one number of ranks per machine, and makes them again for another."""
    listed = Listed((0, 4, 1, 5))
    assert [listed.cells(k) for k in (4, 8, 4)] == [2, 1, 2]
    assert listed.cell_of(2, 4) == (0, 1, 2)


def test_one_member_of_a_huge_group_is_found_in_few_steps() -> None:
    """In a group of 2^40 ranks a member's links are found at once: nothing is walked."""
    row = Row(0, 1, 2**40)
    for rank in (0, 1, 2**39, 2**40 - 1):
        assert 2 <= len(partners(row, rank, 8)) <= 7 + 37 + 2
    assert pairs_in(row, 8) > 2**40 > MESH_LIMIT
