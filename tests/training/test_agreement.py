"""The rules of the vote and of the meeting, as tables and over every way in which a vote can be torn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.errors import JobError
from trainmover.training import agreement
from trainmover.training.agreement import (
    BALLOT_SIZE,
    REPORT_SIZE,
    Ballot,
    Outcome,
    Report,
    Resolution,
    outcome,
    resolve,
)


def minimum(*ballots: Ballot) -> list[float]:
    """What the reduction over all ballots gives."""
    return [min(column) for column in zip(*(ballot.numbers() for ballot in ballots), strict=True)]


@pytest.mark.parametrize(
    ("ballots", "expected"),
    [
        ([(True, 0), (True, 0)], Outcome(True, 0)),
        ([(True, 0), (False, 0)], Outcome(False, 0)),
        ([(True, 4), (True, 4)], Outcome(True, 4)),
        ([(True, 4), (True, 0)], Outcome(True, 0)),
        ([(True, 4), (True, 5)], Outcome(True, 0)),
        ([(False, 4), (True, 4)], Outcome(False, 4)),
        ([(True, 3), (True, 3)], Outcome(True, 0)),
        ([(True, 2), (True, 2)], Outcome(True, 0)),
    ],
)
def test_the_vote(ballots: list[tuple[bool, int]], expected: Outcome) -> None:
    """In epoch 3: commit when all gradients are whole, switch when all are ready for one later epoch."""
    assert outcome(minimum(*(Ballot(*ballot) for ballot in ballots)), 3) == expected


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=20), st.integers(0, 9))
def test_any_vote(ballots: list[tuple[bool, int]], epoch: int) -> None:
    """No step counts against a rank's will, and nobody switches alone."""
    found = outcome(minimum(*(Ballot(*ballot) for ballot in ballots)), epoch)
    prepared = {number for _, number in ballots}
    assert found.commit == all(whole for whole, _ in ballots)
    assert found.switch_to == (prepared.pop() if len(prepared) == 1 and max(prepared) > epoch else 0)


def test_sizes_on_the_wire() -> None:
    """The vectors have the announced sizes, and a report survives them."""
    assert len(Ballot(True, 7).numbers()) == BALLOT_SIZE
    for report in (Report(True, 12, 13), Report(False, 0, -1), Report(True, 2**40, -1)):
        assert len(report.numbers()) == REPORT_SIZE
        assert Report.read(report.numbers()) == report


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(True, 5, -1), (True, 5, -1)], Resolution(5, (0, 1), (), (0, 1))),
        ([(True, 5, 6), (True, 6, -1), (True, 5, 6)], Resolution(6, (0, 1, 2), (), (1,))),
        ([(True, 5, 6), (True, 5, 6)], Resolution(5, (0, 1), (), (0, 1))),
        ([(True, 5, 6), (False, 0, -1), (True, 5, -1)], Resolution(5, (0, 2), (1,), (0, 2))),
        ([(False, 0, -1), (True, 6, -1), (True, 5, 6)], Resolution(6, (1, 2), (0,), (1,))),
        ([(True, 1, -1), (False, 0, 1), (False, 0, -1)], Resolution(1, (0, 1), (2,), (0,))),
        ([(True, 0, -1), (True, 0, 1)], Resolution(0, (0, 1), (), (0, 1))),
    ],
)
def test_the_meeting(reports: list[tuple[bool, int, int]], expected: Resolution) -> None:
    """If anybody has committed the step everybody does; if nobody has, everybody redoes it."""
    found = resolve([Report(*report) for report in reports], start=False)
    assert found == expected
    assert [found.rolls_forward(Report(*report)) for report in reports] == [
        rank in expected.members and report[1] < expected.committed for rank, report in enumerate(reports)
    ]


def test_a_start_from_nothing() -> None:
    """At a start nobody has history, and all begin at step 0."""
    assert resolve([Report(False, 0, -1)] * 3, start=True) == Resolution(0, (), (), (0, 1, 2))


