"""The optimizer and the scheduler move only in steps that count."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from trainmover.training.guards import guard_optimizer, guard_scheduler


class Votes:
    """What the ranks decide, and how often they were asked."""

    def __init__(self) -> None:
        self.commit, self.asked = True, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.commit


def made() -> tuple[nn.Parameter, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, Votes]:
    """A guarded optimizer and scheduler over one parameter."""
    parameter, votes = nn.Parameter(torch.ones(2)), Votes()
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    guard_optimizer(optimizer, votes)
    guard_scheduler(scheduler, votes)
    parameter.grad = torch.ones(2)
    return parameter, optimizer, scheduler, votes


def test_a_committed_step_is_taken() -> None:
    """The vote is asked for before anything changes, and then both move."""
    parameter, optimizer, scheduler, votes = made()
    optimizer.step()
    scheduler.step()
    assert votes.asked == 2
    assert parameter.tolist() == [0.0, 0.0]
    assert scheduler.get_last_lr() == [0.5]


def test_a_void_step_changes_nothing() -> None:
    """Neither parameters nor learning rate move, and the closure is not called."""
    parameter, optimizer, scheduler, votes = made()
    votes.commit = False

    def closure() -> float:
        raise AssertionError("a void step must not evaluate the closure")

    assert optimizer.step(closure) is None
    assert scheduler.step() is None
    assert parameter.tolist() == [1.0, 1.0]
    assert scheduler.get_last_lr() == [1.0]
    votes.commit = True
    optimizer.step()
    assert parameter.tolist() == [0.0, 0.0]


def test_torch_sees_nothing_unusual() -> None:
    """Torch's own checks (steps in the right order, a scheduler made later) raise no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, optimizer, scheduler, votes = made()
        for commit in (True, False, True):
            votes.commit = commit
            optimizer.step()
            scheduler.step()
        late = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        guard_scheduler(late, votes)
        optimizer.step()
        late.step()
    assert isinstance(scheduler, torch.optim.lr_scheduler.StepLR)
    assert type(scheduler).__name__ == "StepLR"


def test_a_schedulers_state_stays_plain() -> None:
    """The guard is no part of the scheduler's state."""
    _, _, scheduler, _ = made()
    assert not any(callable(value) for value in scheduler.state_dict().values())


@pytest.mark.parametrize("loss", [0.5, 2.0])
def test_a_plateau_scheduler_is_guarded_too(loss: float) -> None:
    """Schedulers that take a metric keep their arguments, and count no void step."""
    optimizer, votes = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), Votes()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    guard_scheduler(scheduler, votes)
    scheduler.step(1.0)
    votes.commit = False
    scheduler.step(loss)
    assert (scheduler.last_epoch, scheduler.best) == (1, 1.0)
    votes.commit = True
    scheduler.step(loss)
    assert scheduler.get_last_lr() == [1.0 if loss < 1.0 else 0.1]
