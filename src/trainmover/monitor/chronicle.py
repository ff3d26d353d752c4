"""The chronicle: everything a monitor remembers of a job, in bounded memory.

What lives here: the view of now, the facts in the order in which they were said, the curve, the
changes of membership, and the way back: the view as it was at any earlier moment.  Pure: events in,
answers out; no clock, no I/O.  What never lives here: who asks (``server``, ``metrics``,
``traces``, ``trainmover top``).

The way back is kept as chapters: a copy of the view and the events that followed.  An earlier
moment is a copy and at most one chapter of events.  When there are too many chapters, the oldest
goes, and with it the moments before the next one.
"""

from __future__ import annotations

import bisect
import copy
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.facts import sentence
from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.series import Point, Series
from trainmover.monitor.snapshot import fact_of_commit
from trainmover.monitor.view import RATE_SAMPLES, ClusterView

FACTS = 20_000
"""Facts that are kept, the newest."""
CHAPTER = 1024
"""Events of a chapter at least; in a large cluster more, for the copies are larger."""
PER_MACHINE = 8
"""Events of a chapter for each machine that is known."""
CHAPTERS = 128
MARKS = 4096

LEVELS: dict[str, str] = {
    "machine.failed": "bad",
    "job.failed": "bad",
    "job.held": "bad",
    "switch.aborted": "bad",
    "standby.exhausted": "bad",
    "recording.failed": "bad",
    "checkpoint.failed": "bad",
    "dead.letter": "bad",
    "machine.suspected": "warn",
    "lease.expired": "warn",
    "lease.stalled": "warn",
    "link.broken": "warn",
    "link.unreached": "warn",
    "rank.exited": "warn",
    "move.refused": "warn",
    "training.started": "good",
    "training.resumed": "good",
    "switch.committed": "good",
    "job.completed": "good",
}
"""How a fact is meant: ``bad``, ``warn``, ``good``; all others are ``info``."""

ENDS = frozenset(
    {
        "training.resumed",
        "training.started",
        "move.refused",
        "switch.committed",
        "job.completed",
        "job.failed",
    }
)
"""Events that may end an incident."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One event that a person may want to read of; ``number`` grows by one from each to the next."""

    number: int
    time: float
    type: str
    source: str
    text: str
    incident: str | None
    machine: str | None
    level: str

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Mark:
    """A change of membership: where the curve gets a line."""

    time: float
    step: int
    epoch: int
    kind: str
    text: str

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Chapter:
    start: float
    view: ClusterView
    envelopes: list[Envelope] = field(default_factory=list)


