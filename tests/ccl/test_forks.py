"""Forks: a child of a rank's process holds none of its connections."""

from __future__ import annotations

import os
import socket

from trainmover.ccl.forks import own


def child_of(have: list[socket.socket]) -> int:
    """Fork a child that looks which of these are still open; how many are."""
    pid = os.fork()
    if pid == 0:
        os._exit(sum(1 for sock in have if sock.fileno() >= 0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_lets_go_of_what_is_ours() -> None:
    """Ours are closed in the child and stay as they are here; others are none of our business."""
    ours, others = socket.socketpair(), socket.socketpair()
    for sock in ours:
        own(sock)
    try:
        assert child_of([*ours, *others]) == len(others)
        ours[0].sendall(b"still here")
        assert ours[1].recv(100) == b"still here"
    finally:
        for sock in (*ours, *others):
            sock.close()


def test_a_peer_hears_of_the_end_while_a_child_lives() -> None:
    """What is closed here is closed for the peer, though a child was forked before."""
    mine, peer = socket.socketpair()
    own(mine)
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    try:
        mine.close()
        peer.settimeout(10)
        assert peer.recv(1) == b""
    finally:
        os.close(release)
        os.close(hold)
        os.waitpid(pid, 0)
        peer.close()
