"""Checkpoints of distributed tensors: cut anew for another number of ranks, bit for bit on the same.

Real FSDP2 and tensor-parallel models over Gloo, in forked processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.conformance.ranks import GLOO, Ranks
from trainmover.training.checkpoint import Checkpointer
from trainmover.training.restore import go_on
from trainmover.training.shelf import Shelf
from trainmover.training.state import TrackedState

# 10 rows cannot be cut evenly in 3 or 4, and with 4 ranks the last has none of the 3 rows of the head.
WIDTH, HEAD = 10, 3


def built(layout: str, size: int, seed: int) -> tuple[nn.Module, TrackedState]:
    """A model cut as the layout says, with an optimizer and a scheduler."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HEAD))
    if layout == "both":
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
    elif layout == "hybrid":
        fully_shard(model, mesh=init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("copy", "shard")))
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    tracked = TrackedState()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    tracked.add("scheduler", torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    return model, tracked


def train(model: nn.Module, tracked: TrackedState, steps: range) -> None:
    """The same batch on all ranks, another in each step."""
    for step in steps:
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        model(batch).square().mean().backward()
        tracked.optimizers["optimizer"].step()
        tracked.optimizers["optimizer"].zero_grad()
        tracked.shared["scheduler"].step()


def whole(tracked: TrackedState) -> dict[str, torch.Tensor]:
    """Every tensor put together from all ranks."""
    found = {}
    for name, tensor in named(tracked):
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found[name] = full.detach().clone()
    return found


def named(tracked: TrackedState) -> list[tuple[str, Any]]:
    """Parameters and the tensors of the optimizer."""
    state = tracked.optimizers["optimizer"].state
    parameters = list(tracked.modules["model"].named_parameters())
    moments = [
        (f"{name}.{key}", value) for name, p in parameters for key, value in sorted(state.get(p, {}).items())
    ]
    return [*parameters, *moments]


def agree(number: int) -> list[int]:
    """Tell all ranks a number."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, number)
    return told


def saving(rank: int, size: int, layout: str, folder: str) -> Any:
    """Train two steps, save, train two more."""
    model, tracked = built(layout, size, seed=1)
    train(model, tracked, range(2))
    maker = Checkpointer(
        Shelf(folder), every=1, keep=2, job="job", generation=1, machine="m0", say=lambda _: None
    )
    assert maker.take(2, rank, size, tracked, tracked.private_values(), 1)
    maker.finish(lambda: False, 30.0)
    saved = whole(tracked)
    train(model, tracked, range(2, 4))
    return {"saved": saved, "digest": tracked.digest()}


def going_on(rank: int, size: int, layout: str, folder: str) -> Any:
    """Load in a fresh job and train two more steps."""
    model, tracked = built(layout, size, seed=2)
    loaded = go_on(Shelf(folder), tracked, rank, size, job="job", agree=agree)
    assert loaded.step == 2
    found = whole(tracked)
    rate = tracked.optimizers["optimizer"].param_groups[0]["lr"]
    train(model, tracked, range(2, 4))
    return {"saved": found, "digest": tracked.digest(), "rate": rate}


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("layout", "before", "after"),
    [
        ("shards", 3, 3),
        ("hybrid", 4, 2),
        ("shards", 3, 2),
        ("shards", 2, 4),
        ("both", 4, 2),
        ("both", 4, 4),
    ],
)
def test_cut_anew(ranks: Ranks, layout: str, before: int, after: int, tmp_path: Path) -> None:
    """Another number of ranks has the same tensors; the same number goes on to the same bytes."""
    first = ranks.run(saving, GLOO, before, layout=layout, folder=str(tmp_path))
    second = ranks.run(going_on, GLOO, after, layout=layout, folder=str(tmp_path))
    for found in second:
        assert found["rate"] == 0.025
        assert found["saved"].keys() == first[0]["saved"].keys()
        for name, tensor in found["saved"].items():
            assert torch.equal(tensor, first[0]["saved"][name]), name
    if before == after:
        assert [found["digest"] for found in second] == [found["digest"] for found in first]
