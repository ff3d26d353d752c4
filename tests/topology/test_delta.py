"""The delta of two layouts: exactly what must change, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.steps import steps_of
from tests.topology.strategies import compact_groups_of, layouts, replacements, reseatings
from trainmover.errors import ConfigError
from trainmover.topology import Grid, Groups, Layout, delta, links_of
from trainmover.topology.groups import as_groups
from trainmover.topology.links import links_at, seated

Case = tuple[Layout, Layout, Mapping[str, tuple[int, ...]]]

OLD = Layout(1, ("m0", "m1", "m2"), 1)
GROUPS = {"data": (0, 1, 2)}


@given(replacements())
def test_applied_to_the_old_links_it_gives_the_new_ones(case: Case) -> None:
    """Dropping and adding what the delta says leads from the whole old set to the whole new set."""
    old, new, groups = case
    before, after = seated(old, links_of(old, groups)), seated(new, links_of(new, groups))
    change = delta(old, new, groups)
    assert change.apply(before) == after
    assert change.total == len(after)


@given(replacements())
def test_is_minimal(case: Case) -> None:
    """Nothing is dropped that stays and nothing is added that was there."""
    old, new, groups = case
    before, after = seated(old, links_of(old, groups)), seated(new, links_of(new, groups))
    change = delta(old, new, groups)
    assert change.dropped == before - after
    assert change.added == after - before


@given(replacements())
def test_links_among_stayers_are_untouched(case: Case) -> None:
    """Every changed link has an end on a joiner (added) or on a leaver (dropped)."""
    old, new, groups = case
    joiners, leavers = set(new.machines) - set(old.machines), set(old.machines) - set(new.machines)
    change = delta(old, new, groups)
    assert all({item.low_machine, item.high_machine} & joiners for item in change.added)
    assert all({item.low_machine, item.high_machine} & leavers for item in change.dropped)


@given(st.data(), layouts(max_machines=12, max_ranks=9))
def test_neighbours_that_leave_together(data: st.DataObject, old: Layout) -> None:
    """Several seats side by side, round the end too: the links between leavers are remade once."""
    size = len(old.machines)
    first, count = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    seats = [(first + number) % size for number in range(count)]
    groups = data.draw(compact_groups_of(old))
    new = old.replaced(old.epoch + 1, {old.machines[seat]: f"s{seat}" for seat in seats})
    before, after = seated(old, links_of(old, groups)), seated(new, links_of(new, groups))
    change = delta(old, new, groups, seats=seats)
    assert (change.added, change.dropped) == (after - before, before - after)
    assert change == delta(old, new, groups) == delta(old, new, dict(groups))


@settings(deadline=None)
@given(replacements())
def test_no_more_than_the_links_of_who_changes(case: Case) -> None:
    """At most the links of leavers are dropped and those of joiners made; counted from their ranks alone."""
    old, new, groups = case
    indexed, change = as_groups(groups), delta(old, new, groups)
    joiners, leavers = set(new.machines) - set(old.machines), set(old.machines) - set(new.machines)

    def links_of_ranks(layout: Layout, machines: set[str]) -> int:
        ranks = [rank for machine in machines for rank in layout.ranks_of(machine)]
        return sum(
            len(links_at(rank, layout.world_size, layout.ranks_per_machine, indexed)) for rank in ranks
        )

    assert len(change.added) <= links_of_ranks(new, joiners)
    assert len(change.dropped) <= links_of_ranks(old, leavers)


@given(st.data(), layouts(max_machines=8))
def test_change_after_change(data: st.DataObject, first: Layout) -> None:
    """Deltas of successive changes, of machines that only just came too, lead to the last layout's links."""
    groups = data.draw(compact_groups_of(first))
    links, layout = seated(first, links_of(first, groups)), first
    for number in range(data.draw(st.integers(1, 4))):
        leavers = data.draw(st.lists(st.sampled_from(layout.machines), unique=True))
        new = layout.replaced(layout.epoch + 1, {name: f"s{number}-{name}" for name in leavers})
        links, layout = delta(layout, new, groups).apply(links), new
        assert links == seated(layout, links_of(layout, groups))


@given(st.data(), replacements())
def test_a_change_of_mind(data: st.DataObject, case: Case) -> None:
    """A plan that was given up leaves no trace: the next one, with other joiners, starts from the old."""
    old, given_up, groups = case
    leavers = data.draw(st.lists(st.sampled_from(old.machines), unique=True))
    new = old.replaced(given_up.epoch + 1, {leaver: f"t{number}" for number, leaver in enumerate(leavers)})
    links = seated(old, links_of(old, groups))
    there = delta(old, given_up, groups)
    back = delta(given_up, old, groups)
    assert back.apply(there.apply(links)) == links
    assert delta(old, new, groups).apply(links) == seated(new, links_of(new, groups))


