"""How tests wait for what others bring about: look again and again, with a limit.

The limit is wide on purpose.  A test that passes never waits for it, and a computer that does three things at
once may need ten times as long as usual for each; a test about how long something takes measures that itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import psutil

LIMIT = 60.0
"""Seconds; less than a test may take (``timeout`` in pyproject.toml), so that it can say what was missing."""

What = str | Callable[[], object]
"""What is waited for, or what tells it when it did not come about."""


async def until(condition: Callable[[], object], what: What = "the condition", limit: float = LIMIT) -> None:
    """Wait in an event loop until a condition holds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, _late(what, limit)
        await asyncio.sleep(0.005)


def wait_until(
    condition: Callable[[], object],
    what: What,
    limit: float = LIMIT,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Wait in a thread until a condition holds; ``meanwhile`` raises when it never will."""
    end = time.monotonic() + limit
    while not condition():
        meanwhile()
        assert time.monotonic() < end, _late(what, limit)
        time.sleep(0.002)


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until it has come: threads of a process run on until one of them takes it in."""
    os.kill(pid, signal.SIGSTOP)
    process = psutil.Process(pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"process {pid} stands still")


def _late(what: What, limit: float) -> str:
    return f"{what if isinstance(what, str) else what()}: not within {limit:g} s"
