"""Events that keep the log: timers, the order in which cores were fed, copies of events, dead letters."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from trainmover.events.catalogue.base import Count, Event, Name, Seconds, Text


class TimerFired(Event):
    """A deadline that a core had asked for is reached (a service's shell)."""

    type: ClassVar[str] = "timer.fired"

    service: Name
    name: Name
    due: Seconds


class JournalEntry(Event):
    """A service's shell fed one input to its core; these outputs came of it (shell)."""

    type: ClassVar[str] = "journal.entry"

    service: Name
    number: Count
    input: Name
    now: Seconds
    outputs: tuple[Name, ...]
    quiet: Annotated[dict[Name, Seconds], Field(max_length=1024)] = {}  # noqa: RUF012 - pydantic copies it
    """Inputs fed before this one that caused nothing, oldest first, each with its ``now``."""


class JournalCopy(Event):
    """A service has heard an event that its sender did not bring into the log; here it is (shell)."""

    type: ClassVar[str] = "journal.copy"

    service: Name
    about: Name
    """Id of the event."""
    headers: Annotated[dict[Name, Text], Field(max_length=32)]
    """The event's own headers."""
    body: bytes
    """The event's own body."""


class DeadLetter(Event):
    """Something on the bus could not be decoded (whoever read it)."""

    type: ClassVar[str] = "dead.letter"

    subject: Text
    reason: Text
    body: Annotated[bytes, Field(max_length=4096)] = b""
