"""The canonical bracketing: every member once, inside machines first, fixed by the ranks alone."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.strategies import positions
from trainmover.topology import bracket, merges, reduce_in_order, restricted
from trainmover.topology.bracket import Bracket, leader


def members(tree: Bracket) -> list[int]:
    """The leaves, left to right."""
    return [tree] if isinstance(tree, int) else members(tree[0]) + members(tree[1])


def depth(tree: Bracket) -> int:
    """Merges on the longest way from a leaf to the root."""
    return 0 if isinstance(tree, int) else 1 + max(depth(tree[0]), depth(tree[1]))


def subtrees(tree: Bracket) -> list[Bracket]:
    """The tree and every bracket inside it."""
    return [tree] if isinstance(tree, int) else [tree, *subtrees(tree[0]), *subtrees(tree[1])]


def text(seats: tuple[int, ...]) -> str:
    """The bracketing as a person writes it."""
    return str(bracket(seats)).replace(",", " +")


@pytest.mark.parametrize(
    ("seats", "expected"),
    [
        ((0,), "0"),
        ((0, 1), "(0 + 1)"),
        ((0, 1, 2), "((0 + 1) + 2)"),
        ((0, 1, 2, 3), "((0 + 1) + (2 + 3))"),
        ((0, 1, 2, 3, 4), "(((0 + 1) + 2) + (3 + 4))"),
        ((0, 0, 0, 1, 1, 1), "(((0 + 1) + 2) + ((3 + 4) + 5))"),
        ((0, 0, 1, 1, 2, 2), "(((0 + 1) + (2 + 3)) + (4 + 5))"),
        ((0, 1, 0, 1), "((0 + 2) + (1 + 3))"),
    ],
)
def test_small_groups_written_out(seats: tuple[int, ...], expected: str) -> None:
    """These brackets are the contract: a change here changes the bits of every training run."""
    assert text(seats) == expected


def test_a_group_has_a_member() -> None:
    """There is no bracketing of nothing."""
    with pytest.raises(ValueError, match="at least one member"):
        bracket(())


@given(positions())
def test_covers_each_member_once(seats: tuple[int, ...]) -> None:
    """No contribution is lost and none is counted twice."""
    assert sorted(members(bracket(seats))) == list(range(len(seats)))


@given(positions())
def test_inside_a_machine_first(seats: tuple[int, ...]) -> None:
    """The members of one machine form a bracket of their own, so one partial result leaves the machine."""
    found = [frozenset(members(tree)) for tree in subtrees(bracket(seats))]
    for position in set(seats):
        assert frozenset(m for m, p in enumerate(seats) if p == position) in found


@given(positions(), st.permutations(range(13)))
def test_only_who_sits_together_matters(seats: tuple[int, ...], names: list[int]) -> None:
    """Renaming the positions changes nothing: which machine sits there cannot change a bit."""
    assert bracket(tuple(names[p] for p in seats)) == bracket(seats)


@given(st.integers(1, 24), st.integers(1, 8))
def test_depth_is_logarithmic(machines: int, ranks_per_machine: int) -> None:
    """A balanced tree inside and a balanced tree across: log depth at any scale."""
    seats = tuple(p for p in range(machines) for _ in range(ranks_per_machine))
    limit = math.ceil(math.log2(machines)) + math.ceil(math.log2(ranks_per_machine))
    assert depth(bracket(seats)) <= limit


@given(positions())
def test_merges_can_be_carried_out(seats: tuple[int, ...]) -> None:
    """Each member but the leader gives its partial result away once, and takes none afterwards."""
    gone: set[int] = set()
    for into, source in merges(seats):
        assert into not in gone
        assert source not in gone
        gone.add(source)
    assert gone == set(range(len(seats))) - {leader(bracket(seats))}


@given(positions())
def test_merges_build_the_bracket(seats: tuple[int, ...]) -> None:
    """Carrying out the merges on the members' names writes out the bracketing itself."""
    leaves: list[Bracket] = list(range(len(seats)))
    assert reduce_in_order(seats, leaves, lambda left, right: (left, right)) == bracket(seats)


@given(positions())
def test_the_leader_is_the_first_member(seats: tuple[int, ...]) -> None:
    """The whole result ends at member 0, whatever the seats."""
    assert leader(bracket(seats)) == 0


@given(st.data(), positions(12))
def test_reduces_to_the_sum(data: st.DataObject, seats: tuple[int, ...]) -> None:
    """With exact numbers the bracketing does not matter and the result is the plain sum."""
    size = len(seats)
    values = data.draw(st.lists(st.fractions(max_denominator=64), min_size=size, max_size=size))
    assert reduce_in_order(seats, values, lambda a, b: a + b) == sum(values, Fraction(0))


def test_brackets_decide_the_bits() -> None:
    """With floats another bracketing gives another result: this is why there is one canonical one."""
    values = [1e16, 1.0, -1e16, 1.0]
    flat = reduce_in_order((0, 1, 2, 3), values, lambda a, b: a + b)
    paired = reduce_in_order((0, 1, 0, 1), values, lambda a, b: a + b)
    assert (flat, paired) == (0.0, 2.0)


def test_values_are_left_alone() -> None:
    """The reference reduction does not write into its arguments."""
    values = ["a", "b", "c"]
    assert reduce_in_order((0, 1, 2), values, lambda a, b: f"({a}{b})") == "((ab)c)"
    assert values == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("seats", "present", "expected"),
    [
        ((0, 1, 2, 3), (0, 1, 2, 3), "((0 + 1) + (2 + 3))"),
        ((0, 1, 2, 3), (0, 2, 3), "(0 + (1 + 2))"),
        ((0, 1, 2, 3), (0, 1, 2), "((0 + 1) + 2)"),
        ((0, 1, 2, 3), (3,), "0"),
        ((0, 0, 1, 1, 2, 2), (2, 3, 4, 5), "((0 + 1) + (2 + 3))"),
    ],
)
def test_absent_members_are_left_out(seats: tuple[int, ...], present: tuple[int, ...], expected: str) -> None:
    """What an absent member would have been combined with goes up as it is; the others get new numbers."""
    assert str(restricted(bracket(seats), present)).replace(",", " +") == expected


def test_only_leaves_can_be_kept() -> None:
    """A bracketing without any member is none."""
    with pytest.raises(ValueError, match="are not leaves"):
        restricted(bracket((0, 1)), (2,))
