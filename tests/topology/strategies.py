"""Hypothesis strategies for layouts, groups and replacements; used by the tests beside this file."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from trainmover.topology import Grid, Groups, Layout


def positions(max_size: int = 40) -> st.SearchStrategy[tuple[int, ...]]:
    """Positions of a group's members by group rank, in any order and any mix."""
    return st.lists(st.integers(0, 12), min_size=1, max_size=max_size).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, max_machines: int = 12, max_ranks: int = 4) -> Layout:
    """A layout of up to ``max_machines * max_ranks`` ranks."""
    machines = draw(st.integers(1, max_machines))
    names = draw(st.permutations([f"m{i}" for i in range(machines)]))
    return Layout(draw(st.integers(0, 50)), tuple(names), draw(st.integers(1, max_ranks)))


@st.composite
def groups_of(draw: st.DrawFn, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Some process groups over a layout's ranks; each keeps the order it was drawn in."""
    ranks = st.permutations(range(layout.world_size))
    sizes = draw(st.lists(st.integers(1, layout.world_size), max_size=3))
    return {f"g{i}": tuple(draw(ranks)[:size]) for i, size in enumerate(sizes)}


@st.composite
def compact_groups_of(draw: st.DrawFn, layout: Layout) -> Groups:
    """Groups in up to two grids, over all ranks or some, with lists beside them."""
    grids = []
    for letters in draw(st.sampled_from([(), ("abc",), ("abc", "xyz")])):
        first = draw(st.integers(0, layout.world_size - 1))
        room, sizes = layout.world_size - first, []
        for _ in letters:
            sizes.append(draw(st.integers(1, room)))
            room //= sizes[-1]
        runs = [tuple(letters[i:j]) for i in range(3) for j in range(i + 1, 4)]
        axes = draw(st.lists(st.sampled_from(runs), unique=True))
        sizes = draw(st.permutations(sizes))
        grids.append(Grid(tuple(zip(letters, sizes, strict=True)), tuple(axes), first))
    return Groups(draw(groups_of(layout)), grids)


@st.composite
def replacements(draw: st.DrawFn) -> tuple[Layout, Layout, Mapping[str, tuple[int, ...]]]:
    """An old layout, the one that follows it, and the groups of the job, in either form."""
    old = draw(layouts())
    leavers = draw(st.lists(st.sampled_from(old.machines), unique=True, max_size=len(old.machines)))
    changes = {leaver: f"s{i}" for i, leaver in enumerate(leavers)}
    groups = draw(st.one_of(groups_of(old), compact_groups_of(old)))
    return old, old.replaced(old.epoch + draw(st.integers(1, 3)), changes), groups


@st.composite
def reseatings(draw: st.DrawFn) -> tuple[Layout, Layout, Mapping[str, tuple[int, ...]]]:
    """Two layouts of the same seats, of which any may be vacant in either but not all, and the groups."""
    full = draw(layouts(max_machines=24))
    groups = draw(st.one_of(groups_of(full), compact_groups_of(full)))
    seats = range(len(full.machines))
    machine = st.sampled_from(["", "", "stays", "stays", "new"])
    both = []
    for number in range(2):
        names = {"": "", "stays": "m{}", "new": f"n{number}-{{}}"}
        chosen = [names[draw(machine)].format(seat) for seat in seats]
        chosen[draw(st.sampled_from(seats))] = f"there-{number}"
        both.append(Layout(full.epoch + number, tuple(chosen), full.ranks_per_machine))
    return both[0], both[1], groups
