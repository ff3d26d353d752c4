"""The socket of a machine program: private, framed, and deaf to nonsense."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import until
from trainmover.events import catalogue as say
from trainmover.events.frames import Decoder, encode_frame
from trainmover.machine.rank_socket import RankLine, RankSocket

MOVE = say.MoveRequested(machine="m0", reason="x" * 1000)


class Ears:
    """Hears everything that comes over a socket."""

    def __init__(self) -> None:
        self.events: list[say.Event] = []
        self.lines: list[RankLine] = []
        self.complaints: list[str] = []
        self.socket = RankSocket(
            lambda line, event: self.events.append(event), self.lines.append, self.complaints.append
        )


@pytest.fixture
async def ears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ears]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ears = Ears()
    await ears.socket.start()
    yield ears
    await ears.socket.close()
    assert not os.path.exists(ears.socket.path)  # noqa: ASYNC240 - one look


async def test_events_go_both_ways_however_they_are_cut(ears: Ears) -> None:
    """Frames that arrive byte by byte are whole events; the caller is known by its process id."""
    reader, writer = await asyncio.open_unix_connection(ears.socket.path)
    for byte in encode_frame(MOVE):
        writer.write(bytes([byte]))
        await writer.drain()
    await until(lambda: ears.events == [MOVE])
    assert ears.lines[0].pid == os.getpid()
    ears.lines[0].send(say.JobFailed(reason="stop"))
    assert Decoder().feed(await reader.read(1 << 16)) == [say.JobFailed(reason="stop")]
    writer.close()
    await asyncio.wait_for(ears.lines[0].closed.wait(), 5)


async def test_nonsense_ends_one_line_and_no_other(ears: Ears) -> None:
    """A frame that breaks the contract is complained about; what came before it still counts."""
    reader, writer = await asyncio.open_unix_connection(ears.socket.path)
    writer.write(encode_frame(MOVE) + b"\xff" * 64)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    assert ears.events == [MOVE]
    assert "announces" in ears.complaints[0]
    _, second = await asyncio.open_unix_connection(ears.socket.path)
    second.write(encode_frame(MOVE))
    await until(lambda: len(ears.events) == 2)
    second.close()
    await asyncio.wait_for(ears.lines[1].closed.wait(), 5)


async def test_the_folder_is_private(ears: Ears) -> None:
    """Nobody else can enter the folder of the socket."""
    assert os.stat(os.path.dirname(ears.socket.path)).st_mode & 0o077 == 0


async def test_a_rank_that_does_not_read_is_cut_off(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that never reads costs bounded memory and then its line."""
    monkeypatch.setattr("trainmover.machine.rank_socket.BACKLOG_BYTES", 1 << 16)
    _, writer = await asyncio.open_unix_connection(ears.socket.path)
    writer.transport.pause_reading()
    await until(lambda: ears.lines)
    for _ in range(2000):
        ears.lines[0].send(MOVE)
    await asyncio.wait_for(ears.lines[0].closed.wait(), 5)
    writer.close()
