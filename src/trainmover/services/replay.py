"""Replay: a recorded log through fresh cores, and every difference.

What lives here: feeding and comparing.  What never lives here: reading files (``events.log``), time
(timers and probes are events in the log, so a replay needs no clock).

For each service its journal says which input came when; a fresh core gets the same, and what it
says is compared with what the log holds under the same ids: said then and not now, said now and
not then, or said differently.  With the code that made the log there is no difference.  With
changed code each one shows where the decision changed, and in which incident.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainmover.errors import ConfigError
from trainmover.events.catalogue import JournalEntry
from trainmover.events.envelope import Envelope, format_time
from trainmover.services.core import Core
from trainmover.services.shell import envelopes_of, feeding_order, journal_of

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
) -> Replayed:
    """Feed a recorded log to fresh cores and compare.

    Args:
        envelopes: the log, journal entries included, in the order of the stream.
        service: only this service or these; None: all that have a journal.
        until: stop before inputs later than this time (unix seconds), or after this input or
            output id.
        incident: report only differences that belong to this incident.
        cores: makers of cores by service; None: those of this release.

    Raises:
        ConfigError: ``service`` is unknown, or ``until`` is an id that no service has heard or said.
    """
    if cores is None:
        from trainmover.services import SERVICES

        cores = {name: entry.core for name, entry in SERVICES.items()}
    wanted = [service] if isinstance(service, str) else list(service or cores)
    unknown = [name for name in wanted if name not in cores]
    if unknown:
        raise ConfigError(f"no service {', '.join(unknown)}; there are {', '.join(cores)}")
    log = list(envelopes)
    result = Replayed()
    found = not isinstance(until, str)
    for name in wanted:
        entries = journal_of(name, log)
        if entries:
            found |= _replay_one(name, cores[name](), entries, log, until, result)
    if not found:
        raise ConfigError(f"no service has heard or said {until!r}")
    if incident is not None:
        result.differences = [item for item in result.differences if item.incident == incident]
    return result


def _replay_one(
    name: str,
    core: Core,
    entries: list[JournalEntry],
    log: list[Envelope],
    until: float | str | None,
    result: Replayed,
) -> bool:
    """Replay one service; True when the id to stop at was met."""
    known = {envelope.id: envelope for envelope in log}
    promised = {entry.input: entry.outputs for entry in entries}
    result.inputs[name] = result.outputs[name] = 0
    fed: set[str] = set()
    for _, cause, now in feeding_order(entries):
        if isinstance(until, float | int) and now > until:
            return False
        if cause in fed:
            continue
        fed.add(cause)
        envelope = known.get(cause)
        if envelope is None:
            result.differences.append(
                Difference(name, "lost input", None, note=f"input {cause} is not in the log")
            )
            continue
        said = _ask(core, name, envelope, now, result)
        then = {output: known.get(output) for output in promised.get(cause, ())}
        result.inputs[name] += 1
        result.outputs[name] += len(then)
        _compare(name, envelope, then, {output.id: output for output in said}, result)
        if isinstance(until, str) and (until == cause or until in then):
            return True
    return False


def _ask(core: Core, name: str, envelope: Envelope, now: float, result: Replayed) -> list[Envelope]:
    try:
        return envelopes_of(name, envelope, now, core.handle(envelope, now))
    except Exception as error:  # noqa: BLE001  # whatever a changed core raises is a difference
        note = f"the core raised {type(error).__name__}: {error}"
        result.differences.append(Difference(name, "raised", envelope, note=note))
        return []


def _compare(
    name: str,
    cause: Envelope,
    then: Mapping[str, Envelope | None],
    now: Mapping[str, Envelope],
    result: Replayed,
) -> None:
    for output, recorded in then.items():
        replayed = now.get(output)
        if replayed is None:
            note = "" if recorded is not None else f"output {output} is in the journal only"
            result.differences.append(Difference(name, "missing", cause, then=recorded, note=note))
        elif recorded is not None and _meaning(recorded) != _meaning(replayed):
            result.differences.append(Difference(name, "changed", cause, then=recorded, now=replayed))
    for output, replayed in now.items():
        if output not in then:
            result.differences.append(Difference(name, "new", cause, now=replayed))


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
