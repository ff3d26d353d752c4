"""Ending asyncio tasks for certain.

What lives here: two helpers for tasks that run for as long as their owner.  A cancellation is a
request that can get lost: nats-py catches it while it flushes, ``wait_for`` of Python 3.11 drops
it when its result comes in the same moment.  An endless task would then go on for ever, and its
program would hang at its end.  So endless tasks ask ``check_cancelled`` in every round, and their
owners use ``end_tasks``, which asks more than once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

CANCELS: Final = 20
"""Times that a task is asked to end, a tenth of a second apart."""

logger = logging.getLogger(__name__)


def check_cancelled() -> None:
    """For every round of an endless task: raise the cancellation that nats-py may have swallowed.

    Raises:
        asyncio.CancelledError: this task was asked to end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise asyncio.CancelledError


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; never raises, logs what had failed."""
    for _ in range(CANCELS):
        pending = [task for task in tasks if not task.done()]
        if not pending:
            break
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.1)
    for task in tasks:
        if not task.done():
            logger.error("%s does not end", task)
        elif not task.cancelled() and task.exception() is not None:
            logger.error("%s had failed", task, exc_info=task.exception())
