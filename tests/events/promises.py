"""Helpers of the bus tests: reading with a limit, and what is said."""

from __future__ import annotations

import asyncio

from tests.events.examples import JOB
from trainmover.events.bus import Feed
from trainmover.events.catalogue import Heartbeat
from trainmover.events.envelope import Envelope

LIMIT = 30.0


async def take(feed: Feed, count: int, limit: float = LIMIT) -> list[str]:
    """Ids of the next envelopes of a feed."""
    async with asyncio.timeout(limit):
        return [(await anext(feed)).id for _ in range(count)]


def beat(number: int, machine: str = "m0") -> Envelope:
    """A heartbeat: an event that is not journalled."""
    event = Heartbeat(
        machine=machine,
        incarnation="i0",
        sequence=number,
        ranks=("running",),
        step=number,
        cpu_percent=1.0,
        rss_bytes=1,
    )
    return Envelope(id=f"{machine}-beat-{number}", source=machine, time=1.0, job=JOB, event=event)
