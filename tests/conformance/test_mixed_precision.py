"""Automatic mixed precision under DDP, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.models import batch, mlp, weights
from tests.conformance.ranks import Ranks


def autocast(rank: int, _size: int, scaled: bool) -> Any:
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**8, growth_interval=2)
    scales = []
    for step in range(4):
        x, y = batch(rank, step)
        if scaled and step == 2 and rank == 1:
            x = x * float("inf")  # one rank's overflow makes all skip the step
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(float(scaler.get_scale()))
    return {"weights": weights(model.module), "scales": scales}


@pytest.mark.parametrize("scaled", [False, True], ids=["autocast", "autocast+scaler"])
def test_autocast(ranks: Ranks, scaled: bool) -> None:
    """bfloat16 autocast trains as with Gloo; with a GradScaler an overflow on one rank is everybody's."""
    results = ranks.compare(autocast, scaled=scaled)
    if scaled:
        assert results[0]["scales"] == results[1]["scales"]
        assert results[0]["scales"][2] < results[0]["scales"][1]


def half_gradients(rank: int, _size: int, dtype: str) -> Any:
    model = DistributedDataParallel(mlp().to(getattr(torch, dtype)))
    x, y = batch(rank, 0)
    kind = getattr(torch, dtype)
    nn.functional.mse_loss(model(x.to(kind)), y.to(kind)).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_low_precision_gradients(ranks: Ranks, dtype: str) -> None:
    """Gradients of the model's own dtype are reduced in that dtype, to Gloo's last bit on two ranks."""
    ranks.compare(half_gradients, dtype=dtype)
