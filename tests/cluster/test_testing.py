"""The test helper that users get, with real jobs: what they come to, and how a failure is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainmover
from trainmover import testing
from trainmover.errors import JobError

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]
STEPS = 30


def train() -> None:
    """What the jobs run: it draws from the global generator, which needs no name to be tracked."""
    job = trainmover.join()
    torch.manual_seed(1 + job.rank)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    job.track(model=model, optimizer=optimizer)
    for step in job.steps(STEPS):
        loss = model(torch.rand(8, 4)).pow(2).mean()
        loss.backward()
        step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()


def test_a_real_job_with_a_fault_comes_to_the_same(tmp_path: Path) -> None:
    """Two machines and a standby, one killed at a step: the bytes of the run without faults."""
    undisturbed = testing.run(train, standbys=0, folder=tmp_path / "undisturbed")
    killed = testing.run(train, faults=["kill:machine=1,step=9"], folder=tmp_path / "killed")
    assert (undisturbed.incidents, killed.incidents) == ((), (("failure", "m1"),))
    assert sorted(killed.metrics) == list(range(STEPS))
    testing.assert_same(killed, undisturbed, "with m1 killed in step 9")


def test_a_job_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The script's own error is in the message."""
    script = tmp_path / "wrong.py"
    script.write_text("raise ValueError('no such corpus')\n")
    with pytest.raises(JobError, match="no such corpus"):
        testing.run(script, machines=1, standbys=0, folder=tmp_path)
