"""The driver of a local run: what it keeps up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainmover.chaos import disk
from trainmover.events import NatsBus, NatsServer
from trainmover.machine.rundir import RunDir
from trainmover.machine.supervisor import LocalRun, RunConfig

pytestmark = pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")


async def until(condition: Callable[[], bool], limit: float = 20.0) -> None:
    """Wait for a condition, with a limit."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the condition did not come about in time"
        await asyncio.sleep(0.02)


async def test_a_server_that_died_on_a_full_disk_is_started_when_there_is_room(tmp_path: Path) -> None:
    """Before, it could not write where it listens, or would store nothing for good."""
    folder = tmp_path / "run"
    disk.mount(folder)
    notices: list[str] = []
    config = RunConfig(script=Path(__file__), machines=2)
    run = LocalRun(config, RunDir.create(folder), lambda _: None, notices.append)
    server = NatsServer(run.run_dir.bus)
    try:
        server.start()
        keeping = asyncio.ensure_future(run._keep_server(server))
        await asyncio.sleep(0)
        disk.fill(folder)
        server.kill()
        await until(lambda: notices == ["the bus ended; it is started again"])
        await asyncio.sleep(1.0)  # as long as it takes to see that it stays down
        assert not server.running
        disk.empty(folder)
        await until(lambda: server.running)
        bus = await NatsBus.connect(server.url, run.job, "writer")
        await bus.close()
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
    finally:
        server.kill()
        disk.unmount(folder)
