"""Shares: which a rank has, what is random in them, and what is logged of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from trainmover.errors import ConfigError
from trainmover.training import Job
from trainmover.training.agreement import Metric, Sum, columns, means
from trainmover.training.boundary import Verdict
from trainmover.training.shares import Standing, seeded, shares
from trainmover.training.state import TrackedState


class Fixed:
    """A course of two steps for a rank that stands somewhere."""

    broken = False

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        self.voted: list[dict[str, Metric]] = []

    def positions(self, total: int) -> Iterator[int]:
        yield from range(total)

    def vote(self, metrics: dict[str, Metric]) -> Verdict:
        self.voted.append(dict(metrics))
        return Verdict(True, {})


def test_at_full_strength_a_rank_has_its_own() -> None:
    """One with the number of the rank; or several, of which the last one says so."""
    (only,) = shares(Standing(2, 4), 1)
    assert (only.index, only.last, only.scale, only.count) == (2, True, 1.0, 4)
    several = shares(Standing(1, 2), 3)
    assert [(share.index, share.last) for share in several] == [(3, False), (4, False), (5, True)]
    assert {share.scale for share in several} == {1 / 3}


def test_the_shares_of_a_vacant_seat_are_taken_over() -> None:
    """Two ranks a machine, data parallel in pairs of machines: each group deals alike."""
    standing = Standing(1, 4, 2, frozenset({1}))
    assert [share.index for share in shares(standing, 1, (1, 3))] == [0, 1]
    assert [share.index for share in shares(Standing(0, 4, 2, frozenset({1})), 1, (0, 2))] == [0, 1]


def test_a_rank_outside_the_group_has_no_share() -> None:
    """The group is the rank's own data-parallel group."""
    with pytest.raises(ConfigError, match="is not there to compute a share"):
        shares(Standing(1, 4), 1, (0, 2))


def numbers() -> tuple[float, float]:
    """One from each generator."""
    return float(torch.rand(())), random.random()


def test_a_share_has_its_random_numbers_whoever_computes_it() -> None:
    """They follow from seed, step and share; outside shares the generators go on as they were."""
    torch.manual_seed(5)
    random.seed(5)
    before = numbers()
    own = [numbers() for _ in seeded(shares(Standing(1, 2), 1), 7, 3)]
    between = numbers()
    torch.manual_seed(5)
    random.seed(5)
    assert numbers() == before
    assert numbers() == between
    both = [numbers() for _ in seeded(shares(Standing(0, 2, 1, frozenset({1})), 1), 7, 3)]
    assert both[1:] == own
    others = [numbers() for _ in seeded(shares(Standing(1, 2), 1), 7, 4)]
    assert len({both[0], *own, *others}) == 3


def test_generators_are_put_back_when_the_loop_is_left() -> None:
    """By a break or an error in a share as well."""
    torch.manual_seed(1)
    expected = float(torch.rand(()))
    torch.manual_seed(1)
    for _ in seeded(shares(Standing(0, 1), 2), 0, 0):
        break
    assert float(torch.rand(())) == expected


def test_what_is_logged_in_shares_is_one_of_several() -> None:
    """Each share counts once; what is logged after them counts as often as there were shares."""
    course = Fixed(Standing(0, 2, 1, frozenset({1})))
    job = Job(course, TrackedState())
    for step in job.steps(1):
        for share in step.shares():
            step.log(loss=float(share.index + 1), none=None)
        step.log(norm=4.0)
        assert step.metrics == {"loss": 1.5, "norm": 4.0}
    (voted,) = course.voted
    assert voted == {"loss": Sum(3.0, 2.0), "none": None, "norm": Sum(8.0, 2.0)}
    other: dict[str, Metric] = {"loss": 9.0, "none": None, "norm": 1.0}
    names = sorted(voted)
    sums = [a + b for a, b in zip(columns(voted), columns(other), strict=True)]
    assert means(names, sums) == {"loss": 4.0, "norm": 3.0}


def test_a_script_without_shares_logs_as_before() -> None:
    """A value counts once, and the last one said holds."""
    course = Fixed(Standing(0, 2))
    job = Job(course, TrackedState())
    for step in job.steps(1):
        step.log(loss=1.0)
        step.log(loss=2.0)
    assert course.voted == [{"loss": 2.0}]


def test_shares_are_asked_for_once_and_in_time() -> None:
    """Twice, or after the vote, is an error."""
    tracked = TrackedState()
    job = Job(Fixed(Standing(0, 1)), tracked)
    for step in job.steps(1):
        assert len(list(step.shares(2))) == 2
        with pytest.raises(ConfigError, match="once in a step"):
            list(step.shares())
    assert tracked.seed is not None


def test_the_seed_belongs_to_the_rank() -> None:
    """It travels with the private values, so that a joiner goes on with the shares' numbers."""
    tracked, other = TrackedState(), TrackedState()
    tracked.seed = 77
    other.load_private_values(tracked.private_values())
    assert other.seed == 77
