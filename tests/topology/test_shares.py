"""Shares of absent replicas: each computed once, evenly, first by the sibling in the bracketing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.strategies import positions
from trainmover.errors import ConfigError
from trainmover.topology import bracket, reduce_along, restricted, shares_of


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[int, ...], frozenset[int], int]:
    """Positions of a group, its absent members (never all), and shares per member."""
    seats = draw(positions(24))
    absent = draw(st.sets(st.integers(0, len(seats) - 1), max_size=len(seats) - 1))
    return seats, frozenset(absent), draw(st.integers(1, 5))


@given(groups())
def test_each_share_is_computed_exactly_once(case: tuple[tuple[int, ...], frozenset[int], int]) -> None:
    """Whoever is absent, the global batch is the same."""
    seats, absent, parts = case
    dealt = [shares_of(m, seats, absent, parts) for m in range(len(seats)) if m not in absent]
    assert sorted(share for shares in dealt for share in shares) == list(range(len(seats) * parts))
    assert all(list(shares) == sorted(shares) for shares in dealt)


@given(groups())
def test_everybody_keeps_the_own_shares_and_the_load_is_even(
    case: tuple[tuple[int, ...], frozenset[int], int],
) -> None:
    """No member has two shares more than another."""
    seats, absent, parts = case
    dealt = {m: shares_of(m, seats, absent, parts) for m in range(len(seats)) if m not in absent}
    assert all(set(range(m * parts, m * parts + parts)) <= set(shares) for m, shares in dealt.items())
    assert max(map(len, dealt.values())) - min(map(len, dealt.values())) <= 1


@pytest.mark.parametrize(
    ("size", "absent", "expected"),
    [
        (2, {1}, {0: (0, 1)}),
        (2, {0}, {1: (0, 1)}),
        (4, {1}, {0: (0, 1), 2: (2,), 3: (3,)}),
        (4, {2}, {0: (0,), 1: (1,), 3: (2, 3)}),
        (4, {1, 3}, {0: (0, 1), 2: (2, 3)}),
        (4, {0, 1}, {2: (0, 2), 3: (1, 3)}),
        (3, {2}, {0: (0, 2), 1: (1,)}),
    ],
)
def test_small_groups_written_out(size: int, absent: set[int], expected: dict[int, tuple[int, ...]]) -> None:
    """One share of one absent member goes to its sibling in the bracketing."""
    assert {m: shares_of(m, tuple(range(size)), absent, 1) for m in expected} == expected


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_a_sum_is_bracketed_as_at_full_strength_where_siblings_share(size: int) -> None:
    """One absent member of a power of two: adding the shares in order keeps the bracketing."""
    seats = tuple(range(size))
    for gone in range(size):
        present = tuple(m for m in seats if m != gone)
        sums = ["+".join(str(share) for share in shares_of(m, seats, {gone}, 1)) for m in present]
        together = reduce_along(restricted(bracket(seats), present), sums, lambda a, b: f"({a}+{b})")
        whole = reduce_along(bracket(seats), [str(m) for m in seats], lambda a, b: f"({a}+{b})")
        pair = f"{min(gone, gone ^ 1)}+{max(gone, gone ^ 1)}"
        assert together == whole.replace(f"({pair})", pair)


def test_says_what_cannot_be() -> None:
    """Nobody deals to who is absent, and nobody has no share at all."""
    with pytest.raises(ConfigError, match="member 1 of 2 is not there"):
        shares_of(1, (0, 1), {1}, 1)
    with pytest.raises(ConfigError, match="one share or more, not 0"):
        shares_of(0, (0, 1), set(), 0)


@given(groups())
def test_a_bracketing_without_the_absent_adds_every_present_value_once(
    case: tuple[tuple[int, ...], frozenset[int], int],
) -> None:
    """Leaving out is not adding zero, and leaves nobody else out."""
    seats, absent, _ = case
    present = tuple(m for m in range(len(seats)) if m not in absent)
    tree = restricted(bracket(seats), present)
    values = [Fraction(1, m + 1) for m in present]
    assert reduce_along(tree, values, lambda a, b: a + b) == sum(values)
