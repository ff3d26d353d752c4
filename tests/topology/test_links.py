"""Links and topologies: which pairs a group needs, and that they are enough for its walks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.strategies import groups_of, layouts, reseatings
from trainmover.topology import (
    Layout,
    Link,
    boundary_links,
    bracket,
    group_links,
    guardian_of,
    links_at,
    links_of,
    merges,
    merges_of,
    restricted,
)
from trainmover.topology.groups import as_groups
from trainmover.topology.links import BOUNDARY, COLLECTIVE, MESH_LIMIT, WORLD, edges, link, seated


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_link_has_no_direction(a: int, b: int) -> None:
    """Both ends name the same link, and each finds the other."""
    if a == b:
        with pytest.raises(ValueError, match=f"rank {a} needs no link to itself"):
            link("g", "c", a, b)
        return
    item = link("g", "c", a, b)
    assert item == link("g", "c", b, a)
    assert item.low < item.high
    assert (item.other(a), item.other(b)) == (b, a)


def test_prints_itself_readably() -> None:
    """A link in a message shows group, channel and both ranks."""
    assert str(link("data", COLLECTIVE, 7, 2)) == "data/collective 2-7"


def test_links_have_an_order() -> None:
    """Links sort by group, channel and ranks, so every list of them is the same everywhere."""
    items = [link("b", "c", 0, 1), link("a", "d", 0, 1), link("a", "c", 1, 2), link("a", "c", 0, 2)]
    assert [str(item) for item in sorted(items)] == ["a/c 0-2", "a/c 1-2", "a/d 0-1", "b/c 0-1"]


@pytest.mark.parametrize("size", [1, 2, 3, MESH_LIMIT])
def test_small_groups_are_a_full_mesh(size: int) -> None:
    """Up to the mesh limit every pair is one hop apart."""
    ranks = tuple(range(10, 10 + size))
    assert set(edges(ranks, 1)) == set(itertools.combinations(ranks, 2))


@given(st.integers(MESH_LIMIT + 1, 80), st.integers(1, 20))
def test_large_groups_have_the_tree_and_the_ring(size: int, ranks_per_machine: int) -> None:
    """Above the mesh limit there are the canonical tree and one ring, and without layers no more."""
    ranks = tuple(range(size))
    tree = merges(tuple(rank // ranks_per_machine for rank in ranks))
    ring = [(rank, (rank + 1) % size) for rank in ranks]
    plain = {(min(pair), max(pair)) for pair in (*tree, *ring)}
    assert set(edges(ranks, ranks_per_machine, layered=False)) == plain
    assert len(plain) < 2 * size
    if ranks_per_machine in (1, *range(MESH_LIMIT + 1, 99)) or size % ranks_per_machine:
        assert set(edges(ranks, ranks_per_machine)) == plain


@given(st.integers(2, 20), st.integers(2, 8), st.randoms())
def test_even_machines_have_meshes_and_lanes(machines: int, per_machine: int, luck: random.Random) -> None:
    """With the same number of members on each machine, whatever their order, a large group is layered.

    Every two members of a machine have a link, and so have the members in the same place of two machines
    wherever their reduction needs it; beside that there is only the ring.
    """
    ranks = list(range(machines * per_machine))
    luck.shuffle(ranks)
    found = set(edges(tuple(ranks), per_machine))
    inside = [
        [rank for rank in ranks if rank // per_machine == m] for m in {r // per_machine: 0 for r in ranks}
    ]
    wanted = {frozenset(pair) for cell in inside for pair in itertools.combinations(cell, 2)}
    for lane in zip(*inside, strict=True):
        places = tuple(range(machines))
        pairs = itertools.combinations(places, 2) if machines <= MESH_LIMIT else merges(places)
        wanted |= {frozenset((lane[i], lane[j])) for i, j in pairs}
    have = {frozenset(pair) for pair in found}
    ring = {frozenset(pair) for pair in zip(ranks, (*ranks[1:], ranks[0]), strict=True)}
    assert wanted <= have
    if len(ranks) > MESH_LIMIT:
        assert have == wanted | ring


@given(st.data(), layouts(max_machines=16))
def test_no_pair_twice(data: st.DataObject, layout: Layout) -> None:
    """A topology names each pair once, whatever the order of the group's ranks."""
    ranks = tuple(data.draw(st.permutations(range(layout.world_size))))
    pairs = [frozenset(pair) for pair in edges(ranks, layout.ranks_per_machine)]
    assert len(pairs) == len(set(pairs))
    assert all(len(pair) == 2 for pair in pairs)


