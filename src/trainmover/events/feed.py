"""The queue behind a feed: each id once, the past before the present, never more than a limit.

What lives here: :class:`FeedQueue`, which every carrier fills and every reader empties, and
:class:`RecentIds`.  What never lives here: where envelopes come from.

The filler calls ``offer`` for what it hears (it may offer the same id many times and in any
order), ``history_done`` once the log's past is in, and ``end`` to finish.  The reader calls
``past`` and iterates.  ``offer`` never waits: a full queue refuses, and the filler fetches what
was refused from the log once ``room`` says that the reader has caught up.

A copy (``copies``) gives the reader the event that it carries, if nothing has brought it before, and then the
copy itself.  And the queue knows what was heard and has not come out of the log yet (``unstored``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from trainmover.errors import BusError, DecodeError
from trainmover.events.bus import Feed
from trainmover.events.catalogue import JournalCopy
from trainmover.events.copies import Unstored, original
from trainmover.events.envelope import Envelope

QUEUE_LIMIT: Final = 65536
"""Envelopes that may wait for a reader."""

IDS_KEPT: Final = 131072
"""A feed remembers at least this many of the last ids."""

logger = logging.getLogger(__name__)


class RecentIds:
    """A set of the last ids, bounded: two halves, the older dropped when the newer is full."""

    def __init__(self, keep: int = IDS_KEPT) -> None:
        self._keep = keep
        self._new: set[str] = set()
        self._old: set[str] = set()

    def __contains__(self, item: str) -> bool:
        return item in self._new or item in self._old

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def add(self, item: str) -> None:
        """Remember an id."""
        self._new.add(item)
        if len(self._new) >= self._keep:
            self._old, self._new = self._new, set()


class FeedQueue(Feed):
    """Envelopes from a carrier to one reader.

    Args:
        history: whether the carrier will bring the log's past first.
        limit: envelopes that may wait.
    """

    def __init__(self, *, history: bool, limit: int = QUEUE_LIMIT) -> None:
        self._limit = limit
        self._waiting: deque[Envelope] = deque()
        self._seen = RecentIds()
        self._unstored = Unstored()
        self._taken = 0
        self._past_end: int | None = None if history else 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False

    # -- the carrier's side

    def offer(self, envelope: Envelope, *, stored: bool = False) -> bool:
        """Take an envelope, or know it already; False: full, fetch it again after ``room``.

        Args:
            stored: it comes out of the log.
        """
        if stored:
            self._unstored.stored(envelope)
        if self._ended or envelope.id in self._seen:
            return True
        if isinstance(envelope.event, JournalCopy) and not self._offer_original(envelope, stored):
            return False
        if len(self._waiting) >= self._limit:
            self._room.clear()
            return False
        self._seen.add(envelope.id)
        self._waiting.append(envelope)
        if not stored:
            self._unstored.heard(envelope, asyncio.get_running_loop().time())
        self._wake.set()
        return True

    def _offer_original(self, copy: Envelope, stored: bool) -> bool:
        """What a copy carries comes before it, if nobody has brought it yet."""
        try:
            envelope = original(copy)
        except DecodeError as error:
            logger.warning("a copy cannot be read: %s", error)
            return True
        return not self.wants(envelope) or self.offer(envelope, stored=stored)

    def wants(self, envelope: Envelope) -> bool:
        """Whether it is for this feed at all, by its type."""
        return True

    async def room(self) -> None:
        """Wait until at least half of the queue is free (or the feed has ended)."""
        await self._room.wait()

    def history_done(self) -> None:
        """Everything offered so far was the past."""
        if self._past_end is None:
            self._past_end = self._taken + len(self._waiting)
            self._wake.set()

    def end(self) -> None:
        """Nothing more will come; the reader gets what is there and then the end."""
        self._ended = True
        self._wake.set()
        self._room.set()

    # -- the reader's side

    def __aiter__(self) -> AsyncIterator[Envelope]:
        return self

    async def __anext__(self) -> Envelope:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            await self._wait()
        return self._take()

    @property
    def caught_up(self) -> bool:
        """Whether the reader has had all that the log held when the feed was made."""
        return self._past_end is not None and self._taken >= self._past_end

    async def past(self, limit: float) -> list[Envelope]:
        """See :meth:`trainmover.events.bus.Feed.past`."""
        found: list[Envelope] = []
        try:
            async with asyncio.timeout(limit):
                while self._past_end is None or self._taken < self._past_end:
                    if self._waiting:
                        found.append(self._take())
                    elif self._ended:
                        raise BusError("the feed was closed while its past was read")
                    else:
                        await self._wait()
        except TimeoutError:
            # What was read stays readable: put it back as if this call had never been made.
            self._waiting.extendleft(reversed(found))
            self._taken -= len(found)
            raise BusError(
                f"the log's past was not read within {limit:g} s ({len(found)} events so far):"
                " check that JetStream is up"
            ) from None
        return found

    async def unstored(self, age: float, limit: float) -> list[Envelope]:
        """See :meth:`trainmover.events.bus.Feed.unstored`."""
        if not self._unstored:
            return []
        until = asyncio.get_running_loop().time() - age
        await self.read_log(limit)
        return self._unstored.take(until)

    async def read_log(self, limit: float) -> None:
        """Read from the log what was not read yet, to its end; the carrier does it."""

    async def close(self) -> None:
        """See :meth:`trainmover.events.bus.Feed.close`."""
        self.end()

    def _take(self) -> Envelope:
        self._taken += 1
        envelope = self._waiting.popleft()
        if not self._room.is_set() and len(self._waiting) <= self._limit // 2:
            self._room.set()
        return envelope

    async def _wait(self) -> None:
        self._wake.clear()
        await self._wake.wait()
