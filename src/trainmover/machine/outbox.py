"""The outbox of a machine: what it and its ranks say, in order, whatever the bus does.

What lives here: ids, envelopes, sending one after the other, and the last words.  What never lives here: what
there is to say (``agent``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from trainmover import clock
from trainmover.errors import BusError
from trainmover.events.bus import Bus
from trainmover.events.catalogue import Event
from trainmover.events.envelope import Envelope

GOODBYE_SECONDS: Final = 15.0
"""How long a machine tries to get its last events into the log, which may stall (a disk that is full)."""

log = logging.getLogger("trainmover.machine")


class Outbox:
    """What one life of a machine says; see the module.

    Args:
        bus: where to.
        machine: its name.
        incarnation: this life of it.
    """

    def __init__(self, bus: Bus, machine: str, incarnation: str) -> None:
        self._bus, self._machine, self._incarnation = bus, machine, incarnation
        self._said = 0
        self._waiting: asyncio.Queue[Envelope] = asyncio.Queue()

    def say(self, event: Event, source: str | None = None) -> None:
        """Put an event behind what was said before; ``source``: who says it, if it is not the machine."""
        self._waiting.put_nowait(self.envelope(event, source))

    def envelope(self, event: Event, source: str | None = None) -> Envelope:
        """An event as this life says it now."""
        self._said += 1
        return Envelope(
            id=f"{self._machine}-{self._incarnation}-{self._said}",
            source=source or f"machine/{self._machine}",
            time=clock.now(),
            job=self._bus.job,
            event=event,
        )

    async def send(self) -> None:
        """Publish in the order in which things were said; an event that cannot be sent stops no other."""
        while True:
            envelope = await self._waiting.get()
            try:
                await self._bus.publish(envelope)
            except BusError as error:
                log.error("could not say %s: %s", envelope, error)
            finally:
                self._waiting.task_done()

    async def flush(self) -> None:
        """Wait until all of it is in the log, or for as long as a machine that leaves can."""
        try:
            await asyncio.wait_for(self._waiting.join(), GOODBYE_SECONDS)
            await self._bus.flush(GOODBYE_SECONDS)
        except (BusError, TimeoutError) as error:
            log.warning("left without the bus knowing all of it: %s", error)
