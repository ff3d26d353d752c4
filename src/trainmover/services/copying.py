"""Copying: an input that a core acted on is in the log in the end.

What lives here: a shell's way to put inputs into the log that their senders could not bring there.  What
never lives here: what a copy is (``events.copies``), how it is read again (``events.feed``).

Whoever says something repeats it until the log has it, which takes as long as the log stalls.  One that dies
in that time cannot; whoever heard it, however, acted on it, and its next life and every replay need it.  So
each service looks now and then for inputs that the log does not show some seconds after they were heard, and
puts a copy there.  A copy has the same id from whoever makes it, and the event in it the id that it always
had: nothing is fed twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from trainmover import logs
from trainmover.errors import BusError
from trainmover.events.bus import Bus, Feed
from trainmover.events.copies import copy_of
from trainmover.events.envelope import Envelope
from trainmover.services.core import Core

AFTER: Final = 5.0
"""Seconds after which an input that is not in the log is put there; its sender repeats it sooner."""

LOOK: Final = 2.0
"""Seconds between two looks for such inputs."""

LIMIT: Final = 3.0
"""Seconds that a look may take."""


class Copying:
    """Keeps the inputs of one service in the log; see the module.

    Args:
        core: whose inputs.
        bus: where copies go.
        now: unix seconds.
    """

    def __init__(self, core: Core, bus: Bus, now: Callable[[], float]) -> None:
        self._core = core
        self._bus = bus
        self._now = now
        self._log = logs.get(f"trainmover.services.{core.name}")

    async def run(self, feed: Feed) -> None:
        """Look for what is missing until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            await self.look(feed, AFTER)

    async def look(self, feed: Feed, age: float) -> None:
        """Put inputs into the log that were heard so many seconds ago and are not there.

        A log that cannot be read, or a bus that takes nothing more, is left for the next time.
        """
        with contextlib.suppress(BusError):
            missing = [envelope for envelope in await feed.unstored(age, LIMIT) if self._is_input(envelope)]
            if missing:
                self._log.warning(
                    "inputs go into the log for their senders", count=len(missing), first=missing[0].id
                )
            for envelope in missing:
                await self._bus.publish(copy_of(envelope, self._core.name, self._now()))

    def _is_input(self, envelope: Envelope) -> bool:
        # What this service has said is its own to repeat.
        return envelope.type in self._core.hears and envelope.source != self._core.name
