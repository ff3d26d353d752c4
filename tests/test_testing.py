"""The test helper that users get: it finds what is not tracked, and passes what is right."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainmover
from trainmover import testing
from trainmover.errors import ConfigError


class Points:
    """Batches from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def next_batch(self) -> torch.Tensor:
        return torch.rand(8, 2, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def train(steps: int = 6, *, hide: str = "") -> None:
    """A small job; ``hide`` names what it should track and does not."""
    job = trainmover.join()
    torch.manual_seed(1)
    random.seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    things = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": Points(job.rank)}
    data = things["data"]
    job.track(**{name: thing for name, thing in things.items() if name != hide})
    seen = []
    for step in job.steps(steps):
        seen.append(step)
        x = data.next_batch()
        loss = model(x).pow(2).mean() * (len(seen) if hide == "counter" else 1) + random.random()
        loss.backward()
        step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def test_a_script_that_tracks_everything_passes() -> None:
    """Void steps and a replaced process change nothing, and the test's process is left as it was."""
    hook = sys.excepthook
    testing.check(train)
    testing.check(train, void=(0, 3, 5), replace=5)
    assert not dist.is_initialized()
    assert sys.excepthook is hook


@pytest.mark.parametrize("hide", ["data", "counter"])
def test_what_decides_a_step_and_is_not_tracked_is_found(hide: str) -> None:
    """The first step that differs is told."""
    with pytest.raises(AssertionError, match=r"differs from step \d on.*is not tracked"):
        testing.check(lambda: train(hide=hide))


def test_a_scheduler_that_is_not_tracked_is_found() -> None:
    """A replaced process would go on with another learning rate."""
    with pytest.raises(AssertionError, match="replaced before step 3"):
        testing.assert_same(
            testing.rehearse(lambda: train(hide="scheduler"), replace=3),
            testing.rehearse(lambda: train(hide="scheduler")),
            "replaced before step 3",
        )


def test_importing_it_loads_no_torch() -> None:
    """A test that only runs jobs has nothing to wait for."""
    code = "import sys, trainmover.testing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_outcome_has_what_was_logged() -> None:
    """One entry per committed step, however often it ran."""
    outcome = testing.rehearse(train, void=(2,), replace=4)
    assert sorted(outcome.metrics) == list(range(6))
    assert all(metrics.keys() == {"loss"} for metrics in outcome.metrics.values())
    assert len(outcome.digest) == 64


def test_other_bytes_after_the_same_losses_are_told() -> None:
    """The digest counts too."""
    one = testing.Outcome("a" * 64, {0: {"loss": 1.0}})
    testing.assert_same(one, one)
    with pytest.raises(AssertionError, match="ends in other bytes"):
        testing.assert_same(testing.Outcome("b" * 64, {0: {"loss": 1.0}}), one)
    with pytest.raises(AssertionError, match="differs from step 1 on"):
        testing.assert_same(testing.Outcome("a" * 64, {0: {"loss": 1.0}, 1: {"loss": 1.0}}), one)


def test_what_cannot_be_rehearsed_is_told(tmp_path: Path) -> None:
    """No job, too few steps, a function that another process cannot find."""
    with pytest.raises(ConfigError, match=r"did not call trainmover.join"):
        testing.rehearse(lambda: None)
    with pytest.raises(ConfigError, match="ended before step 9"):
        testing.rehearse(train, replace=9)
    with pytest.raises(ConfigError, match="function of a module"):
        testing.run(lambda: None, folder=tmp_path)