@given(st.data(), layouts(max_machines=16))
def test_the_canonical_walk_finds_its_links(data: st.DataObject, layout: Layout) -> None:
    """Every merge of the reduction and every step of the ring runs over a link that exists."""
    size = data.draw(st.integers(1, layout.world_size))
    ranks = tuple(data.draw(st.permutations(range(layout.world_size)))[:size])
    links = group_links("g", COLLECTIVE, ranks, layout.ranks_per_machine)
    for into, source in merges(tuple(layout.position_of(rank) for rank in ranks)):
        assert link("g", COLLECTIVE, ranks[into], ranks[source]) in links
    for here, there in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
        assert here == there or link("g", COLLECTIVE, here, there) in links


def test_links_per_rank_stay_few_at_scale() -> None:
    """In a group of 4,096 ranks nobody holds more links than a machine, a tree and a ring need."""
    degree: dict[int, int] = {}
    for a, b in edges(tuple(range(4096)), 8):
        degree[a] = degree.get(a, 0) + 1
        degree[b] = degree.get(b, 0) + 1
    assert set(degree) == set(range(4096))
    assert max(degree.values()) <= 7 + 9 + 2, "seven neighbours, a lane's tree of 512, a ring"


@given(layouts())
def test_the_boundary_reaches_every_guardian(layout: Layout) -> None:
    """Each rank has a direct link to the rank that keeps its private state."""
    world, per_machine = layout.world_size, layout.ranks_per_machine
    links = boundary_links(world, per_machine)
    assert all((item.group, item.channel) == (WORLD, BOUNDARY) for item in links)
    for rank in range(world):
        guardian = guardian_of(rank, world, per_machine)
        assert guardian == rank or link(WORLD, BOUNDARY, rank, guardian) in links


def test_the_boundary_of_one_rank_is_empty() -> None:
    """A world of one needs no links."""
    assert boundary_links(1, 1) == frozenset()


def test_a_large_boundary_holds_guardian_links_too() -> None:
    """Above the mesh limit the guardian's link is added to tree and ring."""
    plain = {link(WORLD, BOUNDARY, a, b) for a, b in edges(tuple(range(64)), 4, layered=False)}
    assert plain < boundary_links(64, 4)
    assert link(WORLD, BOUNDARY, 5, 9) in boundary_links(64, 4) - plain


@given(st.data(), layouts())
def test_links_of_a_layout(data: st.DataObject, layout: Layout) -> None:
    """A layout's links are the boundary's and each group's, and depend on the ranks alone."""
    groups = data.draw(groups_of(layout))
    links = links_of(layout, groups)
    expected = set(boundary_links(layout.world_size, layout.ranks_per_machine))
    for name, ranks in groups.items():
        expected |= group_links(name, COLLECTIVE, ranks, layout.ranks_per_machine)
    assert links == expected
    renamed = Layout(99, tuple(f"x{machine}" for machine in layout.machines), layout.ranks_per_machine)
    assert links_of(renamed, groups) == links


def test_groups_do_not_share_links() -> None:
    """Two groups over the same ranks have links of their own: their frames cannot mix."""
    layout = Layout(1, ("m0", "m1"), 1)
    links = links_of(layout, {"a": (0, 1), "b": (0, 1)})
    assert links == {
        Link("world", "boundary", 0, 1),
        Link("a", "collective", 0, 1),
        Link("b", "collective", 0, 1),
    }


def test_seats_name_the_machines() -> None:
    """A seated link says which machine holds each end."""
    (item,) = seated(Layout(1, ("m7", "m3"), 2), [link("g", "c", 3, 1)])
    assert (item.low_machine, item.high_machine) == ("m7", "m3")


@given(reseatings())
def test_who_is_absent_has_no_link_and_the_rest_can_walk(
    case: tuple[Layout, Layout, Mapping[str, tuple[int, ...]]],
) -> None:
    """With vacant seats what is left of a walk has its links, and a rank finds its own alone."""
    layout, _, groups = case
    per_machine, vacant = layout.ranks_per_machine, layout.vacant
    whole = links_of(layout, groups)
    for rank in layout.present:
        mine = {item for item in whole if rank in (item.low, item.high)}
        assert links_at(rank, layout.world_size, per_machine, as_groups(groups), vacant) == mine
    for name, ranks in groups.items():
        here = tuple(m for m, rank in enumerate(ranks) if rank // per_machine not in vacant)
        if not here:
            continue
        tree = restricted(bracket(tuple(rank // per_machine for rank in ranks)), here)
        for into, source in merges_of(tree):
            assert link(name, COLLECTIVE, ranks[here[into]], ranks[here[source]]) in whole
    for rank in layout.present:
        guardian = layout.guardian(rank)
        assert guardian == rank or link(WORLD, BOUNDARY, rank, guardian) in whole
