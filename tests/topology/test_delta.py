"""The delta of two layouts: exactly what must change, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.topology.strategies import replacements
from trainmover.errors import ConfigError
from trainmover.topology import Layout, delta, links_of
from trainmover.topology.links import seated

Case = tuple[Layout, Layout, dict[str, tuple[int, ...]]]

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


def test_cost_is_proportional_to_what_changes() -> None:
    """Replacing one machine of 512 touches fewer than a hundred of thousands of links."""
    old = Layout(1, tuple(f"m{i}" for i in range(512)), 8)
    change = delta(old, old.replaced(2, {"m17": "s0"}), {"data": tuple(range(old.world_size))})
    assert change.total > 10_000
    assert len(change.added) == len(change.dropped) < 100
