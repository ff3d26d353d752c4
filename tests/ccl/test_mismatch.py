"""Ranks that call different things: an error on both, with both calls and both ranks, and never a hang."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.operations import OPERATIONS, Operation
from tests.ccl.worlds import PROMPT, wait_until
from trainmover.ccl.tags import Mismatch

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
    odd = next(item for item in OPERATIONS if item.name == "all_gather")
    right = next(item for item in OPERATIONS if item.name == "all_reduce")
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
