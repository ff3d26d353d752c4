"""What a core is: a decision maker without a clock, a network or luck.

Three rules hold for every core in this package.

1. *Nothing but its inputs.*  ``handle(envelope, now)`` is the only way in and the list that it
   returns is the only way out.  No clock, randomness, I/O, logging or asyncio.  Time is ``now``;
   a deadline is asked for by :class:`SetTimer` and comes back as a ``timer.fired`` event; a
   question to a machine is asked for by :class:`Probe` and comes back as ``machine.probed``.  So
   the log holds everything that a core ever knew, and a replay needs no clock.
2. *Any order, any number of times.*  Handlers write facts down (sets and dicts, so a second time
   changes nothing) and then *settle*: they walk the core's tables until no trigger holds.  Facts
   that come in another order settle to the same decisions.
3. *The same words for the same cause.*  The id of what a core says is derived from the id of the
   input and the place in the answer (:func:`said_id`), so that a service that dies and says it
   again is heard once.

:class:`Decider` is the base that the four cores share: the table of what it hears, the roster of
facts, and the outbox.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from trainmover.events.catalogue import Event, TimerFired
from trainmover.events.envelope import Envelope
from trainmover.services.roster import Roster


@dataclass(frozen=True, slots=True)
class Say:
    """Publish this event."""

    event: Event
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Say ``timer.fired`` with this name at ``due`` (unix seconds); replaces one of this name."""

    name: str
    due: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer of this name, if there is one."""

    name: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the machine whether it is there; the answer is ``machine.probed``."""

    machine: str
    incarnation: str


Output: TypeAlias = Say | SetTimer | CancelTimer | Probe


class Core(Protocol):
    """A decision maker that a shell can run."""

    @property
    def name(self) -> str:
        """The service's name, first part of the ids of what it says."""
        ...

    @property
    def areas(self) -> tuple[str, ...]:
        """Areas of the events that it hears or says."""
        ...

    @property
    def hears(self) -> frozenset[str]:
        """Type names of its inputs; all others are not given to it."""
        ...

    @property
    def says(self) -> frozenset[str]:
        """Type names of what it says."""
        ...

    def handle(self, envelope: Envelope, now: float) -> list[Output]:
        """Take one input in; ``now`` is unix seconds at the shell."""
        ...


def said_id(service: str, cause: str, index: int) -> str:
    """Id of the ``index``-th event that a service says because of ``cause``."""
    return f"{service}-{_digest(cause, index)[:20]}"


def timer_id(service: str, name: str, due: float) -> str:
    """Id of the ``timer.fired`` of one deadline."""
    return f"timer-{service}-{_digest(name, due)[:20]}"


def probe_id(service: str, cause: str, index: int) -> str:
    """Id of the answer to the ``index``-th probe that ``cause`` led to."""
    return f"probe-{service}-{_digest(cause, index)[:20]}"


def entry_id(service: str, cause: str) -> str:
    """Id of the ``journal.entry`` for an input."""
    return f"journal-{service}-{_digest(cause)[:20]}"


def incident_id(*parts: object) -> str:
    """Id of the incident that has this beginning, the same for everybody who derives it."""
    return f"inc-{_digest(*parts)[:8]}"


def envelopes_of(service: str, cause: Envelope, now: float, outputs: Iterable[Output]) -> list[Envelope]:
    """What a core says because of an input, with the ids and times that follow from it."""
    says = [output for output in outputs if isinstance(output, Say)]
    return [
        Envelope(
            id=said_id(service, cause.id, index),
            source=service,
            time=now,
            job=cause.job,
            event=output.event,
            incident=output.incident,
            cause=cause.id,
        )
        for index, output in enumerate(says)
    ]


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


Reaction = Callable[[Any, Any], None]
"""A method of a core that takes the event."""

MAX_ROUNDS = 1000
"""Rounds after which settling counts as a bug in a table (a circle of triggers)."""


class Decider:
    """Base of the cores: hears by a table, notes facts in a roster, settles, answers.

    A core gives ``name``, ``HEARS`` (event to reaction; a reaction may be :func:`noted` when the
    roster's note is all there is to do), ``SAYS`` and :meth:`advance`.
    """

    name: ClassVar[str]
    HEARS: ClassVar[Mapping[type[Event], Reaction]]
    SAYS: ClassVar[tuple[type[Event], ...]]

    def __init__(self) -> None:
        self.roster = Roster()
        self.now = 0.0
        self.heard: Envelope
        self._out: list[Output] = []

    @property
    def areas(self) -> tuple[str, ...]:
        """Areas of what it hears and says."""
        return tuple(sorted({model.type.split(".")[0] for model in (*self.HEARS, *self.SAYS)}))

    @property
    def hears(self) -> frozenset[str]:
        """Type names of its inputs."""
        return frozenset(model.type for model in self.HEARS)

    @property
    def says(self) -> frozenset[str]:
        """Type names of what it says."""
        return frozenset(model.type for model in self.SAYS)

    def handle(self, envelope: Envelope, now: float) -> list[Output]:
        """Note the facts, settle, and answer with everything that follows."""
        event = envelope.event
        reaction = self.HEARS.get(type(event))
        if reaction is None or self.roster.over:
            return []
        if isinstance(event, TimerFired) and event.service != self.name:
            return []
        self.now, self.heard, self._out = now, envelope, []
        self.roster.note(event)
        reaction(self, event)
        for _ in range(MAX_ROUNDS):
            if not self._round():
                return self._out
        raise RuntimeError(f"{self.name} does not settle on {envelope}: its tables run in a circle")

    def _round(self) -> bool:
        return not self.roster.over and self.advance()

    def advance(self) -> bool:
        """Take every transition whose trigger holds; False when there was none."""
        return False

    def say(self, event: Event, incident: str | None = None) -> None:
        """Answer with an event.  What it says about the cluster is a fact at once."""
        self._out.append(Say(event, incident))
        self.roster.note(event)

    def do(self, command: SetTimer | CancelTimer | Probe) -> None:
        """Answer with a command to the shell."""
        self._out.append(command)


def noted(core: Any, event: Any) -> None:
    """The reaction to events of which the roster's note is all there is to do."""