@pytest.mark.parametrize(
    ("reports", "start", "said"),
    [
        ([(False, 0, -1), (False, 0, -1)], False, "nothing can be continued"),
        ([(False, 0, 1), (False, 0, 1)], False, "nothing can be continued"),
        ([(True, 3, -1), (False, 0, -1)], True, r"ranks \(0,\) bring committed steps"),
        ([(True, 6, -1), (True, 5, -1)], False, "rank 1 has committed 5 steps"),
        ([(True, 4, 5), (True, 6, -1)], False, "rank 0 has committed 4 steps"),
    ],
)
def test_what_cannot_be_settled(reports: list[tuple[bool, int, int]], start: bool, said: str) -> None:
    """A meeting that cannot end well says which rank is in the way, and never guesses."""
    with pytest.raises(JobError, match=said):
        resolve([Report(*report) for report in reports], start=start)


@given(
    committed=st.integers(0, 1000),
    places=st.lists(st.sampled_from(["committed", "pending", "joiner"]), min_size=1, max_size=20),
    first=st.booleans(),
)
def test_any_torn_vote_is_settled_alike(committed: int, places: list[str], first: bool) -> None:
    """Whoever learned the outcome and whoever did not end at the same step, and no commit is lost."""
    committed = 0 if first else committed
    kinds = {
        "committed": Report(True, committed + 1, -1),
        "pending": Report(not first, committed, committed + 1),
        "joiner": Report(False, 0, -1),
    }
    reports = [kinds[place] for place in places]
    if not any(report.history for report in reports):
        with pytest.raises(JobError):
            resolve(reports, start=False)
        return
    found = resolve(reports, start=False)
    assert found.committed == committed + ("committed" in places)
    assert set(found.members) | set(found.joiners) == set(range(len(places)))
    assert found.joiners == tuple(i for i, place in enumerate(places) if place == "joiner")
    assert all(reports[rank].committed == found.committed for rank in found.ahead)
    after = [report.committed + found.rolls_forward(report) for report in reports if report.member]
    assert set(after) == {found.committed}


def summed(*ranks: dict[str, float | None]) -> list[float]:
    """What the vote makes of all ranks' metrics."""
    return [sum(values) for values in zip(*(agreement.columns(metrics) for metrics in ranks), strict=True)]


def test_a_newcomer_whose_state_is_old_receives_it_anew() -> None:
    """It had joined in an epoch that was given up: only a rank that state is ready for may be behind."""
    reports = [Report(True, 5, -1), Report(True, 5, -1), Report(True, 2, -1)]
    with pytest.raises(JobError, match="rank 2 has committed 2 steps and cannot reach the 5"):
        resolve(reports, start=False)
    found = resolve(reports, start=False, newcomers=[2])
    assert found == Resolution(5, (0, 1), (2,), (0, 1))
    assert not found.rolls_forward(reports[2])
    abreast = resolve([Report(True, 5, -1), Report(True, 4, 5)], start=False, newcomers=[1])
    assert abreast.joiners == (), "one that can reach the others needs nothing"


def test_a_mean_is_over_those_who_have_a_value() -> None:
    """In a pipeline only the last stage has a loss; a name that nobody has a value for is left out."""
    sums = summed(
        {"loss": None, "norm": 1.0, "none": None},
        {"loss": 3.0, "norm": 2.0, "none": None},
        {"loss": 0.0, "norm": 6.0, "none": None},
    )
    assert agreement.means(["loss", "none", "norm"], sums) == {"loss": 1.5, "norm": 3.0}


def test_a_loss_that_is_no_number_stays_one() -> None:
    """NaN is the script's own, never a sign for no value."""
    sums = summed({"loss": float("nan")}, {"loss": 1.0})
    assert math.isnan(agreement.means(["loss"], sums)["loss"])
    assert agreement.means(["loss"], summed({"loss": None}, {"loss": None})) == {}
