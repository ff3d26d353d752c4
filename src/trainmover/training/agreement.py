"""What the ranks agree on at the boundary, as pure functions of what each of them says.

Two rules.  A step commits when every rank's gradients are whole; the answer is one reduction over
all ranks, so it is the same for everybody who gets it.  When somebody does not get it (the epoch
broke inside the vote), the next epoch's *meeting* settles it from the ranks' reports: if anybody
committed the step, everybody does; if nobody did, everybody redoes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import add

from trainmover.errors import JobError, StateLost


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's vote on a step.

    Attributes:
        whole: its gradients are whole.
        prepared: the epoch for which it has all links ready; 0 when there is none.
    """

    whole: bool
    prepared: int

    def numbers(self) -> list[float]:
        """As numbers that a minimum over all ranks turns into the outcome."""
        return [1.0 if self.whole else 0.0, float(self.prepared), -float(self.prepared)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the vote decided: commit or void, and the epoch to switch to (0: none)."""

    commit: bool
    switch_to: int


BALLOT_SIZE = 3


def outcome(minimum: Sequence[float], epoch: int) -> Outcome:
    """Read the minimum over all ballots.

    All switch only when all are prepared for the same coming epoch: the smallest and the largest
    prepared epoch are equal.
    """
    whole, low, high = minimum[0] >= 1.0, int(minimum[1]), int(-minimum[2])
    return Outcome(whole, low if low == high and low > epoch else 0)


def tally(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Two ballots with their metrics as one: the minimum of the votes, the sum of the metrics."""
    votes = map(min, left[:BALLOT_SIZE], right[:BALLOT_SIZE])
    return [*votes, *map(add, left[BALLOT_SIZE:], right[BALLOT_SIZE:])]


@dataclass(frozen=True, slots=True)
class Sum:
    """Several values of one metric: a rank has one for each share of the batch that it has computed."""

    total: float
    count: float

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count


Metric = float | Sum | None
"""What a rank votes with: a value, several, or none."""


def own_means(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """A rank's own means; no entry where it has no value."""
    return {
        name: value.mean if isinstance(value, Sum) else value
        for name, value in metrics.items()
        if value is not None
    }


def columns(metrics: Mapping[str, Metric]) -> list[float]:
    """A rank's metrics as numbers to be summed over all ranks: by name the values, then how many there are.

    A rank that has no value (None) adds nothing to either.
    """
    found = [metrics[name] for name in sorted(metrics)]
    sums = [
        value if isinstance(value, Sum) else Sum(value or 0.0, float(value is not None)) for value in found
    ]
    return [item.total for item in sums] + [item.count for item in sums]


def means(names: Sequence[str], sums: Sequence[float]) -> dict[str, float]:
    """Means over the ranks that have a value, from the summed :func:`columns`; no entry where none has."""
    count = len(names)
    return {name: sums[i] / sums[count + i] for i, name in enumerate(names) if sums[count + i]}


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank brings to a meeting.

    Attributes:
        history: it has committed state; a joiner has none.
        committed: number of steps committed.
        pending: ``committed + 1`` when it holds whole gradients that it has voted for without
            learning the outcome, else -1.
    """

    history: bool
    committed: int
    pending: int

    @property
    def member(self) -> bool:
        """It can go on from what it has; in the first vote of a job that is before its first commit."""
        return self.history or self.pending > 0

    def reaches(self, committed: int) -> bool:
        """It is there, or gets there by the step that it has voted for."""
        return committed in (self.committed, self.pending)

    def numbers(self) -> list[float]:
        """As numbers for the meeting's all-gather."""
        return [1.0 if self.history else 0.0, float(self.committed), float(self.pending)]

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Report:
        """The report of :meth:`numbers`."""
        return cls(numbers[0] >= 1.0, int(numbers[1]), int(numbers[2]))


REPORT_SIZE = 3


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a meeting decided, the same on every rank.

    Attributes:
        committed: number of steps committed from now on.
        members: ranks that have the state, or reach it by the step they voted for: sources of state.
        joiners: ranks that have nothing yet: they receive it.
        ahead: ranks that had committed that many already; they know the step's metrics.
    """

    committed: int
    members: tuple[int, ...]
    joiners: tuple[int, ...]
    ahead: tuple[int, ...]

    def rolls_forward(self, report: Report) -> bool:
        """Whether the rank that gave this report must apply the step that it voted for."""
        return report.member and report.reaches(self.committed) and report.committed < self.committed


def resolve(
    reports: Sequence[Report],
    *,
    start: bool,
    newcomers: Collection[int] = (),
    absent: Collection[int] = (),
) -> Resolution:
    """Settle where training stands.

    Args:
        reports: one per rank, by rank.
        start: the epoch starts a job from nothing, where nobody has history.
        newcomers: ranks for which state is ready to be sent.  One of them may have history: it had joined
            in an epoch that was given up, and training went on without it.
        absent: ranks that nobody has: what stands in their place counts for nothing.

    Raises:
        JobError: no rank has history (and this is no start), or a rank cannot reach the others.
    """
    if start:
        if late := tuple(rank for rank, report in enumerate(reports) if report.history):
            raise JobError(f"ranks {late} bring committed steps to a start from nothing")
        return Resolution(0, (), (), tuple(range(len(reports))))
    if not any(report.history for report in reports):
        raise StateLost("no rank of the new epoch has any committed state; nothing can be continued")
    there = [rank for rank in range(len(reports)) if rank not in absent]
    committed = max(reports[rank].committed for rank in there if reports[rank].member)
    stale = {rank for rank in newcomers if not reports[rank].reaches(committed)}
    members = tuple(rank for rank in there if reports[rank].member and rank not in stale)
    joiners = tuple(rank for rank in there if rank not in members)
    for rank in members:
        report = reports[rank]
        if not report.reaches(committed):
            raise JobError(
                f"rank {rank} has committed {report.committed} steps and cannot reach the {committed} of the "
                "others: its gradients of the step between are not whole"
            )
    ahead = tuple(rank for rank in members if reports[rank].committed == committed)
    return Resolution(committed, members, joiners, ahead)
