"""Waiting for sockets: which connection has something to read, to write, or has been hung up on.

One epoll set for an engine's connections, its listening sockets and the descriptor that wakes it.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from trainmover.ccl.connection import READ_AHEAD, Connection

AT_ONCE = 64
"""How many of them are dealt with before it looks again."""

ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Poller:
    """What one engine waits for.

    Args:
        wake_fd: readable when somebody asks the engine for something.
        heard: called when it is.
        knocked: called with another socket's descriptor when that is readable.
    """

    def __init__(self, wake_fd: int, heard: Callable[[], None], knocked: Callable[[int], None]) -> None:
        self._wake_fd, self._heard, self._knocked = wake_fd, heard, knocked
        self._poll = select.epoll()
        self._poll.register(wake_fd, select.EPOLLIN)
        self._watched: dict[int, tuple[Connection, int]] = {}
        self._buffers: list[bytearray] = []

    def wait(self, seconds: float) -> None:
        """Wait for something and let the connections move their bytes."""
        watched = self._watched
        for fd, events in self._poll.poll(seconds, AT_ONCE):
            entry = watched.get(fd)
            if entry is None:
                if fd == self._wake_fd:
                    self._heard()
                else:
                    self._knocked(fd)
            elif events == select.EPOLLIN:
                entry[0].readable()
            else:
                self._happened(entry[0], events)

    @staticmethod
    def _happened(connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            connection.writable()
        if events & select.EPOLLIN:
            connection.readable()
        if events & ENDED:
            connection.hung_up()

    def watch(self, connection: Connection) -> None:
        """Start moving a connection's bytes."""
        mask = connection.mask
        self._watched[connection.fd] = (connection, mask)
        self._poll.register(connection.fd, mask)

    def unwatch(self, connection: Connection) -> None:
        """Stop watching; the connection may be closed already."""
        if self.watches(connection):
            del self._watched[connection.fd]
            if not connection.closed:
                self._poll.unregister(connection.fd)

    def watches(self, connection: Connection) -> bool:
        """True while a connection is watched (a later one may have its descriptor)."""
        entry = self._watched.get(connection.fd)
        return entry is not None and entry[0] is connection

    def change(self, connection: Connection, mask: int) -> None:
        """A watched connection waits for this now."""
        if mask != self._watched[connection.fd][1]:
            self._watched[connection.fd] = (connection, mask)
            self._poll.modify(connection.fd, mask)

    def watch_socket(self, fd: int) -> None:
        """Report when another socket is readable."""
        self._poll.register(fd, select.EPOLLIN)

    def lend(self) -> bytearray:
        """A buffer to read into for a moment; one serves all connections, as they read in turn."""
        return self._buffers.pop() if self._buffers else bytearray(READ_AHEAD)

    def give_back(self, buffer: bytearray) -> None:
        """The lent buffer is free again."""
        self._buffers.append(buffer)

    def close(self) -> None:
        """Wait for nothing more."""
        self._poll.close()
