"""Whether the other end of a link is still reached, where nothing tells of it.

A peer that dies closes its connections, and a host that dies is silent on the bus.  Two machines between
which a network drops every packet, while both reach the bus, are neither: TCP itself gives up after a
quarter of an hour, and an end that only waits never does.

- *Who waits* has the kernel ask (TCP keepalive): a connection on which nothing comes back for some ten
  seconds is lost.
- *Who sends* looks whether what was sent is acknowledged.  The kernel does not ask while data is on its way,
  and its own limit for that (``TCP_USER_TIMEOUT``) also ends a connection whose peer only reads slowly:
  with a window that is closed, and acknowledged as such, all is well here.

Connections inside a machine need neither.  What lives here: what the kernel knows of a connection.  What
never lives here: what a lost one means (``engine``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmover.ccl.connection import Connection

LOOK_SECONDS = 2.0
"""From one look at all connections to the next."""
UNREACHED_SECONDS = 10.0
"""A connection on which nothing is acknowledged for this long is lost."""
IDLE_SECONDS, ASK_SECONDS, ASK_TIMES = 4, 2, 3
"""The kernel asks after this long without a word, then so often, in such intervals: ten seconds together."""

_COUNTS, _LAST_ACK = slice(2, 4), 56
"""In Linux's ``struct tcp_info``: repeats and probes without an answer; milliseconds since the last one."""


def ask_when_idle(sock: socket.socket) -> None:
    """Let the kernel ask the other end of a connection between machines whether it is there."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASK_TIMES)


def unreached(connections: Iterable[Connection], now: float) -> list[Connection]:
    """Connections on which what was sent is not acknowledged.  To be called every :data:`LOOK_SECONDS`.

    Args:
        connections: all there are; each remembers since when it is seen to wait.
        now: seconds of a clock that does not jump.
    """
    found = []
    for connection in connections:
        if connection.sock.family == socket.AF_UNIX or connection.closed:
            continue
        info = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK + 4)
        since = connection.unanswered_since
        # Since the look that saw it first nothing may have come: an answer in between begins it anew.
        answered = since is not None and struct.unpack_from("I", info, _LAST_ACK)[0] < 1000 * (now - since)
        if not any(info[_COUNTS]) or answered:
            connection.unanswered_since = None
        elif since is None:
            connection.unanswered_since = now
        elif now - since >= UNREACHED_SECONDS:
            found.append(connection)
    return found
