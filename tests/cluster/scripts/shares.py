"""A training script that writes down which shares of each committed step's batch it has computed.

What a share is computed from follows from the step's and the share's number; the model has dropout.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainmover

SHADOW_STEPS = 2


def batch(step: int, share: int) -> torch.Tensor:
    """The samples of one share of a step's batch."""
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + share))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--used", type=Path, required=True, help="folder for what was used")
    args = parser.parse_args()
    job = trainmover.join()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    job.track(model=model, optimizer=optimizer, scheduler=scheduler)
    args.used.mkdir(exist_ok=True)
    with (args.used / f"{os.getpid()}.jsonl").open("w", encoding="utf-8") as file:
        for step in job.steps(args.steps):
            used = []
            for share in step.shares():
                points = batch(step.index, share.index)
                used.append(share.index)
                with nullcontext() if share.last else model.no_sync():
                    loss = (model(points) - points.mean(1, keepdim=True)).square().mean()
                    (loss * share.scale).backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            # A standby that warms up runs the first steps on recorded results; they use nothing.
            shadow = os.environ.get("TRAINMOVER_MODE") == "sandbox" and step.index < SHADOW_STEPS
            if step.committed and not shadow:
                row = {"step": int(step), "rank": job.rank, "shares": used, "logged": step.metrics["loss"]}
                file.write(json.dumps(row) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
