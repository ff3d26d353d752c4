"""Replay: a recorded log through fresh cores, and every difference.

What lives here: comparing, for a log in memory and for a file.  What never lives here: feeding
(``course``), the format of files (``events.log``), time (timers and probes are events in the log, so a
replay needs no clock).

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
from pathlib import Path
from typing import Final, Literal

from trainmover.errors import ConfigError
from trainmover.events.catalogue import EVENTS, JournalCopy
from trainmover.events.envelope import Envelope, ce_type, format_time
from trainmover.events.log import read_log
from trainmover.services.core import Core
from trainmover.services.course import Course, Log, Step
from trainmover.services.course import until as ends

LARGE = 50_000
"""Events from which on a replay uses several processes."""

LARGE_FILE = 16 << 20
"""Bytes from which on a file is read by several processes."""

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


def replay_file(
    path: Path,
    *,
    service: str | Sequence[str] | None = None,
    until: float | str | None = None,
    workers: int | None = None,
) -> Replayed:
    """:func:`replay` for a log file, which need not fit into memory as a whole.

    A large file is read by one process per service, and each decodes what its service has heard and said and
    nothing else; what is left over is decoded beside that, so that damage is found wherever it is.

    Args:
        path: the file.
        service: see :func:`replay`.
        until: see :func:`replay`; with an id the log is read as a whole.
        workers: processes; None: as many as there are processors, for a file of :data:`LARGE_FILE` or more.

    Raises:
        DecodeError: it is not a whole log; says where.
        ConfigError: see :func:`replay`.
    """
    if workers is None:
        workers = os.cpu_count() or 1 if path.stat().st_size >= LARGE_FILE else 1
    if workers <= 1 or isinstance(until, str):
        return replay(
            (record.envelope for record in read_log(path)), service=service, until=until, workers=workers
        )
    names = _wanted(service, _all_cores())
    parts = [(path, name, until) for name in (*sorted(names, key=_BUSIEST.index), "")]
    result = Replayed()
    with multiprocessing.get_context("fork").Pool(min(workers, len(parts))) as pool:
        ran = {part[0]: part for part in pool.starmap(_replay_part, parts, chunksize=1) if part is not None}
    for name in (name for name in names if name in ran):
        _, result.inputs[name], result.outputs[name], found = ran[name]
        result.differences += found
    return result


_BUSIEST: Final = ("switcher", "planner", "standby", "health")
"""Services by how long their part of a replay takes: the longest begins first."""


def _replay_part(path: Path, name: str, until: float | None) -> Ran | None:
    """One service's replay of a file; without a name what no service needs is decoded and dropped."""
    cores = _all_cores()
    needs = {other: _needs(other, make()) for other, make in cores.items()}
    if not name:
        read_log(path, lambda headers: not any(need(headers) for need in needs.values()))
        return None
    log = Log(record.envelope for record in read_log(path, needs[name]))
    if name not in log.journals:
        return None
    gc.freeze()
    return _run(Course(name, cores[name](), log, ends(log, until)))


def _needs(name: str, core: Core) -> Callable[[Mapping[str, str]], bool]:
    """Whether a message is an input of a service, or what it has said itself (its journal, too)."""
    heard = {ce_type(EVENTS[kind]) for kind in (*core.hears, JournalCopy.type)}

    def needs(headers: Mapping[str, str]) -> bool:
        return headers.get("ce-type") in heard or headers.get("ce-source") == name

    return needs


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
    makers = cores if cores is not None else _all_cores()
    wanted = _wanted(service, makers)
    end = ends(log, until)
    return [Course(name, makers[name](), log, end, watch=watch) for name in wanted if name in log.journals]


def _all_cores() -> CoreFactories:
    from trainmover.services import SERVICES

    return {name: entry.core for name, entry in SERVICES.items()}


def _wanted(service: str | Sequence[str] | None, cores: CoreFactories) -> list[str]:
    wanted = [service] if isinstance(service, str) else list(service or cores)
    unknown = [name for name in wanted if name not in cores]
    if unknown:
        raise ConfigError(f"no service {', '.join(unknown)}; there are {', '.join(cores)}")
    return wanted


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
