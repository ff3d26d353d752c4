"""Fault points inside what the user's script calls: found on any data, module and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trainmover.faults import FaultSpec
from trainmover.training.guards import guard_optimizer
from trainmover.training.points import Points


class Watched(Points):
    """Points that note which faults were carried out, and in which order among other things."""

    def __init__(self, *texts: str, slot: int = 0) -> None:
        super().__init__([FaultSpec.parse(text) for text in texts], slot)
        self.seen: list[str] = []
        self.carry_out = lambda fault: self.seen.append(fault.at)


class Batches:
    """Data with a position, fetched by a method."""

    def next_batch(self) -> int:
        return 1

    def state_dict(self) -> dict[str, Any]:
        return {}


class Stream(Batches):
    """Data that is its own iterator."""

    next_batch = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return 2


def spec(at: str, more: str = "") -> str:
    return f"kill:machine=m0,step=3,at={at}{more}"


@pytest.mark.parametrize(
    ("data", "fetch"),
    [
        (Batches(), lambda data: data.next_batch()),
        (Stream(), next),
        (DataLoader([1, 2, 3]), lambda data: next(iter(data))),
    ],
)
def test_a_fetch_is_seen(data: Any, fetch: Any) -> None:
    """A batch that is taken from tracked data, however that is done, in the fault's step only and once."""
    points = Watched(spec("fetch"))
    kind = type(data).__name__
    points.watch(data)
    points.begin(2)
    fetch(data)
    points.end(True)
    assert points.seen == []
    points.begin(3)
    fetch(data)
    assert points.seen == ["fetch"]
    fetch(data)
    assert points.seen == ["fetch"]
    assert type(data).__name__ == kind


def test_the_first_parameter_group_is_done_when_the_optimizer_is_hit() -> None:
    """In the middle of the optimizer: half of the parameters are new. One that goes on does the rest."""
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [first]}, {"params": [second]}], lr=0.1)
    points = Watched(spec("optimizer"))
    points.carry_out = lambda fault: points.seen.append(
        f"{bool((first != 1).all())} {bool((second == 1).all())}"
    )
    points.watch(optimizer)
    guard_optimizer(optimizer, lambda: True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    points.begin(3)
    first.grad, second.grad = torch.ones(3), torch.ones(3)
    optimizer.step()
    scheduler.step()
    assert points.seen == ["True True"]
    assert bool((second != 1).all())
    assert type(optimizer.param_groups) is list


def test_a_forward_pass_is_seen_before_it_runs() -> None:
    """A tracked module's first forward pass."""
    points, module = Watched(spec("forward")), nn.Linear(2, 2)
    points.watch(module)
    points.begin(3)
    module(torch.ones(2))
    assert points.seen == ["forward"]


def test_a_point_that_a_step_has_not_is_its_next_one() -> None:
    """No fault is forgotten: the vote stands for what comes before it, the body's end for the rest."""
    points = Watched(spec("fetch"), spec("collective", ",nth=9"), spec("voting", ",nth=2"), spec("optimizer"))
    points.begin(3)
    points.hit("vote")
    assert points.seen == ["fetch", "collective"]
    points.hit("voting")
    points.end(False)
    assert points.seen == ["fetch", "collective"], "the step is void and comes again"
    points.begin(3)
    points.end(True)
    assert points.seen == ["fetch", "collective", "voting", "optimizer"]


def test_the_first_switch_from_a_step_on() -> None:
    """A standby has no step yet: there it is the first switch that gives it a place."""
    points, committed = Watched(spec("copied")), [2, 2, 3]
    points.committed = lambda: committed.pop(0)
    for _ in range(3):
        points.hit("copied")
    assert points.seen == ["copied"]
    standby = Watched(spec("prepare"))
    standby.hit("prepare")
    assert standby.seen == ["prepare"]


def test_another_slot_is_not_meant() -> None:
    """A fault waits for the rank of its slot, and a process without faults watches nothing."""
    points, module = Watched(spec("forward", ",slot=1")), nn.Linear(2, 2)
    points.watch(module)
    points.begin(3)
    module(torch.ones(2))
    assert points.seen == []
    assert not module._forward_pre_hooks
