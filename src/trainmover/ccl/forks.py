"""What a forked child must not keep: the sockets of this process.

A data loader forks its workers out of the rank, and a child holds every descriptor of its parent.  A
connection that the rank closes would then not be closed: its peer is not told, and the kernel goes on
reporting the old one's events under a descriptor that belongs to the next connection by then.  So a child
lets go of all of them at once, before it does anything else.
"""

from __future__ import annotations

import contextlib
import os
import socket
from weakref import WeakSet

_ours: WeakSet[socket.socket] = WeakSet()


def own(sock: socket.socket) -> socket.socket:
    """Keep a socket to this process; returns it."""
    _ours.add(sock)
    return sock


def _let_go() -> None:
    for sock in list(_ours):
        with contextlib.suppress(OSError):
            sock.close()
    _ours.clear()


os.register_at_fork(after_in_child=_let_go)
