"""The file that shows that a program lives."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.waiting import until
from trainmover.events import alive
from trainmover.events.alive import shown_alive
from trainmover.events.memory_bus import MemoryBroker


async def test_the_file_is_fresh_while_the_bus_is_there(tmp_path: Path, monkeypatch) -> None:
    """It appears, is touched again and again, grows old without the bus, and goes at the end."""
    file = tmp_path / "alive"
    monkeypatch.setenv(alive.VARIABLE, str(file))
    monkeypatch.setattr(alive, "SECONDS", 0.01)
    bus = MemoryBroker().connect("m0")
    async with shown_alive(bus):
        await until(file.exists)
        first = file.stat().st_mtime_ns
        await until(lambda: file.stat().st_mtime_ns > first)
        await bus.close()
        await until(lambda: bus.connected_for == 0.0)
        await asyncio.sleep(0.02)
        file.unlink(missing_ok=True)
        await asyncio.sleep(0.05)
        assert not file.exists()
    assert not file.exists()


async def test_without_the_variable_there_is_no_file(tmp_path: Path, monkeypatch) -> None:
    """Nobody asked for one."""
    monkeypatch.delenv(alive.VARIABLE, raising=False)
    async with shown_alive(MemoryBroker().connect("m0")):
        pass
    assert os.listdir(tmp_path) == []
