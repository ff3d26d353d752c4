"""torch.distributed.pipelining: schedules that send activations and gradients between stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.models import WIDTH, Block
from tests.conformance.ranks import Ranks

SINGLE = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
MULTI = {
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "LoopedBFS": ScheduleLoopedBFS,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
}


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(Block(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)]


def piped(rank: int, size: int, kind: str, pieces: int) -> Any:
    """Two steps; returns what the last stage saw and the weights of this rank's stages."""
    rounds = 1 if kind in SINGLE else 2
    every = layers(size * rounds)
    numbers = [rank + size * i for i in range(rounds)]
    mine = [every[number] for number in numbers]
    stages = [
        PipelineStage(module, number, len(every), torch.device("cpu"))
        for module, number in zip(mine, numbers, strict=True)
    ]
    loss = nn.functional.mse_loss
    schedule: Any
    if rounds == 1:
        schedule = SINGLE[kind](stages[0], pieces, loss_fn=loss)
    else:
        schedule = MULTI[kind](stages, pieces, loss_fn=loss)
    optimizer = torch.optim.SGD([p for module in mine for p in module.parameters()], lr=0.05)
    source = torch.Generator().manual_seed(5)
    seen: list[Any] = []
    for _ in range(2):
        x, y = (torch.randn(8, WIDTH, generator=source) for _ in range(2))
        losses: list[torch.Tensor] = []
        given = (x,) if rank == 0 else ()
        wanted = {"target": y, "losses": losses} if rank == size - 1 else {}
        seen.append(schedule.step(*given, **wanted))
        seen.append([value.detach() for value in losses])
        optimizer.step()
        optimizer.zero_grad()
    return {"seen": _plain(seen), "weights": [p.detach() for module in mine for p in module.parameters()]}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.detach() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind", [*SINGLE, *MULTI])
@pytest.mark.parametrize("size", [2, 4])
def test_schedules(ranks: Ranks, kind: str, size: int) -> None:
    """A schedule gives the same outputs, losses and weights as over Gloo: nothing is added across ranks."""
    ranks.compare(piped, size, kind=kind, pieces=4, tolerance=0.0)


def piped_and_data_parallel(rank: int, _size: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    data, number = mesh["data"].get_local_rank(), mesh["pipe"].get_local_rank()
    module = DistributedDataParallel(layers(2)[number], process_group=mesh["data"].get_group())
    stage = PipelineStage(module, number, 2, torch.device("cpu"), group=mesh["pipe"].get_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    source = torch.Generator().manual_seed(5 + data)
    x, y = (torch.randn(8, WIDTH, generator=source) for _ in range(2))
    schedule.step(*((x,) if number == 0 else ()), **({"target": y} if number == 1 else {}))
    return [p.grad for p in module.parameters()]


def test_pipeline_with_data_parallel(ranks: Ranks) -> None:
    """Pipelines in the rows of a mesh and DDP in its columns work together as over Gloo."""
    ranks.compare(piped_and_data_parallel, 4, tolerance=0.0)
