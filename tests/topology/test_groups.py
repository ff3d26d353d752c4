"""Groups given compactly: the same groups, by arithmetic instead of lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.strategies import compact_groups_of, layouts
from trainmover.errors import ConfigError
from trainmover.topology import Grid, Groups, Layout, links_at, links_of
from trainmover.topology.groups import as_groups

GRID = Grid((("pipeline", 2), ("data", 3), ("tensor", 2)))


def test_a_grid_written_out() -> None:
    """The last dimension varies fastest; a group is named after its axis and its lowest rank."""
    assert dict(Groups(grids=[GRID])) == {
        "pipeline:0": (0, 6),
        "pipeline:1": (1, 7),
        "pipeline:2": (2, 8),
        "pipeline:3": (3, 9),
        "pipeline:4": (4, 10),
        "pipeline:5": (5, 11),
        "data:0": (0, 2, 4),
        "data:1": (1, 3, 5),
        "data:6": (6, 8, 10),
        "data:7": (7, 9, 11),
        "tensor:0": (0, 1),
        "tensor:2": (2, 3),
        "tensor:4": (4, 5),
        "tensor:6": (6, 7),
        "tensor:8": (8, 9),
        "tensor:10": (10, 11),
    }


def test_an_axis_of_two_dimensions() -> None:
    """Dimensions that follow one another can be one axis: all their ranks are one group."""
    grid = Grid(GRID.dims, axes=(("pipeline", "data"), ("tensor",)), first=4)
    groups = Groups(grids=[grid])
    assert groups["pipeline.data:5"] == (5, 7, 9, 11, 13, 15)
    assert [name for name, _ in groups.of(6)] == ["pipeline.data:4", "tensor:6"]
    assert list(groups.of(3)) == []
    assert len(groups) == len(list(groups)) == 8


@settings(deadline=None)
@given(st.data(), layouts(max_machines=16))
def test_a_mapping_like_any_other(data: st.DataObject, layout: Layout) -> None:
    """Every group is found by its name and by each of its ranks, in the order of its ranks."""
    groups = data.draw(compact_groups_of(layout))
    plain = dict(groups)
    assert len(groups) == len(plain)
    for rank in range(layout.world_size):
        found = {name: members.ranks for name, members in groups.of(rank)}
        assert found == {name: ranks for name, ranks in plain.items() if rank in ranks}
    with pytest.raises(KeyError):
        groups["a:999"]


@settings(deadline=None)
@given(st.data(), layouts(max_machines=16, max_ranks=9))
def test_links_one_rank_at_a_time(data: st.DataObject, layout: Layout) -> None:
    """A rank's own links are those of the whole topology that end there, and the total is theirs."""
    groups = data.draw(compact_groups_of(layout))
    links = links_of(layout, groups)
    world, per_machine = layout.world_size, layout.ranks_per_machine
    for rank in range(world):
        found = links_at(rank, world, per_machine, groups)
        assert found == {item for item in links if rank in (item.low, item.high)}
    assert groups.links_total(world, per_machine) == len(links)
    assert groups.links_total(world, per_machine) == len(links), "counted once, the same for ever"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(17, 40), st.integers(1, 3), st.integers(1, 12), st.integers(0, 9))
def test_large_groups_that_sit_unevenly_are_counted(
    stride: int, size: int, blocks: int, per_machine: int, first: int
) -> None:
    """Rows that begin anywhere in a machine have different links; the total knows them all."""
    grid = Grid((("block", blocks), ("data", size), ("tensor", stride)), (("data",),), first)
    ranks = first + grid.ranks
    layout = Layout(1, tuple(f"m{i}" for i in range(-(-ranks // per_machine))), per_machine)
    groups = Groups(grids=[grid])
    assert groups.links_total(layout.world_size, per_machine) == len(links_of(layout, groups))


@pytest.mark.parametrize(
    ("dims", "axes", "message"),
    [
        ((), (), "different names"),
        ((("a", 2), ("a", 2)), (), "different names"),
        ((("a", 0),), (), "size 1 or more"),
        ((("a", 2), ("b", 2)), (("c",),), "no run of the dimensions a, b"),
        ((("a", 2), ("b", 2), ("c", 2)), (("a", "c"),), "no run"),
        ((("a", 2), ("b", 2)), (("b", "a"),), "no run"),
        ((("a", 2),), ((),), "no run"),
        ((("a", 2),), (("a",), ("a",)), "twice"),
    ],
)
def test_refuses_what_is_no_grid(
    dims: tuple[tuple[str, int], ...], axes: tuple[tuple[str, ...], ...], message: str
) -> None:
    """A grid that means nothing is refused with what is wrong."""
    with pytest.raises(ConfigError, match=message):
        Grid(dims, axes)
    with pytest.raises(ConfigError, match="rank 0 or later"):
        Grid((("a", 2),), first=-1)


def test_refuses_two_groups_of_one_name() -> None:
    """A name means one group: two grids do not share an axis, and a list does not hide a row."""
    with pytest.raises(ConfigError, match="along data"):
        Groups(grids=[GRID, Grid((("data", 4),), first=12)])
    with pytest.raises(ConfigError, match="data:1"):
        Groups({"data:1": (0, 1)}, [GRID])
    assert Groups({"data:2": (0, 1)}, [GRID])["data:2"] == (0, 1), "rank 2 begins no data group"


def test_a_plain_mapping_gets_its_indexes() -> None:
    """Small jobs pass a dict; what has indexes already is taken as it is."""
    groups = as_groups({"a": (0, 1)})
    assert as_groups(groups) is groups
    assert dict(groups) == {"a": (0, 1)}


def test_a_hundred_thousand_groups_take_no_room() -> None:
    """The groups of 131,072 ranks in three dimensions are made up as they are asked for."""
    groups = Groups(grids=[Grid((("pipeline", 16), ("data", 1024), ("tensor", 8)))])
    assert len(groups) == 8192 + 128 + 16384
    assert list(itertools.islice(groups, 2)) == ["pipeline:0", "pipeline:1"]
    assert groups["data:8199"] == tuple(range(8199, 16384, 8))
