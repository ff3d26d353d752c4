"""The unix socket between a machine program and its ranks.

What lives here: a server in a private folder with a short path (a socket path has at most 107
bytes), frames in, frames out, and who is at the other end.  What never lives here: what the events
mean.

A connection belongs to the process that the kernel says has opened it, so a rank cannot speak for
another; where the kernel does not say, its first event decides.  A rank that reads slowly is not
waited for: what it has not read yet is kept, up to a bound, and beyond that it is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from trainmover.errors import DecodeError
from trainmover.events.catalogue import Event, RankStarted
from trainmover.events.frames import Decoder, FrameError, encode_frame
from trainmover.machine import registry

READ_BYTES = 1 << 16
BACKLOG_BYTES = 8 << 20
"""Most bytes kept for a rank that does not read."""


class RankLine:
    """One rank's connection, seen from the machine program.

    Attributes:
        pid: process at the other end; None while the kernel does not tell and it has not said.
        closed: set once all that it ever sent was handed over.
    """

    def __init__(self, writer: asyncio.StreamWriter, pid: int | None) -> None:
        self.pid = pid
        self.closed = asyncio.Event()
        self._writer = writer

    def send(self, event: Event) -> None:
        """Give the rank an event; never waits, never raises for a rank that is gone."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > BACKLOG_BYTES:
            transport.abort()
            return
        self._writer.write(encode_frame(event))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


class RankSocket:
    """Accepts ranks and hands over what they say.

    Args:
        heard: called with each event, in order, and the line it came on.
        opened: called when a process has connected (its pid is known where the kernel tells).
        complaint: called with a sentence when a rank breaks the contract; its line is closed.
    """

    def __init__(
        self,
        heard: Callable[[RankLine, Event], None],
        opened: Callable[[RankLine], None],
        complaint: Callable[[str], None],
    ) -> None:
        self._heard = heard
        self._opened = opened
        self._complaint = complaint
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None
        self._lines: set[RankLine] = set()

    @property
    def path(self) -> str:
        """Where ranks connect; only after :meth:`start`."""
        if self._folder is None:
            raise RuntimeError("the socket is not open")
        return str(self._folder / "s")

    async def start(self) -> None:
        """Open the socket, in a new folder that only this user can enter."""
        self._folder = registry.socket_folder()
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def close(self) -> None:
        """Hang up on everybody and remove the folder."""
        if self._server is not None:
            self._server.close()
        for line in tuple(self._lines):
            line.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = RankLine(writer, _peer(writer))
        who = f"process {line.pid}" if line.pid is not None else "a rank"
        decoder = Decoder(who)
        self._lines.add(line)
        try:
            self._opened(line)
            while data := await reader.read(READ_BYTES):
                self._hear(line, decoder, data)
        except DecodeError as error:
            self._complaint(str(error))
        except ConnectionError:
            pass  # the rank died; its exit says so, and better
        finally:
            self._lines.discard(line)
            line.closed.set()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _hear(self, line: RankLine, decoder: Decoder, data: bytes) -> None:
        try:
            events, fault = decoder.feed(data), None
        except FrameError as error:
            events, fault = error.events, error
        for event in events:
            if line.pid is None and isinstance(event, RankStarted):
                line.pid = event.pid
                self._opened(line)
            self._heard(line, event)
        if fault is not None:
            raise fault


def _peer(writer: asyncio.StreamWriter) -> int | None:
    if sys.platform != "linux":
        return None
    connection = writer.get_extra_info("socket")
    pid, _uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid) or None
