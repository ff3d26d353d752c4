"""torch.compile of collectives and of a DDP model."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.models import batch, mlp, weights
from tests.conformance.ranks import Ranks

PRELOAD = ("torch._dynamo", "torch._inductor.compile_fx")
"""What the zygote imports before it forks ranks for this module."""


def compiled_collective(rank: int, size: int, compiler: str) -> Any:
    @torch.compile(backend=compiler, fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(total + 1, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(gathered.sin(), "sum", 0, dist.group.WORLD)

    return [step(torch.arange(8.0) + rank + i) for i in range(2)]


def compiled_ddp(rank: int, _size: int, compiler: str) -> Any:
    model = torch.compile(DistributedDataParallel(mlp(512), bucket_cap_mb=1), backend=compiler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x, y = batch(rank, step, width=512)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "weights": weights(model.module)}


COMPILERS = [
    pytest.param("aot_eager", id="aot_eager"),
    pytest.param(
        "inductor",
        id="inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                not any(map(shutil.which, ("g++", "clang++", "c++"))),
                reason="Inductor needs a C++ compiler, and this machine has none",
            ),
        ],
    ),
]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_collectives(ranks: Ranks, compiler: str) -> None:
    """Functional collectives inside one compiled graph give what they give over Gloo."""
    ranks.compare(compiled_collective, limit=50.0, compiler=compiler)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_ddp(ranks: Ranks, compiler: str) -> None:
    """torch.compile of a DDP model, which it splits at the buckets, trains to Gloo's weights."""
    ranks.compare(compiled_ddp, limit=50.0, compiler=compiler)
