"""A training script whose model is tiny and whose steps take as long as they are told to.

It has what can differ after a fault: dropout, momentum, a schedule, data with a position of its own, and
numbers from Python's and NumPy's generators, normal ones too (which leave half a pair behind).  It prints
nothing, as printing fails where the disk of the run folder is full.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainmover


class Data:
    """An endless line of batches; each rank has its own."""

    def __init__(self, rank: int) -> None:
        self.rank, self.position = rank, 0

    def next_batch(self) -> torch.Tensor:
        """The next batch, 4 x 8."""
        seed = 1000 * self.rank + self.position
        self.position += 1
        return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"rank": self.rank, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.rank, self.position = state["rank"], state["position"]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    args = parser.parse_args()
    job = trainmover.join()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1)))
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(2 + job.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    data = Data(job.rank)
    job.track(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for step in job.steps(args.steps):
        batch = data.next_batch() + 0.1 * random.gauss(0.0, 1.0) + 0.1 * float(np.random.randn())
        if random.random() < 0.5:
            batch = batch.flip(0)
        time.sleep(args.step_seconds)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


if __name__ == "__main__":
    main()
