"""Copies: what was heard, and its sender could not bring into the log.

What lives here: :class:`Unstored`, which remembers what a feed has heard and the log has not shown yet, and
the ``journal.copy`` that carries such an event, there and back.  What never lives here: when a copy is made
(``services.copying``).

An event is heard at once and stored beside that by its sender, which repeats it until the log has it.  A
sender that dies while the log takes nothing (its disk is full, its leader is lost) leaves an event that
somebody acted on and that no log has.  Whoever heard it can tell: the log was read to its end, some time has
passed, and it is not there.  Then the event goes into the log inside another one, said by who heard it:
permissions are given by subject, and a service may not speak for a machine.  A feed that hears copies gives
its reader what is in them, unless it has given that before.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from typing import Final

from trainmover.errors import DecodeError
from trainmover.events.catalogue import JournalCopy, JournalEntry
from trainmover.events.codec import decode_message, encode_message
from trainmover.events.envelope import Envelope

UNSTORED_MOST: Final = 16384
"""Events that a feed remembers at most until the log shows them; what is heard beyond is taken for stored."""

TAKEN_MOST: Final = 64
"""Events at most that were handed out to be copied and that the log has not shown since."""


class Unstored:
    """What was heard and was not seen in the log.

    Args:
        most: events remembered at most.
    """

    def __init__(self, most: int = UNSTORED_MOST) -> None:
        self._most = most
        self._waiting: dict[str, tuple[float, Envelope]] = {}
        self._taken: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def heard(self, envelope: Envelope, now: float) -> None:
        """An event that the log has not shown is heard, at a time in seconds of any clock."""
        if len(self._waiting) < self._most:
            self._waiting.setdefault(envelope.id, (now, envelope))

    def stored(self, envelope: Envelope) -> None:
        """The log has this one, or a copy of one."""
        self._forget(envelope.id)
        if isinstance(envelope.event, JournalCopy):
            self._forget(envelope.event.about)

    def take(self, before: float) -> list[Envelope]:
        """What was heard until a time and is not stored, oldest first; each is given once.

        Few at a time: while the log takes nothing, everything is missing.
        """
        room = TAKEN_MOST - len(self._taken)
        found = [envelope for at, envelope in self._waiting.values() if at <= before][: max(0, room)]
        for envelope in found:
            del self._waiting[envelope.id]
            self._taken.add(envelope.id)
        return found

    def _forget(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._taken.discard(name)


def copy_of(envelope: Envelope, service: str, now: float) -> Envelope:
    """The event that carries another into the log; the same id, whoever says it.

    Raises:
        BusError: it cannot be encoded.
    """
    headers, body = encode_message(envelope)
    event = JournalCopy(service=service, about=envelope.id, headers=headers, body=body)
    return Envelope(
        id=f"copy-{hashlib.sha256(envelope.id.encode()).hexdigest()[:20]}",
        source=service,
        time=now,
        job=envelope.job,
        event=event,
        cause=envelope.id,
    )


def original(envelope: Envelope) -> Envelope:
    """The event inside a copy; any other event as it is.

    Raises:
        DecodeError: there is none in it, or not the one that the copy is about.
    """
    copy = envelope.event
    if not isinstance(copy, JournalCopy):
        return envelope
    found = decode_message(copy.headers, copy.body)
    if found.id != copy.about or found.job != envelope.job or not found.event.journalled:
        raise DecodeError(f"{envelope.id} of {envelope.source} is no copy of {copy.about}")
    if isinstance(found.event, JournalCopy | JournalEntry):
        raise DecodeError(f"{envelope.id} of {envelope.source} copies a {found.type}")
    return found


def opened(log: Iterable[Envelope]) -> list[Envelope]:
    """A log with what its copies carry, each before its copy, unless it is there itself."""
    envelopes = list(log)
    known = {envelope.id for envelope in envelopes}
    found: list[Envelope] = []
    for envelope in envelopes:
        if isinstance(envelope.event, JournalCopy) and envelope.event.about not in known:
            with contextlib.suppress(DecodeError):
                found.append(original(envelope))
                known.add(envelope.event.about)
        found.append(envelope)
    return found
