"""Two machines that do not reach each other, though both live: links notice, in seconds.

The kernel really drops what arrives: a socket filter does it, on one connection and without privileges.
"""

from __future__ import annotations

import socket
import time

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import World, done_within
from tests.packets import drop_all
from tests.waiting import wait_until
from trainmover.ccl import reach

NOTICED = 8.0
"""Seconds; the limits are made short here."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a second or two."""
    monkeypatch.setattr(reach, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(reach, "UNREACHED_SECONDS", 1.0)
    monkeypatch.setattr(reach, "IDLE_SECONDS", 1)
    monkeypatch.setattr(reach, "ASK_SECONDS", 1)
    monkeypatch.setattr(reach, "ASK_TIMES", 1)


def part(world: World, one: int, other: int) -> None:
    """Drop every packet between two ranks, in both directions."""
    for rank, peer in ((one, other), (other, one)):
        sock = world[rank].connection(peer).sock
        assert isinstance(sock, socket.socket)
        drop_all(sock)


def blamed(world: World) -> set[tuple[int, int | None]]:
    """Who has found out for himself that whom is not reached."""
    return {
        (rank, found.peer) for rank in range(world.size) for found in world[rank].breaks if not found.told
    }


def test_who_sends_notices(world: MakeWorld) -> None:
    """Nothing that was sent is acknowledged: both ends give the link up, and everybody's calls end."""
    made = world(3)
    made.check()
    part(made, 0, 1)
    futures = [member.all_reduce(torch.ones(4)) for member in made.members]
    done_within(futures, NOTICED)
    assert all(member.engine.broken for member in made.members)
    wait_until(lambda: blamed(made), "who has noticed says so")
    assert blamed(made) <= {(0, 1), (1, 0)}


def test_who_only_waits_notices(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends that have nothing to send learn it from the kernel, which asks."""
    monkeypatch.setattr(reach, "UNREACHED_SECONDS", 10 * NOTICED)
    made = world(2)
    part(made, 0, 1)
    wait_until(lambda: all(member.engine.broken for member in made.members), "they notice", NOTICED)
    wait_until(lambda: blamed(made), "who has noticed says so")
    assert blamed(made) <= {(0, 1), (1, 0)}


def test_a_slow_reader_is_reached(world: MakeWorld) -> None:
    """A peer that reads nothing for a while, its window closed, acknowledges even that: nothing is lost."""
    made = world(2)
    large = [torch.ones(8_000_000), torch.ones(8_000_000)]
    first = made[0].all_reduce(large[0])
    time.sleep(4 * reach.UNREACHED_SECONDS)
    assert not first.done()
    assert not made[0].engine.broken
    done_within([first, made[1].all_reduce(large[1])], 20.0)
    assert not any(member.engine.broken for member in made.members)
    assert all(bool((tensor == 2.0).all()) for tensor in large)
