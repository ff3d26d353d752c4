"""Tasks end although a cancellation got lost."""

from __future__ import annotations

import asyncio

import pytest

from trainmover.events.tasks import check_cancelled, end_tasks


async def swallow(times: int) -> None:
    """An endless task that loses its first cancellations, as nats-py does."""
    while True:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            times -= 1
            if times < 0:
                raise


async def test_a_task_that_loses_cancellations_ends():
    """end_tasks asks again until the task has ended."""
    task = asyncio.create_task(swallow(3))
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks([task]), 5)
    assert task.cancelled()


async def test_a_lost_cancellation_is_found_in_the_next_round():
    """check_cancelled raises what was swallowed before, and nothing otherwise."""
    check_cancelled()

    async def rounds() -> None:
        while True:
            check_cancelled()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(rounds())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def test_what_had_failed_is_logged(caplog):
    """An endless task that failed in silence is named at the end."""

    async def fail() -> None:
        raise RuntimeError("in the background")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await end_tasks([task])
    assert "in the background" in caplog.text
