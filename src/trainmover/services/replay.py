"""Replay: a recorded log through fresh cores, and every difference.

What lives here: comparing.  What never lives here: feeding (``course``), reading files (``events.log``),
time (timers and probes are events in the log, so a replay needs no clock).

For each service its journal says which input came when; a fresh core gets the same, and what it
says is compared with what the log holds under the same ids: said then and not now, said now and
not then, or said differently.  With the code that made the log there is no difference.  With
changed code each one shows where the decision changed, and in which incident.
"""

from __future__ import annotations

import difflib
import gc
import heapq
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope, format_time
from trainmover.services.core import Core
from trainmover.services.course import Course, Log, Step
from trainmover.services.course import until as ends

LARGE = 50_000
"""Events from which on a replay uses several processes."""

Kind = Literal["missing", "new", "changed", "raised", "lost input"]

CoreFactories = Mapping[str, Callable[[], Core]]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a fresh core says differently.

    Attributes:
        service: who.
        kind: ``missing`` was said then and not now; ``new`` the other way round; ``changed``: the
            same id says something else; ``raised``: the core raised; ``lost input``: the journal
            names an input that the log does not have.
        cause: the input, if the log has it.
        then: as recorded.
        now: as said in the replay.
        note: what else there is to know.
    """

    service: str
    kind: Kind
    cause: Envelope | None
    then: Envelope | None = None
    now: Envelope | None = None
    note: str = ""

    @property
    def incident(self) -> str | None:
        """The incident it belongs to."""
        for envelope in (self.then, self.now, self.cause):
            if envelope is not None and envelope.incident is not None:
                return envelope.incident
        return None

    def __str__(self) -> str:
        cause = "an input that is not in the log" if self.cause is None else _line(self.cause)
        head = f"{self.service}: {self.kind}, incident {self.incident or '(none)'}\n  because of {cause}"
        body = list(
            difflib.unified_diff(
                _text(self.then), _text(self.now), fromfile="recorded", tofile="replayed", lineterm="", n=100
            )
        )
        lines = [line for line in body if not line.startswith("@@")]
        if self.note:
            lines.append(self.note)
        return "\n".join([head, *(f"  {line}" for line in lines)])


@dataclass(slots=True)
class Replayed:
    """What a replay found.

    Attributes:
        inputs: inputs fed, by service.
        outputs: outputs compared, by service.
        differences: what differs, in the order of the replay.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """The replay said what was recorded."""
        return not self.differences

    def __str__(self) -> str:
        counts = [f"{name}: {self.inputs[name]} in, {self.outputs[name]} out" for name in self.inputs]
        head = f"{'; '.join(counts) or 'no journal'}; {len(self.differences)} differences"
        return "\n".join([head, *map(str, self.differences)])


def replay(
    envelopes: Iterable[Envelope],
    *,
    service: str | Sequence[str] | None = None,
    until: float | str | None = None,
    incident: str | None = None,
    cores: CoreFactories | None = None,
    workers: int | None = None,
) -> Replayed:
    """Feed a recorded log to fresh cores and compare.

    Args:
        envelopes: the log, journal entries included, in the order of the stream.
        service: only this service or these; None: all that have a journal.
        until: stop before inputs later than this time (unix seconds), or after this input or
            output id.
        incident: report only differences that belong to this incident.
        cores: makers of cores by service; None: those of this release.
        workers: processes; None: for a log of :data:`LARGE` events or more one per service, as far as
            there are processors.

    Raises:
        ConfigError: ``service`` is unknown, or ``until`` is an id that no service has heard or said.
    """
    log = Log(envelopes)
    result = Replayed()
    some = courses(log, service=service, until=until, cores=cores)
    if workers is None:
        workers = os.cpu_count() or 1 if len(log.known) >= LARGE else 1
    for name, inputs, outputs, found in _run_all(some, min(workers, len(some))):
        result.inputs[name], result.outputs[name] = inputs, outputs
        result.differences += found
    if incident is not None:
        result.differences = [item for item in result.differences if item.incident == incident]
    return result


Ran = tuple[str, int, int, list[Difference]]
"""Name of a service, its inputs and outputs, and what differs."""


def _run_all(some: list[Course], workers: int) -> list[Ran]:
    """Follow courses, each in a process of its own when there is more than one worker.

    The processes are forks, which have the log already; only what they found comes back.
    """
    # Else the collector would look through the whole log again and again, and each process copy it by that.
    gc.freeze()
    try:
        if workers <= 1:
            return [_run(course) for course in some]
        _courses[:] = some
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            return pool.map(_run_one, range(len(some)), chunksize=1)
    finally:
        gc.unfreeze()
        _courses.clear()


_courses: list[Course] = []


def _run_one(number: int) -> Ran:
    return _run(_courses[number])


def _run(course: Course) -> Ran:
    found = [difference for step in course for difference in differences(step)]
    return course.name, course.inputs, course.outputs, found


def courses(
    log: Log,
    *,
    service: str | Sequence[str] | None = None,
    until: float | str | None = None,
    cores: CoreFactories | None = None,
    watch: bool = False,
) -> list[Course]:
    """The courses of the services that have a journal; arguments as for :func:`replay`.

    Args:
        watch: also what moved in each core (see :class:`~trainmover.services.course.Course`).

    Raises:
        ConfigError: see :func:`replay`.
    """
    if cores is None:
        from trainmover.services import SERVICES

        cores = {name: entry.core for name, entry in SERVICES.items()}
    wanted = [service] if isinstance(service, str) else list(service or cores)
    unknown = [name for name in wanted if name not in cores]
    if unknown:
        raise ConfigError(f"no service {', '.join(unknown)}; there are {', '.join(cores)}")
    end = ends(log, until)
    return [Course(name, cores[name](), log, end, watch=watch) for name in wanted if name in log.journals]


def merged(some: Iterable[Course]) -> Iterator[Step]:
    """The steps of several services in the order of time."""
    return heapq.merge(*some, key=lambda step: step.now)


def differences(step: Step) -> list[Difference]:
    """What a fresh core says differently because of one input."""
    name, cause = step.service, step.cause
    if cause is None:
        return [Difference(name, "lost input", None, note=f"input {step.input} is not in the log")]
    found: list[Difference] = []
    if step.raised is not None:
        note = f"the core raised {type(step.raised).__name__}: {step.raised}"
        found.append(Difference(name, "raised", cause, note=note))
    now = {output.id: output for output in step.said}
    for output, recorded in step.then.items():
        replayed = now.get(output)
        if replayed is None:
            note = "" if recorded is not None else f"output {output} is in the journal only"
            found.append(Difference(name, "missing", cause, then=recorded, note=note))
        elif recorded is not None and _meaning(recorded) != _meaning(replayed):
            found.append(Difference(name, "changed", cause, then=recorded, now=replayed))
    for output, replayed in now.items():
        if output not in step.then:
            found.append(Difference(name, "new", cause, now=replayed))
    return found


def _meaning(envelope: Envelope) -> tuple[object, ...]:
    return (envelope.event, envelope.incident, envelope.cause)


def _line(envelope: Envelope) -> str:
    return f"{envelope.type} {envelope.id} of {format_time(envelope.time)} by {envelope.source}"


def _text(envelope: Envelope | None) -> list[str]:
    if envelope is None:
        return []
    fields = envelope.event.model_dump(mode="json")
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return [f"type: {envelope.type}", f"incident: {envelope.incident}", *lines]
