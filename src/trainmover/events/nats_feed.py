"""A feed over NATS: what is heard, and what the log says was missed.

What lives here: one feed's subscriptions and its catching up.  What never lives here: decoding
(its bus does that) and the queue to the reader (``feed``).

Two sources fill one queue, which keeps each id once.  Subscriptions bring what is said now, in
the order of arrival.  The log brings what was said before (if history was asked for) and what
was missed: after a reconnect, after too much was waiting, and, as nobody may be told that a
message was lost between two servers, now and then anyway (the *sweep*; it costs one small answer
when there is nothing).  While the first history is being read, what is heard waits for it; after a
reconnect too, to keep the order, but only for a moment, because a switch must not wait for the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trainmover.errors import BusError
from trainmover.events.client import Arrived
from trainmover.events.connection import Connection, Route
from trainmover.events.envelope import Envelope
from trainmover.events.feed import QUEUE_LIMIT, FeedQueue
from trainmover.events.filters import wanted
from trainmover.events.history import History
from trainmover.events.tasks import check_cancelled, end_tasks

SWEEP_FIRST: Final = 1.0
SWEEP_LAST: Final = 10.0
"""Seconds until the log is looked at without a reason: the first after a gap, doubling up to the last."""

HOLD_SECONDS: Final = 0.5
"""After a reconnect, what is heard waits this long at most for what was missed."""

AGAIN_SECONDS: Final = 0.1
"""Pause after the log could not be read."""

Read = Callable[[str, Mapping[str, str] | None, bytes, bool], Envelope | None]
"""(subject, headers, body, whether it is news) -> the envelope; None if it is none."""

logger = logging.getLogger(__name__)


class NatsFeed(FeedQueue):
    """Made by :meth:`trainmover.events.nats_bus.NatsBus.feed`."""

    def __init__(
        self,
        connection: Connection,
        history: History,
        read: Read,
        filters: tuple[str, ...] | None,
        *,
        from_start: bool,
    ) -> None:
        super().__init__(history=from_start, limit=QUEUE_LIMIT)
        self._connection = connection
        self._history = history
        self._read = read
        self._filters = filters
        self._cursor = 0
        self._reading_past = from_start
        self._holding = from_start
        self._held: list[Envelope] = []
        self._arrived: list[Arrived] = []
        self._routes: list[Route] = []
        self._gap = asyncio.Event()
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def open(self, subjects: Sequence[str]) -> None:
        """Subscribe.

        Raises:
            BusError: the bus did not answer.
        """
        self._connection.on_lost.append(self._on_lost)
        self._connection.on_up.append(self._on_up)
        self._routes = await self._connection.subscribe(subjects, self._receive, self._gap.set)

    def begin(self, cursor: int) -> None:
        """The log up to this sequence is of no interest; read on from there."""
        self._cursor = cursor
        if self._reading_past:
            self._gap.set()
        self._task = asyncio.create_task(self._catch_up())

    async def close(self) -> None:
        """See :class:`trainmover.events.bus.Feed`."""
        self.end()
        if self._on_up in self._connection.on_up:
            self._connection.on_up.remove(self._on_up)
            self._connection.on_lost.remove(self._on_lost)
        await self._connection.unsubscribe(self._routes)
        if self._task is not None:
            await end_tasks([self._task])

    def wants(self, envelope: Envelope) -> bool:
        """See :meth:`FeedQueue.wants`."""
        return wanted(self._filters, envelope.type)

    # -- what is heard

    async def _receive(self, message: Arrived) -> None:
        # nats-py has one task per subscription, so messages on several subjects come out of order.
        # All of one read are here before the loop comes to _sort_out, which puts them right.
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._sort_out)
        self._arrived.append(message)

    def _sort_out(self) -> None:
        messages, self._arrived = self._arrived, []
        messages.sort(key=lambda message: message.arrival)
        for message in messages:
            envelope = self._read(message.subject, message.headers, message.data, True)
            if envelope is None:
                continue
            if not self._holding:
                if not self.offer(envelope):
                    self._gap.set()
            elif len(self._held) < QUEUE_LIMIT:
                self._held.append(envelope)
            # Else dropped: the log has it or will have it, and the sweep finds it.

    def _release(self) -> None:
        """Nothing waits for the log any more."""
        if self._reading_past:
            return
        self._holding = False
        held, self._held = self._held, []
        for envelope in held:
            if not self.offer(envelope):
                self._gap.set()

    # -- what was missed

    def _on_lost(self) -> None:
        # Before the subscriptions are back: the first message after them may be ahead of a gap.
        self._holding = True

    def _on_up(self) -> None:
        asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release)
        self._gap.set()

    async def _catch_up(self) -> None:
        pause = SWEEP_FIRST
        while True:
            check_cancelled()
            try:
                async with asyncio.timeout(pause):
                    await self._gap.wait()
                pause = SWEEP_FIRST
            except TimeoutError:
                pause = min(2 * pause, SWEEP_LAST)
            self._gap.clear()
            try:
                await self._read_on()
            except BusError as error:
                logger.debug("%s: %s", self._connection.name, error)
                await asyncio.sleep(AGAIN_SECONDS)
                self._gap.set()

    async def read_log(self, limit: float) -> None:
        """See :meth:`FeedQueue.read_log`.

        Raises:
            BusError: the log did not answer in time.
        """
        try:
            async with asyncio.timeout(limit):
                await self._read_on()
        except TimeoutError:
            raise BusError(f"the log was not read within {limit:g} s") from None

    async def _read_on(self) -> None:
        async with self._reading:
            await self._read_to_the_end()

    async def _read_to_the_end(self) -> None:
        async for batch in self._history.read(self._cursor + 1):
            for stored in batch:
                envelope = self._read(stored.subject, stored.headers, stored.body, not self._reading_past)
                if envelope is not None and self.wants(envelope):
                    while not self.offer(envelope, stored=True):
                        await self.room()
                self._cursor = stored.sequence
        if self._reading_past:
            self._reading_past = False
            self.history_done()
        self._release()
