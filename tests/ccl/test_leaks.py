"""What two hundred switches leave behind: nothing, and what a switch allocates: nothing.

A world loses and replaces one rank after another, by turns killed in the middle of a call and
moved away in good order.  Descriptors, threads, staging memory and the library's own objects
are counted after the first few changes and at the end.
"""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
import torch

import trainmover.ccl
from tests.ccl.conftest import MakeWorld, engines
from tests.ccl.operations import OPERATIONS, Operation
from tests.ccl.worlds import GROUP, LIMIT, World, done_within
from tests.waiting import wait_until
from trainmover.ccl.connection import Connection
from trainmover.ccl.table import Plan, Slot
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.walk import Walk
from trainmover.topology.links import Link

SIZE = 3
SWITCHES = 200
LARGE = 200_000
"""Elements of an all_reduce that uses staging memory."""

SLACK = 10
"""What may be on its way at one of the counts; a leak would be 200 times something."""

COUNTED = (Connection, Transfer, Slot, Plan, Walk)

TO_EACH_OTHER: Operation = next(item for item in OPERATIONS if item.name == "send and receive")


def traffic(world: World) -> None:
    """A large all_reduce, then a message to everybody's neighbour, both right."""
    values = [torch.ones(LARGE) for _ in world.members]
    futures = [member.all_reduce(value) for member, value in zip(world.members, values, strict=True)]
    done_within(futures, LIMIT)
    started = [TO_EACH_OTHER.start(member) for member in world.members]
    wait_until(lambda: all(item.done for item in started), "messages arrive")
    assert all(bool((value == world.size).all()) for value in values)
    assert all(item.right() for item in started)


def kill(world: World, rank: int) -> None:
    """A rank dies while the others wait for it; a newcomer takes its place."""
    others = [member for member in world.members if member.rank != rank]
    futures = [member.all_reduce(torch.ones(4)) for member in others]
    world[rank].kill()
    done_within(futures, LIMIT)
    world.replace(rank)
    world.switch()


def move(world: World, rank: int) -> None:
    """A newcomer is prepared beside training and takes over; the leaver ends in good order."""
    leaver = world.replace(rank)
    world.switch()
    leaver.stop()


def count(world: World, others: set[threading.Thread]) -> dict[str, int]:
    """What a leak would make grow; ``others`` are threads that were there before the world."""
    world.gone.clear()
    gc.collect()
    wait_until(lambda: len(engines() - others) <= SIZE * 9, "threads of those who left end")
    tables = [member.table for member in world.members]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "staging bytes": sum(table.staging_bytes() for table in tables),
        "slots": sum(len(table._slots) for table in tables),
        "connections aside": sum(len(table._aside) for table in tables),
        "plans pending": sum(len(table._pending) for table in tables),
        **Counter(type(item).__name__ for item in gc.get_objects() if type(item) in COUNTED),
    }


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_hundred_switches_leak_nothing(world: MakeWorld) -> None:
    """After 200 changes of one rank there is as much of everything as after the first six."""
    others = engines()
    made = world(SIZE)
    counts = []
    for number in range(SWITCHES):
        (kill if number % 2 else move)(made, number % SIZE)
        traffic(made)
        if number in (2 * SIZE - 1, SWITCHES - 1):
            counts.append(count(made, others))
    first, last = counts
    assert {name: last[name] for name in first if last[name] > first[name] + SLACK} == {}
    assert last["staging bytes"] == first["staging bytes"] > 0
    assert made.epoch == SWITCHES + 1


def staging(world: World, rank: int) -> dict[Link, bytearray]:
    """A rank's staging memory by link."""
    slots = world[rank].engine.ask(lambda: dict(world[rank].table._slots))
    return {item: slot.staging for item, slot in slots.items() if item.group == GROUP and slot.staging}


@pytest.mark.parametrize("change", [kill, move])
def test_the_new_link_has_the_old_ones_memory(world: MakeWorld, change) -> None:
    """In every slot of a stayer lies the very same bytearray before and after, on changed links too."""
    made = world(SIZE)
    traffic(made)
    stayers = [0, 2]
    before = {rank: staging(made, rank) for rank in stayers}
    assert {item.other(0) for item in before[0]} == {1, 2}
    change(made, 1)
    traffic(made)
    for rank in stayers:
        after = staging(made, rank)
        assert set(after) == set(before[rank])
        assert all(after[item] is memory for item, memory in before[rank].items())


@pytest.mark.parametrize("change", [kill, move])
def test_a_switch_allocates_no_buffers(world: MakeWorld, change) -> None:
    """Through a switch and the traffic after it the library's memory grows by the newcomer's staging only."""
    made = world(SIZE)
    change(made, 2)
    traffic(made)
    here = tracemalloc.Filter(True, str(Path(trainmover.ccl.__file__).parent / "*"))
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot().filter_traces([here])
        change(made, 1)
        traffic(made)
        made.gone.clear()
        gc.collect()
        after = tracemalloc.take_snapshot().filter_traces([here])
    finally:
        tracemalloc.stop()
    grown = sum(item.size_diff for item in after.compare_to(before, "filename"))
    newcomer = made[1].table.staging_bytes()
    assert newcomer > 1 << 20
    assert abs(grown - newcomer) < 256 << 10