class Chronicle:
    """Everything of one job; :meth:`apply` takes an event in.

    Attributes:
        view: the job as it is now.
        facts: what was said, oldest first.
        series: the steps.
        marks: the changes of membership, oldest first.
        counts: events by type, samples included.
        last_event: time of the newest journalled event, unix seconds; None before the first.
        on_end: called with each incident that is over, and the facts of it.
        on_step: called with each new step.
    """

    def __init__(self, *, way_back: bool = True) -> None:
        self.view = ClusterView()
        self.facts: deque[Fact] = deque(maxlen=FACTS)
        self.series = Series()
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self.counts: Counter[str] = Counter()
        self.last_event: float | None = None
        self.on_end: list[Callable[[IncidentView, list[Fact]], None]] = []
        self.on_step: list[Callable[[Point], None]] = []
        self.way_back = way_back
        self._number = 0
        self._time = 0.0
        self._over: set[str] = set()
        self._chapters: list[_Chapter] = []

    def apply(self, envelope: Envelope) -> None:
        """Take one event in, journalled or a sample."""
        event = envelope.event
        self.counts[event.type] += 1
        if event.journalled:
            # Programs' clocks differ by a little; the order is that of the log.
            self._time = max(self._time, envelope.time)
            self.last_event = self._time
            self._keep(envelope)
        self.view.apply(envelope)
        if isinstance(event, say.StepSample):
            point = self.series.sample(envelope.time, event)
            if point is not None:
                self._stepped(point)
            return
        self._tell(envelope)
        if isinstance(event, say.SwitchCommitted):
            text = fact_of_commit(event)
            self.marks.append(Mark(envelope.time, event.step, event.epoch, event.kind, text))
        if event.type in ENDS:
            self._close_incidents()

    def recall(self, points: list[Point]) -> None:
        """Take steps that nobody samples any more: of a finished run, or from before this monitor."""
        for point in points:
            if self.series.add(point) is not None:
                self._stepped(point)
        if points and (self.view.step is None or self.view.step < points[-1].step):
            self.view.step, self.view.metrics = points[-1].step, dict(points[-1].metrics)

    @property
    def first(self) -> float | None:
        """The earliest moment that :meth:`at` can go back to, unix seconds."""
        return self._chapters[0].start if self._chapters else None

    @property
    def last(self) -> float | None:
        """The newest moment that anything is known of, unix seconds."""
        steps = self.series.points[-1].time if self.series.points else None
        return max((time for time in (self.last_event, steps) if time is not None), default=None)

    def at(self, time: float) -> ClusterView:
        """The view as it was at a moment; as early as it goes for one that is too early.

        Processor load and memory of that time are not known: heartbeats are nowhere kept.
        """
        place = bisect.bisect_right(self._chapters, time, key=lambda chapter: chapter.start)
        view = ClusterView()
        if place:
            chapter = self._chapters[place - 1]
            view = copy.deepcopy(chapter.view)
            now = chapter.start
            for envelope in chapter.envelopes:
                now = max(now, envelope.time)
                if now > time:
                    break
                view.apply(envelope)
        for machine in view.machines.values():
            machine.beat, machine.ranks, machine.step = None, (), None
        point = self.series.at(time)
        view.step, view.metrics = (None, {}) if point is None else (point.step, dict(point.metrics))
        view.recall_rate([(known.time, known.step) for known in self.series.before(time, RATE_SAMPLES)])
        return view

    def facts_before(self, number: int | None, limit: int) -> list[Fact]:
        """The last facts before one of this number (None: the newest), oldest first."""
        found = [fact for fact in self.facts if number is None or fact.number < number]
        return found[-limit:]

    def facts_of(self, incident: str) -> list[Fact]:
        """The facts of one incident, oldest first."""
        return [fact for fact in self.facts if fact.incident == incident]

    # -- taking in

    def _keep(self, envelope: Envelope) -> None:
        if not self.way_back:
            return
        chapter = self._chapters[-1] if self._chapters else None
        if chapter is None or len(chapter.envelopes) >= max(CHAPTER, PER_MACHINE * len(self.view.machines)):
            chapter = _Chapter(self._time, copy.deepcopy(self.view))
            self._chapters.append(chapter)
            del self._chapters[:-CHAPTERS]
        if self.view.changed_by(envelope):
            chapter.envelopes.append(envelope)

    def _tell(self, envelope: Envelope) -> None:
        text = sentence(envelope.event)
        if text is None:
            return
        self._number += 1
        self.facts.append(
            Fact(
                number=self._number,
                time=envelope.time,
                type=envelope.type,
                source=envelope.source,
                text=text,
                incident=envelope.incident,
                machine=envelope.machine,
                level=LEVELS.get(envelope.type, "info"),
            )
        )

    def _stepped(self, point: Point) -> None:
        for callback in self.on_step:
            callback(point)

    def _close_incidents(self) -> None:
        for incident in self.view.incidents.values():
            if incident.state != "open" and incident.id not in self._over:
                self._over.add(incident.id)
                self._ended(incident)

    def _ended(self, incident: IncidentView) -> None:
        facts = self.facts_of(incident.id)
        for callback in self.on_end:
            callback(incident, facts)
