"""A service's way through a recorded log: what it heard, what that moved in it, what it said.

What lives here: :class:`Log`, a recorded log with its journals, and :class:`Course`, which feeds a fresh
core from it.  What never lives here: comparing (``replay``), telling (the programs).

The journal of a service says which input came when, and what it caused.  So a course needs no clock, and
courses of different services are independent: each may be followed alone, or all of them merged by time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trainmover.errors import ConfigError, DecodeError
from trainmover.events.catalogue import JournalCopy, JournalEntry
from trainmover.events.copies import original
from trainmover.events.envelope import Envelope
from trainmover.services.core import Core, Output, envelopes_of
from trainmover.services.tables import Moved, watched

FOREVER = float("inf")


class Log:
    """A recorded log, ready to be replayed.

    Args:
        envelopes: in the order of the stream, journal entries included.

    Attributes:
        known: the envelopes by id.
        journals: journal entries by service, in the order of feeding.
    """

    def __init__(self, envelopes: Iterable[Envelope]) -> None:
        self.known: dict[str, Envelope] = {}
        self.journals: dict[str, list[JournalEntry]] = {}
        for envelope in envelopes:
            self.known[envelope.id] = envelope
            event = envelope.event
            if isinstance(event, JournalEntry):
                self.journals.setdefault(event.service, []).append(event)
            elif isinstance(event, JournalCopy):
                with contextlib.suppress(DecodeError):
                    self.known.setdefault(event.about, original(envelope))
        for entries in self.journals.values():
            entries.sort(key=lambda entry: entry.number)


@dataclass(frozen=True, slots=True)
class Until:
    """Where courses end.

    Attributes:
        time: inputs later than this (unix seconds) are not fed.
        last: by service, the id of the last input that is fed; the others go up to ``time``.
    """

    time: float = FOREVER
    last: Mapping[str, str] = field(default_factory=dict)


def until(log: Log, text: float | str | None) -> Until:
    """What a time or the id of an event means for each service.

    A service that heard the event ends with it, one that said it ends with the input that caused it, and
    one that did neither ends at that time.

    Raises:
        ConfigError: it is an id that no service has heard or said.
    """
    if text is None:
        return Until()
    if not isinstance(text, str):
        return Until(float(text))
    last: dict[str, str] = {}
    times: list[float] = []
    for service, entries in log.journals.items():
        for entry in entries:
            if text in entry.quiet:
                last[service] = text
                times.append(entry.quiet[text])
            elif text == entry.input or text in entry.outputs:
                last[service] = entry.input
                times.append(entry.now)
            else:
                continue
            break
    if not last:
        raise ConfigError(f"no service has heard or said {text!r}")
    return Until(max(times), last)


@dataclass(frozen=True, slots=True)
class Step:
    """One input of one service, and what came of it.

    Attributes:
        service: whose.
        number: place in its journal.
        input: id of the input.
        cause: the input; None when the log does not have it.
        now: when it was fed, unix seconds.
        then: what the service said because of it as recorded, by id; None where the log does not have it.
        said: what a fresh core says.
        outputs: all that it answers, its timers and probes too.
        moves: transitions of its tables that this caused; only when watched.
        raised: what the core raised, if it did.
    """

    service: str
    number: int
    input: str
    cause: Envelope | None
    now: float
    then: Mapping[str, Envelope | None] = field(default_factory=dict)
    said: tuple[Envelope, ...] = ()
    outputs: tuple[Output, ...] = ()
    moves: tuple[Moved, ...] = ()
    raised: Exception | None = None


class Course:
    """One service's way through a log: iterate over it once.

    Args:
        name: the service.
        core: a fresh core.
        log: the log.
        until: where to end.
        watch: yield every input that moved anything, with its moves; else only those of which something
            was said, then or now, and those that could not be fed.

    Attributes:
        inputs: inputs fed so far.
        outputs: recorded outputs met so far.
    """

    def __init__(self, name: str, core: Core, log: Log, until: Until, *, watch: bool = False) -> None:
        self.name = name
        self.inputs = self.outputs = 0
        self._core = core
        self._log = log
        self._until = until
        self._watch = watch

    def __iter__(self) -> Iterator[Step]:
        known, fed, name = self._log.known, set[str](), self.name
        last, latest = self._until.last.get(name), self._until.time
        feed = self._watched if self._watch else self._quietly
        for entry in self._log.journals.get(name, ()):
            number = entry.number - len(entry.quiet)
            for cause, now, outputs in _inputs(entry):
                if now > latest:
                    return
                if cause not in fed:
                    fed.add(cause)
                    envelope = known.get(cause)
                    if envelope is None:
                        yield Step(name, number, cause, None, now)
                    else:
                        step = feed(number, envelope, now, outputs)
                        if step is not None:
                            yield step
                    if cause == last:
                        return
                number += 1

    def _quietly(self, number: int, cause: Envelope, now: float, outputs: tuple[str, ...]) -> Step | None:
        self.inputs += 1
        self.outputs += len(outputs)
        try:
            answer = self._core.handle(cause, now)
        except Exception as error:  # noqa: BLE001  # whatever a changed core raises is a difference
            return Step(self.name, number, cause.id, cause, now, self._then(outputs), raised=error)
        if not answer and not outputs:
            return None
        said = tuple(envelopes_of(self.name, cause, now, answer))
        if not said and not outputs:
            return None
        return Step(self.name, number, cause.id, cause, now, self._then(outputs), said, tuple(answer))

    def _watched(self, number: int, cause: Envelope, now: float, outputs: tuple[str, ...]) -> Step | None:
        self.inputs += 1
        self.outputs += len(outputs)
        then = self._then(outputs)
        with watched() as moves:
            try:
                answer = self._core.handle(cause, now)
            except Exception as error:  # noqa: BLE001  # whatever a changed core raises is a difference
                return Step(self.name, number, cause.id, cause, now, then, raised=error, moves=tuple(moves))
        if not answer and not outputs and not moves:
            return None
        said = tuple(envelopes_of(self.name, cause, now, answer))
        return Step(self.name, number, cause.id, cause, now, then, said, tuple(answer), tuple(moves))

    def _then(self, outputs: tuple[str, ...]) -> dict[str, Envelope | None]:
        known = self._log.known
        return {output: known.get(output) for output in outputs}


def _inputs(entry: JournalEntry) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    for cause, now in entry.quiet.items():
        yield cause, now, ()
    yield entry.input, entry.now, entry.outputs