@given(replacements())
def test_seats_that_did_not_change_may_be_named(case: Case) -> None:
    """The seats that a caller names are a hint: what did not change there adds nothing."""
    old, new, groups = case
    assert delta(old, new, groups, seats=range(len(new.machines))) == delta(old, new, groups)


@given(replacements())
def test_there_and_back_is_nothing(case: Case) -> None:
    """The delta of the way back undoes the delta of the way there."""
    old, new, groups = case
    there, back = delta(old, new, groups), delta(new, old, groups)
    assert (back.added, back.dropped) == (there.dropped, there.added)


@given(replacements())
def test_from_nothing_everything_is_made(case: Case) -> None:
    """A start has no old layout: every link is added and none is dropped."""
    _, new, groups = case
    change = delta(None, new, groups)
    assert change.added == seated(new, links_of(new, groups))
    assert change.dropped == frozenset()
    assert change.total == len(change.added)


def test_one_machine_of_three() -> None:
    """With three ranks a replacement remakes the joiner's two links in each channel."""
    change = delta(OLD, OLD.replaced(2, {"m1": "s0"}), GROUPS)
    assert str(change) == "+4 -4 of 6 links"
    assert {str(item.link) for item in change.added} == {
        "world/boundary 0-1",
        "world/boundary 1-2",
        "data/collective 0-1",
        "data/collective 1-2",
    }
    assert {item.high_machine for item in change.dropped if item.link.low == 0} == {"m1"}


def test_a_repair_changes_no_seats() -> None:
    """The same machines in a new epoch need no other links."""
    assert str(delta(OLD, OLD.replaced(2, {}), GROUPS)) == "+0 -0 of 6 links"


def test_two_machines_that_swap_positions() -> None:
    """A swap remakes every link on both seats, the one between them too."""
    swapped = Layout(2, ("m1", "m0", "m2"), 1)
    change = delta(OLD, swapped, {})
    assert str(change) == "+3 -3 of 3 links"


@pytest.mark.parametrize("new", [Layout(2, ("m0", "m1"), 1), Layout(2, ("m0", "m1", "m2"), 2)])
def test_refuses_another_world(new: Layout) -> None:
    """World size and ranks per machine never change in a replacement."""
    with pytest.raises(ConfigError, match="keeps the world"):
        delta(OLD, new, GROUPS)


def large(data: int) -> tuple[Layout, Groups]:
    """A job of 16 pipeline stages and ``data`` replicas of one machine of 8 tensor-parallel ranks each."""
    grid = Grid((("pipeline", 16), ("data", data), ("tensor", 8)))
    layout = Layout(1, tuple(f"m{i}" for i in range(16 * data)), 8)
    return layout, Groups({"odd": (3, 77, 9)}, [grid])


def test_cost_is_proportional_to_what_changes() -> None:
    """The same change takes as many steps in a job of 131,072 ranks as in one of 4,096, or hardly more."""
    costs = []
    for replicas in (32, 1024):
        old, groups = large(replicas)
        seat = 5 * replicas + 17
        new = old.replaced(2, {f"m{seat}": "s0"})
        total = groups.links_total(old.world_size, 8)
        change = delta(old, new, groups, seats=[seat])
        assert change.total == total > 2 * old.world_size
        assert len(change.added) == len(change.dropped) < 300
        costs.append(
            steps_of(
                lambda old=old, new=new, groups=groups, seat=seat: delta(  # type: ignore[misc]
                    old, new, groups, seats=[seat]
                )
            )
        )
    assert costs[1] <= 1.25 * costs[0]


def test_the_worst_seat_of_a_large_job() -> None:
    """The first machine leads every tree; even its change is a few hundred links of a million."""
    old, groups = large(1024)
    change = delta(old, old.replaced(2, {"m0": "s0"}), groups)
    assert len(change.added) == len(change.dropped) < 400
    assert change.total > 1_000_000


@settings(deadline=None)
@given(reseatings())
def test_seats_that_are_vacated_or_filled(case: Case) -> None:
    """Whoever leaves without a joiner, or joins on a vacant seat: the delta of the whole link sets."""
    old, new, groups = case
    before, after = seated(old, links_of(old, groups)), seated(new, links_of(new, groups))
    change = delta(old, new, groups)
    assert (change.added, change.dropped) == (after - before, before - after)
    assert change.total == len(after)
    assert not any("" in (item.low_machine, item.high_machine) for item in after)
