"""Steps as points of a curve: what the charts show, in bounded memory.

What lives here: :class:`Series`, one point per committed step, from samples or from what the ranks
wrote down.  What never lives here: drawing.

A job that runs for weeks commits millions of steps.  When there are too many points, every second
one of the older half goes, so the newest are always there one by one and the oldest become coarse.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainmover.events.catalogue import StepSample
from trainmover.monitor.steps import StepFacts

POINTS = 8192
"""Points that are kept at most."""
METRICS = 16
"""Metrics of a step that are kept at most, by name."""


@dataclass(frozen=True, slots=True)
class Point:
    """One committed step: when it was committed first (unix seconds) and what it came to."""

    time: float
    step: int
    epoch: int
    seconds: float
    metrics: dict[str, float]

    def as_json(self) -> list[Any]:
        """``[time, step, epoch, seconds, metrics]``; a figure that is no number is None."""
        metrics = {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        return [round(self.time, 3), self.step, self.epoch, round(self.seconds, 4), metrics]


class Series:
    """Points by time; each step once, and again when it had to be done again."""

    def __init__(self, limit: int = POINTS) -> None:
        self._limit = limit
        self.points: list[Point] = []

    def sample(self, time: float, event: StepSample) -> Point | None:
        """Take what one machine said of a step; None: another one has told of it already."""
        metrics = dict(sorted(event.metrics.items())[:METRICS])
        return self.add(Point(time, event.step, event.epoch, event.seconds, metrics))

    def add(self, point: Point) -> Point | None:
        """Take a point; None: its step is there already, or is of an epoch that is over."""
        if self.points:
            last = self.points[-1]
            if point.epoch < last.epoch or (point.epoch == last.epoch and point.step <= last.step):
                return None
            if point.time < last.time:
                # Clocks of machines differ by a little; a curve goes forward.
                point = Point(last.time, point.step, point.epoch, point.seconds, point.metrics)
        self.points.append(point)
        if len(self.points) > self._limit:
            half = len(self.points) // 2
            self.points[:half] = self.points[:half:2]
        return point

    def at(self, time: float) -> Point | None:
        """The last point that was there at a time."""
        found = self.before(time, 1)
        return found[0] if found else None

    def before(self, time: float, count: int) -> list[Point]:
        """The last points that were there at a time, oldest first."""
        place = bisect.bisect_right(self.points, time, key=lambda point: point.time)
        return self.points[max(0, place - count) : place]


def points_of(facts: StepFacts) -> Iterable[Point]:
    """The points that the ranks of a run wrote down: each step at its first commit, in order."""
    best: dict[tuple[int, int], Point] = {}
    for fact in facts.steps:
        key = (fact.epoch, fact.step)
        loss = {} if fact.loss is None else {"loss": fact.loss}
        known = best.get(key)
        if known is None:
            best[key] = Point(fact.end, fact.step, fact.epoch, fact.seconds, loss)
        elif loss and not known.metrics:
            best[key] = Point(known.time, known.step, known.epoch, known.seconds, loss)
    return [best[key] for key in sorted(best)]
