"""A training script with FSDP2: every parameter, gradient and optimizer state is cut among the ranks."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import trainmover

WIDTH = 66


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    job = trainmover.join()
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh()) for _ in range(3)),
        nn.Linear(WIDTH, 3),
    )
    for part in model:
        fully_shard(part)
    fully_shard(model)
    torch.manual_seed(2 + job.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    job.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in job.steps(args.steps):
        points = torch.randn(32, WIDTH)
        loss = (model(points) - points.mean(1, keepdim=True)).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.log(loss=loss, norm=norm.full_tensor())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


if __name__ == "__main__":
    main()
