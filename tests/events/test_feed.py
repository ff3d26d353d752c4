"""The queue behind a feed."""

from __future__ import annotations

import asyncio

import pytest

from tests.events.examples import left
from trainmover.errors import BusError
from trainmover.events.feed import FeedQueue, RecentIds


async def test_each_id_once():
    """The same id offered again is taken and not given again."""
    queue = FeedQueue(history=False)
    assert all(queue.offer(left(number)) for number in (1, 2, 1, 2, 3, 1))
    queue.end()
    assert [envelope.id async for envelope in queue] == ["m0-1", "m0-2", "m0-3"]


async def test_past_is_what_came_before_the_mark():
    """past() gives what was offered before history_done, iteration the rest."""
    queue = FeedQueue(history=True)
    reading = asyncio.create_task(queue.past(5))
    queue.offer(left(1))
    await asyncio.sleep(0)
    queue.offer(left(2))
    queue.history_done()
    queue.offer(left(3))
    assert [envelope.id for envelope in await reading] == ["m0-1", "m0-2"]
    assert (await anext(queue)).id == "m0-3"
    assert await queue.past(5) == []


async def test_past_that_takes_too_long_loses_nothing():
    """After a BusError of past() everything can still be read."""
    queue = FeedQueue(history=True)
    queue.offer(left(1))
    with pytest.raises(BusError, match=r"within 0\.01 s \(1 events"):
        await queue.past(0.01)
    queue.history_done()
    assert [envelope.id for envelope in await queue.past(5)] == ["m0-1"]


async def test_past_of_a_closed_feed_fails():
    """A feed closed before its past is in says so."""
    queue = FeedQueue(history=True)
    await queue.close()
    with pytest.raises(BusError, match="closed"):
        await queue.past(5)


async def test_a_full_queue_refuses_until_half_is_read():
    """A full queue takes no more; room() comes when half is free; a refused one is not 'seen'."""
    queue = FeedQueue(history=False, limit=4)
    assert [queue.offer(left(number)) for number in range(6)] == [True] * 4 + [False] * 2
    room = asyncio.create_task(queue.room())
    await anext(queue)
    await asyncio.sleep(0)
    assert not room.done()
    await anext(queue)
    await asyncio.wait_for(room, 5)
    assert queue.offer(left(4))


async def test_end_wakes_a_reader():
    """A reader that waits ends when the feed does."""
    queue = FeedQueue(history=False)
    reader = asyncio.create_task(anext(queue, None))
    await asyncio.sleep(0)
    await queue.close()
    assert await asyncio.wait_for(reader, 5) is None
    assert queue.offer(left(1))


def test_recent_ids_are_bounded():
    """The last ids are known, and never more than twice the number to keep."""
    ids = RecentIds(keep=10)
    for number in range(1000):
        ids.add(str(number))
        assert len(ids) <= 20
    assert all(str(number) in ids for number in range(990, 1000))
    assert "1" not in ids
