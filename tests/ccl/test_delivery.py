"""Callbacks of a call's future that call another collective and wait for it."""

from __future__ import annotations

import threading

import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import LIMIT, Member, done_within
from tests.waiting import wait_until


def nested(member: Member, depth: int) -> torch.futures.Future[torch.Tensor]:
    """A sum whose callback makes another sum and waits for it, and so on; the last one's value."""
    value = torch.full((3,), float(member.rank + 1))

    def again(_: object) -> torch.Tensor:
        return nested(member, depth - 1).wait() if depth else value

    return member.all_reduce(value).then(again)


def stand_ins() -> list[threading.Thread]:
    """Threads that run an engine for one that is kept."""
    return [thread for thread in threading.enumerate() if thread.name == "trainmover-stand-in"]


def test_a_callback_waits_for_another_collective(world: MakeWorld) -> None:
    """It gets its result, three deep and several side by side; nobody stands in afterwards."""
    made = world(3)
    futures = [nested(member, 3) for _ in range(4) for member in made.members]
    done_within(futures, LIMIT)
    assert all(torch.equal(future.value(), torch.full((3,), 6.0)) for future in futures)
    wait_until(lambda: not stand_ins(), "the stand-ins have gone")
    made.check()


def test_a_caller_drives_meanwhile(world: MakeWorld) -> None:
    """The thread that waits at the wheel delivers such a result itself, and is back at the wheel after it."""
    made = world(2)

    def wait(member: Member) -> None:
        future = nested(member, 2)
        member.engine.drive(future.done)
        assert torch.equal(future.wait(), torch.full((3,), 3.0))

    for _ in range(5):
        made.each(wait)
    wait_until(lambda: not stand_ins(), "the stand-ins have gone")
    made.check()


def test_a_break_ends_the_wait(world: MakeWorld) -> None:
    """When the peer dies while a callback waits, the call inside it is swallowed like any other."""
    made = world(2)
    waiting = threading.Event()

    def inner(_: object) -> None:
        future = made[0].all_reduce(torch.ones(3))
        waiting.set()
        future.wait()

    first = made[0].all_reduce(torch.ones(3)).then(inner)
    made[1].all_reduce(torch.ones(3)).wait()
    assert waiting.wait(LIMIT)
    made[1].kill()
    done_within([first], LIMIT)
    assert made[0].engine.broken
    wait_until(lambda: not stand_ins(), "the stand-ins have gone")
