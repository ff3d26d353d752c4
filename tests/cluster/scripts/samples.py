"""A training script that writes down which samples and which learning rate each committed step had.

Its loader shuffles, has worker processes and is cut among the ranks; the model has dropout.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler

import trainmover

warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]  # noqa: E402

SIZE, BATCH = 90, 3
SHADOW_STEPS = 2


class Points(Dataset[tuple[int, torch.Tensor]]):
    """Numbered points of a line; what is random about one follows from its number."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(16, generator=torch.Generator().manual_seed(index))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--samples", type=Path, required=True, help="folder for what was used")
    args = parser.parse_args()
    job = trainmover.join()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 1)))
    torch.manual_seed(2 + job.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    sampler: DistributedSampler[int] = DistributedSampler(Points(), job.world_size, job.rank, seed=3)
    loader = StatefulDataLoader(Points(), batch_size=BATCH, sampler=sampler, num_workers=2)
    data = trainmover.DataStream(loader)
    job.track(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    args.samples.mkdir(exist_ok=True)
    with (args.samples / f"{os.getpid()}.jsonl").open("w", encoding="utf-8") as file:
        for step in job.steps(args.steps):
            rate = scheduler.get_last_lr()[0]
            numbers, points = next(data)
            loss = (model(points) - points.mean(1, keepdim=True)).square().mean()
            loss.backward()
            step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            # A standby that warms up runs the first steps on recorded results; they use nothing.
            shadow = os.environ.get("TRAINMOVER_MODE") == "sandbox" and step.index < SHADOW_STEPS
            if step.committed and not shadow:
                row = {
                    "step": int(step),
                    "rank": job.rank,
                    "epoch": data.epoch,
                    "samples": numbers.tolist(),
                    "rate": rate,
                    "scheduled": scheduler.last_epoch,
                    "logged": step.metrics["loss"],
                }
                file.write(json.dumps(row) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
