"""Peers that nothing answers for: who dials says so after a while, and when they do answer after all.

The kernel really drops what is sent to a door: a socket filter does it, without privileges.
"""

from __future__ import annotations

import socket
import time

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.test_pairs import receive, send
from tests.ccl.worlds import GROUP, Member, done_within
from tests.packets import drop_all
from tests.waiting import wait_until
from trainmover.ccl import connectors, table, unreached
from trainmover.ccl.plan import Peer, Plan
from trainmover.topology.links import Link

SO_DETACH_FILTER = 27
Told = list[tuple[int, int, bool]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a moment."""
    monkeypatch.setattr(connectors, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(unreached, "SECONDS", 0.4)
    monkeypatch.setattr(table, "SECONDS", 0.4)
    monkeypatch.setattr(table, "LOOK_SECONDS", 0.1)


def shut(member: Member) -> socket.socket:
    """Drop every packet that comes to a rank's door."""
    door = member.table._connectors._listener
    drop_all(door)
    return door


def told(member: Member) -> Told:
    """What a rank tells from now on: the epoch, the peer, and whether it is reached."""
    found: Told = []
    member.table.unreached.tell = lambda plan, link, _, why: found.append(
        (plan.epoch, link.other(plan.rank), not why)
    )
    return found


def test_a_link_that_is_dialled_in_vain_is_told_once(world: MakeWorld) -> None:
    """By who dials; and once more when it is there, which makes the epoch ready."""
    made = world(3)
    made.replace(1)
    door = shut(made[1])
    found, others = told(made[0]), [told(made[1]), told(made[2])]
    ready = made.prepare(2)
    wait_until(lambda: found != [], "it is told")
    assert found == [(2, 1, False)]
    time.sleep(0.3)
    assert found == [(2, 1, False)], "once is enough"
    assert not ready()
    door.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    wait_until(ready, "the epoch is prepared")
    assert found == [(2, 1, False), (2, 1, True)]
    assert others == [[], []]


def test_a_link_that_is_soon_there_is_not_told(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is a little late is nobody's concern."""
    monkeypatch.setattr(table, "SECONDS", 10.0)
    made = world(2)
    made.replace(1)
    door = shut(made[1])
    found = told(made[0])
    ready = made.prepare(2)
    time.sleep(0.3)
    door.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    wait_until(ready, "the epoch is prepared")
    assert found == []


def test_each_epoch_is_told_anew(world: MakeWorld) -> None:
    """What was given up is not told any more; the next one is, after as long."""
    made = world(2)
    made.replace(1)
    shut(made[1])
    found = told(made[0])
    made.prepare(2)
    made[0].engine.call(lambda: made[0].table.abandon(2))
    time.sleep(0.6)
    assert found == []
    made.prepare(3)
    wait_until(lambda: found != [], "it is told")
    assert found == [(3, 1, False)]


def test_a_peer_that_does_not_shake_hands_is_reached(world: MakeWorld) -> None:
    """Its host answers: it may be busy, and is for others to judge."""
    made = world(2)
    found = told(made[0])
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        peers = {0: made[0].peer, 1: Peer("127.0.0.1", deaf.getsockname()[1], "m1.deaf")}
        plan = Plan(2, 0, peers, frozenset({Link(GROUP, "collective", 0, 1)}), 20.0)
        made[0].engine.call(lambda: made[0].table.prepare(plan, lambda *_: None))
        time.sleep(0.8)
    assert found == []


def test_a_message_to_a_peer_that_is_not_reached(world: MakeWorld) -> None:
    """Its link is made on demand, so no epoch was prepared for it: the epoch ends, and it is told why."""
    made = world(2)
    shut(made[1])
    found = told(made[0])
    sent = send(made[0], torch.ones(5), 1)
    _, received = receive(made[1], torch.zeros(5), 0)
    done_within([sent, received], 10.0)
    assert found == [(1, 1, False)]
    assert made[0].engine.broken
    assert "rank 1 is not reached" in made[0].engine.reason
    wait_until(lambda: [one.peer for one in made[0].breaks] == [1], "who has noticed says so")
