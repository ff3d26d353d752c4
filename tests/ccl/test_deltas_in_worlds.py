"""The delta of two layouts, carried out by real link tables: random worlds, groups and changes of mind.

What :func:`trainmover.topology.delta` says of a change is held against what the tables of all ranks
do: after a switch each has exactly the links of the new layout, those that the delta does not name
are the same connections as before, and the numbers of links swapped and kept are the delta's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.ccl.worlds import GROUP, Member, World, sum_call
from tests.waiting import wait_until
from trainmover.ccl.connection import Connection
from trainmover.topology import Groups, Layout, delta, links_of
from trainmover.topology.links import Link, links_at, seated

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: a failure may be a wait in vain, and there would be very many of them."""

Held = dict[int, dict[Link, Connection]]


@dataclass(frozen=True)
class Change:
    """Machines on some seats are replaced, all at once; or that is prepared and then given up."""

    seats: tuple[int, ...]
    carried_out: bool


@dataclass(frozen=True)
class Case:
    """A job and what happens to it."""

    machines: int
    per_machine: int
    groups: dict[str, tuple[int, ...]]
    changes: tuple[Change, ...]

    @property
    def layout(self) -> Layout:
        """The layout of its first epoch."""
        return Layout(1, tuple(f"m{seat}" for seat in range(self.machines)), self.per_machine)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to four machines of up to two ranks, in some groups, with up to three changes."""
    machines, per_machine = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    size = machines * per_machine
    ranks = st.permutations(range(size))
    sizes = draw(st.lists(st.integers(1, size), max_size=2))
    groups = {f"g{i}": tuple(draw(ranks)[:count]) for i, count in enumerate(sizes)}
    seats = st.lists(st.integers(0, machines - 1), unique=True, max_size=machines).map(tuple)
    changes = draw(st.lists(st.builds(Change, seats, st.booleans()), min_size=1, max_size=3))
    return Case(machines, per_machine, groups, tuple(changes))


@contextmanager
def world_of(case: Case) -> Iterator[World]:
    """The case's world in its first epoch; its threads end with the block."""
    made = World(case.machines * case.per_machine, case.per_machine, groups=case.groups)
    try:
        made.switch()
        yield made
    finally:
        made.stop()


def held(world: World, ranks: Sequence[int]) -> Held:
    """Every connection in use on these ranks."""
    return {rank: world[rank].connections() for rank in ranks}


def all_right(world: World) -> None:
    """Sums over every group come out right, with nobody's epoch broken."""
    world.check()
    for name, ranks in world.groups.items():
        values = {rank: torch.full((3,), float(rank)) for rank in ranks}
        for future in [world[rank].start(sum_call(value), name) for rank, value in values.items()]:
            future.wait()
        assert all(value.tolist() == [float(sum(ranks))] * 3 for value in values.values())
    assert not any(member.engine.broken for member in world.members)


def newcomers(world: World, seats: Sequence[int]) -> list[Member]:
    """Newcomers take the seats' ranks; returns who sat there."""
    places = [
        seat * world.ranks_per_machine + slot for seat in seats for slot in range(world.ranks_per_machine)
    ]
    return [world.replace(rank) for rank in places]


def carry_out(world: World, old: Layout, change: Change) -> Layout:
    """A switch, held against the delta."""
    new = old.replaced(old.epoch + 1, {old.machines[seat]: f"s{old.epoch}-{seat}" for seat in change.seats})
    groups = Groups(world.groups)
    expected = delta(old, new, groups)
    fresh = {item.link for item in expected.added}
    leavers = newcomers(world, change.seats)
    gone = {member.rank for member in leavers}
    stayers = [rank for rank in range(world.size) if rank not in gone]
    before = held(world, stayers)
    counts = world.switch()
    after = held(world, range(world.size))
    for rank, links in after.items():
        assert set(links) == links_at(rank, world.size, world.ranks_per_machine, groups)
    for rank in stayers:
        kept = {item for item, connection in after[rank].items() if connection is before[rank].get(item)}
        assert kept == set(after[rank]) - fresh
    assert sum(count["swapped"] for count in counts) == 2 * len(expected.added)
    assert sum(count["kept"] for count in counts) == 2 * (expected.total - len(expected.added))
    every = {item for links in after.values() for item in links}
    assert seated(new, every) == expected.apply(seated(old, links_of(old, groups)))
    for member in leavers:
        old_links = [c for item, c in member.connections().items() if item.other(member.rank) in stayers]
        wait_until(lambda old_links=old_links: all(c.ended for c in old_links), "leavers are cut off")
    return new


def give_up(world: World, change: Change) -> None:
    """A switch is prepared and then is not carried out: everything is as it was."""
    places = range(world.size)
    before, epoch = held(world, places), world.epoch + 1
    sat = newcomers(world, change.seats)
    wait_until(world.prepare(epoch), "prepared")
    for member in sat:
        world[member.rank].kill()
        world.members[member.rank] = member
        world.gone.remove(member)
    for member in world.members:
        member.engine.ask(lambda m=member: m.table.abandon(epoch))
    wait_until(
        lambda: not any(member.engine.ask(lambda m=member: m.table._aside) for member in world.members),
        "what was put aside is gone",
    )
    assert held(world, places) == before
    world.epoch = epoch  # an epoch that was given up never comes


@settings(max_examples=30, deadline=None, phases=PHASES)
@given(cases())
def test_tables_do_what_the_delta_says(case: Case) -> None:
    """After every change each rank has the new layout's links, and the old connections where none changed."""
    with world_of(case) as made:
        layout = case.layout
        for change in case.changes:
            if change.carried_out:
                layout = Layout(made.epoch, layout.machines, layout.ranks_per_machine)
                layout = carry_out(made, layout, change)
            else:
                give_up(made, change)
            all_right(made)


def test_a_change_of_mind_and_then_another_newcomer() -> None:
    """After an abort training goes on over the old links; then others come, to this seat and the next."""
    case = Case(4, 2, {"odd": (1, 3, 5, 7)}, ())
    with world_of(case) as made:
        give_up(made, Change((1,), carried_out=False))
        all_right(made)
        layout = Layout(made.epoch, case.layout.machines, 2)
        carry_out(made, layout, Change((2, 1), carried_out=True))
        all_right(made)
        assert made.groups[GROUP] == tuple(range(8))
