"""What the tests of the machine program share: a world with one machine in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.machine.worlds import World


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    arguments = getattr(request, "param", ())
    world = World(tmp_path, *arguments)
    # Other tests may have left helpers of their own (multiprocessing's resource tracker).
    before = set(psutil.Process().children(recursive=True))
    await world.begin()
    yield world
    assert world.task is not None
    if not world.task.done():
        world.agent.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(world.task, 15)
    assert not set(psutil.Process().children(recursive=True)) - before
    assert not os.path.exists(world.agent._socket.path)  # noqa: ASYNC240 - one look
