"""Hypothesis strategies for layouts, groups and replacements; used by the tests beside this file."""

from __future__ import annotations

from hypothesis import strategies as st

from trainmover.topology import Layout


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
def replacements(draw: st.DrawFn) -> tuple[Layout, Layout, dict[str, tuple[int, ...]]]:
    """An old layout, the one that follows it, and the groups of the job."""
    old = draw(layouts())
    leavers = draw(st.lists(st.sampled_from(old.machines), unique=True, max_size=len(old.machines)))
    changes = {leaver: f"s{i}" for i, leaver in enumerate(leavers)}
    return old, old.replaced(old.epoch + draw(st.integers(1, 3)), changes), draw(groups_of(old))
