"""The journal: in which order a core was fed, so that a replay and a next life feed it alike.

What lives here: writing the entries of one service, and reading their order.  What never lives here: feeding
(``shell``, ``course``).

Replay must follow the order in which the core was fed, which is not that of the stream.  So each input is
journalled (``journal.entry``: its id, its ``now``, the ids of what it caused), and the entry is published
*before* the outputs, on the same connection.  Nobody waits for it to be stored.  Inputs that caused nothing
are collected and travel with the next entry (``quiet``), or alone after :data:`QUIET_SECONDS`.  What follows:
whenever an output is in the log, the order of all that led to it is there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from trainmover.events.bus import Bus
from trainmover.events.catalogue import JournalEntry
from trainmover.events.envelope import Envelope
from trainmover.services.core import entry_id

QUIET_SECONDS: Final = 0.5
"""Seconds after which inputs that caused nothing are journalled alone."""

QUIET_MOST: Final = 256
"""Inputs that caused nothing in one journal entry at most."""


class Journal:
    """Writes what one service was fed.

    Args:
        service: whose journal.
        bus: where it goes, in order with what the service says.
        spawn: runs a coroutine; what it raises ends the service.

    Attributes:
        number: inputs journalled so far, those of earlier lives included.
    """

    def __init__(self, service: str, bus: Bus, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.number = 0
        self._service = service
        self._bus = bus
        self._spawn = spawn
        self._quiet: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, cause: str, now: float, outputs: tuple[str, ...]) -> None:
        """Journal an input that caused something, and with it those that did not."""
        quiet, self._quiet = self._quiet, {}
        self.stop()
        self.number += len(quiet) + 1
        entry = JournalEntry(
            service=self._service, number=self.number, input=cause, now=now, outputs=outputs, quiet=quiet
        )
        await self._bus.publish(
            Envelope(
                id=entry_id(self._service, cause),
                source=self._service,
                time=now,
                job=self._bus.job,
                event=entry,
                cause=cause,
            )
        )

    async def collect(self, cause: str, now: float) -> None:
        """Journal an input that caused nothing, sooner or later."""
        self._quiet[cause] = now
        if len(self._quiet) >= QUIET_MOST:
            await self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._flush_soon)

    async def flush(self) -> None:
        """Journal what was collected."""
        if self._quiet:
            cause, now = self._quiet.popitem()
            await self.write(cause, now, ())

    def stop(self) -> None:
        """Wait for nothing any more; what was collected stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_soon(self) -> None:
        self._timer = None
        self._spawn(self.flush())


def journal_of(service: str, envelopes: Iterable[Envelope]) -> list[JournalEntry]:
    """A service's journal entries, in the order of feeding."""
    entries = [e.event for e in envelopes if isinstance(e.event, JournalEntry) and e.event.service == service]
    return sorted(entries, key=lambda entry: entry.number)


def feeding_order(entries: Iterable[JournalEntry]) -> Iterable[tuple[int, str, float]]:
    """(number, input, now) of every input that entries tell of, oldest first."""
    for entry in entries:
        first = entry.number - len(entry.quiet)
        for place, (quiet, now) in enumerate(entry.quiet.items()):
            yield first + place, quiet, now
        yield entry.number, entry.input, entry.now
