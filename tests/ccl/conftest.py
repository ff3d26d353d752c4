"""The fixture ``world``: ranks of a job as threads of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ccl.worlds import World
from tests.waiting import wait_until

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Makes worlds whose ranks are not yet connected; all end with the test, without a thread left."""
    worlds: list[World] = []
    before = engines()

    def make(size: int, ranks_per_machine: int = 1, **options: Any) -> World:
        worlds.append(World(size, ranks_per_machine, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.stop()
    wait_until(lambda: engines() <= before, "engine and connector threads end")


@pytest.fixture
def world(make_world: MakeWorld) -> MakeWorld:
    """Makes worlds in epoch 1."""

    def make(size: int, ranks_per_machine: int = 1, **options: Any) -> World:
        made = make_world(size, ranks_per_machine, **options)
        made.switch()
        return made

    return make


def engines() -> set[threading.Thread]:
    """Threads of the collective library that run now."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("trainmover-")}
