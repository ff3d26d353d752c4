"""Leaving in good order: whoever ends tells nobody of a loss, whatever its peers have done meanwhile."""

from __future__ import annotations

import socket

import pytest

from tests.ccl.conftest import MakeWorld
from trainmover.ccl.connection import Connection


def test_a_goodbye_that_nobody_hears_is_no_loss(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks end at once: that the one is gone when the other takes leave breaks nobody's epoch."""
    made = world(3)
    made.check()
    leaver = made[1]
    connections = leaver.table.connections

    def gone() -> list[Connection]:
        found = connections()
        for connection in found:
            if connection.peer == 0 and not connection.closed:
                connection.sock.shutdown(socket.SHUT_RDWR)
        return found

    monkeypatch.setattr(leaver.table, "connections", gone)
    leaver.stop()
    leaver.killed = True
    assert leaver.breaks == []
