"""A rank's line to its machine program: events out, events in, over the local socket.

One daemon thread reads; ``say`` writes from any thread.  When the machine program is gone the
rank ends itself: a rank without a machine can neither be seen nor be fenced.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable

from trainmover.ccl.forks import own
from trainmover.errors import DecodeError, JobError
from trainmover.events.catalogue import Event
from trainmover.events.frames import Decoder, encode_frame

log = logging.getLogger(__name__)

CONNECT_SECONDS = 20.0
EXIT_NO_MACHINE = 70


class ControlLine:
    """The connection to the machine program.

    Args:
        path: the machine program's unix socket.
        heard: called on the reader thread with each event, in order; must not block for long.
    """

    def __init__(self, path: str, heard: Callable[[Event], None]) -> None:
        self._heard = heard
        self._lock = threading.Lock()
        self._closing = False
        self._sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._sock.settimeout(CONNECT_SECONDS)
        try:
            self._sock.connect(path)
        except OSError as error:
            raise JobError(f"the machine program does not answer on {path}: {error}") from error
        self._sock.settimeout(None)
        self._thread = threading.Thread(target=self._read, name="trainmover-control", daemon=True)

    def start(self) -> None:
        """Begin to hear events."""
        self._thread.start()

    def say(self, event: Event) -> None:
        """Tell the machine program; it publishes the event on the bus."""
        data = encode_frame(event)
        with self._lock:
            if self._closing:
                return
            try:
                self._sock.sendall(data)
            except OSError as error:
                log.warning("could not say %s: %s", event.type, error)

    def close(self) -> None:
        """Hang up in good order."""
        with self._lock:
            self._closing = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()

    def _read(self) -> None:
        decoder = Decoder("the machine program")
        while True:
            try:
                data = self._sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            try:
                events = decoder.feed(data)
            except DecodeError:
                log.exception("the machine program broke the contract")
                break
            for event in events:
                try:
                    self._heard(event)
                except Exception:
                    log.exception("could not act on %s", event.type)
        if not self._closing:
            log.error("the machine program is gone; this rank ends")
            os._exit(EXIT_NO_MACHINE)
