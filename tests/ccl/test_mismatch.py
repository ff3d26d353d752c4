"""Ranks that call different things: an error on both, with both calls and both ranks, and never a hang."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.ccl.conftest import MakeWorld
from tests.ccl.operations import OPERATIONS, Operation, options
from tests.ccl.worlds import GROUP, PROMPT, Member
from tests.waiting import wait_until
from trainmover.ccl.group import TrainMoverGroup
from trainmover.ccl.rollcall import KEPT, RollCall
from trainmover.ccl.tags import Mismatch
from trainmover.ccl.walk import Walk

SMALL = [item for item in OPERATIONS if "large" not in item.name and item.name != "send and receive"]

HEARS = {
    "all_reduce": (0, 1),
    "reduce": (0,),
    "broadcast": (0,),
    "all_gather": (0, 1),
    "reduce_scatter": (0, 1),
    "all_to_all": (0, 1),
    "gather": (0,),
    "scatter": (0,),
    "barrier": (0, 1),
}
"""Which of two ranks waits for bytes of the other, by operation: rank 1 only sends in some."""


def named(error: Exception | None, me: int, mine: Operation, theirs: Operation) -> bool:
    """Whether an error names the calls and the ranks."""
    text = str(error)
    words = (
        f"rank {me}",
        f"rank {1 - me}",
        f"{mine.name} #",
        f"{theirs.name} #",
        "same calls in the same order",
    )
    return isinstance(error, Mismatch) and all(word in text for word in words)


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in itertools.permutations(SMALL, 2) if 0 in HEARS[pair[0].name]],
    ids=str,
)
def test_both_ranks_get_an_error_with_both_calls(
    world: MakeWorld, first: Operation, second: Operation
) -> None:
    """Whoever notices tells the other: its error has the same two names."""
    made = world(2)
    started = [first.start(made[0]), second.start(made[1])]
    wait_until(lambda: all(item.done for item in started), "both calls end", PROMPT)
    wait_until(lambda: all(member.engine.fatal for member in made.members), "both know", PROMPT)
    assert named(made[0].engine.fatal, 0, first, second)
    assert named(made[1].engine.fatal, 1, second, first)


def test_who_calls_the_right_thing_is_not_blamed(world: MakeWorld) -> None:
    """Of three ranks one calls something else: it and whoever noticed have the error; the step is void."""
    made = world(3)
    odd, right = by_name("all_gather"), by_name("all_reduce")
    started = [right.start(made[0]), odd.start(made[1]), right.start(made[2])]
    wait_until(lambda: all(item.done for item in started), "all calls end", PROMPT)
    wait_until(lambda: all(member.engine.broken for member in made.members), "the step is void", PROMPT)
    assert "rank 1" in str(made[1].engine.fatal)
    assert any("rank 1" in str(made[rank].engine.fatal) for rank in (0, 2))


def test_the_same_collective_of_different_sizes_is_named(world: MakeWorld) -> None:
    """Two ranks whose tensors differ in size are told so, with the sizes where these are known."""
    made = world(2)
    futures = [made[0].all_reduce(torch.ones(4)), made[1].all_reduce(torch.ones(5))]
    wait_until(lambda: all(future.done() for future in futures), "both calls end", PROMPT)
    wait_until(lambda: all(member.engine.fatal for member in made.members), "both know", PROMPT)
    text = " ".join(str(member.engine.fatal) for member in made.members)
    assert "20 bytes" in text
    assert "16 bytes" in text


def by_name(name: str) -> Operation:
    """A row of the table."""
    return next(item for item in OPERATIONS if item.name == name)


def broadcast_from_0(member: Member) -> dist.Work:
    """A broadcast whose root is rank 0."""
    group = TrainMoverGroup(member.comm, GROUP, member.comm.groups[GROUP].ranks)
    return group.broadcast([torch.zeros(3)], options(dist.BroadcastOptions, 0))


@pytest.mark.parametrize("after", ["nothing", "messages", "a switch"])
def test_ranks_that_wait_for_each_other_are_told_apart(world: MakeWorld, after: str) -> None:
    """Rank 0 gathers, rank 1 waits for its broadcast: no frame is sent, yet both get the error."""
    made = world(2)
    made.check()
    if after == "messages":
        sent = by_name("send and receive").start(made[0]), by_name("send and receive").start(made[1])
        wait_until(lambda: all(item.done for item in sent), "messages arrive")
    elif after == "a switch":
        made.replace(1)
        made.switch()
    made.check()
    gather = by_name("gather")
    first, second = gather.start(made[0]), broadcast_from_0(made[1])
    wait_until(lambda: first.done and second.is_completed(), "both calls end", 5.0)
    wait_until(lambda: all(member.engine.fatal for member in made.members), "both know", PROMPT)
    assert named(made[0].engine.fatal, 0, gather, by_name("broadcast"))
    assert named(made[1].engine.fatal, 1, by_name("broadcast"), gather)


def test_whoever_is_only_late_is_waited_for(world: MakeWorld) -> None:
    """Calls made in the right order, by some ranks long before others, are no mismatch."""
    made = world(3)
    names = ["broadcast", "all_reduce", "gather", "barrier", "scatter", "all_gather"]
    told: list[int] = []
    for member in made.members:
        member.engine.schedule._judge.waits = noting(member.engine.waits, told)  # type: ignore[method-assign]
    started = [by_name(name).start(made[rank]) for name in names for rank in (1, 2)]
    wait_until(lambda: len(told) >= 4, "they tell rank 0 what they wait for", 10.0)
    started += [by_name(name).start(made[0]) for name in names]
    wait_until(lambda: all(item.done for item in started), "all calls complete")
    assert all(item.right() for item in started)
    assert [member.breaks for member in made.members] == [[]] * 3


def noting(waits: Callable[[Walk], None], told: list[int]) -> Callable[[Walk], None]:
    """The engine's answer to a walk that waits, written down."""

    def note(walk: Walk) -> None:
        waits(walk)
        told.append(walk.number)

    return note


def test_a_roll_call_remembers_the_last_calls() -> None:
    """Numbers count from 1 in each group; what is not made yet, or long ago, is unknown."""
    roll = RollCall()
    assert [roll.note("a", 10 * n) for n in range(1, 4)] == [1, 2, 3]
    assert roll.note("b", 7) == 1
    assert [roll.tag("a", n) for n in range(5)] == [None, 10, 20, 30, None]
    assert (roll.tag("b", 1), roll.tag("c", 1)) == (7, None)
    for n in range(KEPT):
        roll.note("a", n)
    assert (roll.tag("a", 3), roll.tag("a", 4), roll.tag("a", KEPT + 3)) == (None, 0, KEPT - 1)
    roll.clear()
    assert (roll.tag("a", 1), roll.note("a", 5)) == (None, 1)
