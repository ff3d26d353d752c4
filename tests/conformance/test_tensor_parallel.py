"""DTensor, and tensor and sequence parallel plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.conformance.models import WIDTH, Block, batch, weights
from tests.conformance.ranks import Ranks

PLACEMENTS = {"replicate": Replicate(), "rows": Shard(0), "columns": Shard(1), "partial": Partial()}


def redistributed(rank: int, size: int) -> Any:
    """Every placement to every other; rows do not divide evenly."""
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    start = torch.randn(5, 6).round(decimals=2)
    found = {}
    for first, source in PLACEMENTS.items():
        if first == "partial":
            tensor = DTensor.from_local(start * (rank + 1), mesh, [Partial()])
        else:
            tensor = distribute_tensor(start, mesh, [source])
        for second, target in PLACEMENTS.items():
            if second == "partial":
                continue
            moved = tensor.redistribute(mesh, [target])
            found[f"{first} to {second}"] = [moved.to_local(), moved.full_tensor()]
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_redistribute(ranks: Ranks, size: int) -> None:
    """A DTensor moves between replicated, row, column and partial placements as with Gloo."""
    ranks.compare(redistributed, size)


def on_two_axes(rank: int, _size: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(3)
    start = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    found = {}
    for one in (Shard(0), Shard(1), Replicate()):
        for two in (Shard(0), Shard(1), Replicate()):
            placements: list[Placement] = [one, two]
            tensor = distribute_tensor(start, mesh, placements)
            other = tensor.redistribute(mesh, placements[::-1])
            found[str(placements)] = [
                other.to_local(),
                other.full_tensor(),
                (tensor @ tensor.T).full_tensor(),
            ]
    return found


def test_two_axes(ranks: Ranks) -> None:
    """DTensors on a 2-D mesh are moved and multiplied as with Gloo: small whole numbers, so exactly."""
    ranks.compare(on_two_axes, 4, tolerance=0.0)


def random_and_reductions(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    tensor = distribute_tensor(torch.arange(12.0).reshape(4, 3), mesh, [Shard(0)])
    linear = distribute_module(nn.Linear(3, 2), mesh)
    return {
        "sum": tensor.sum().full_tensor(),
        "mean": tensor.mean(dim=0).full_tensor(),
        "max": tensor.max().full_tensor(),
        "softmax": tensor.softmax(0).full_tensor(),
        "linear": linear(tensor).full_tensor(),
        "equal": bool(torch.equal(tensor, tensor)),
    }


def test_operators(ranks: Ranks) -> None:
    """Operators on DTensors that need communication find it: sums, maxima, softmax, linear."""
    ranks.compare(random_and_reductions)


def plans(sequence: bool) -> dict[str, Any]:
    if not sequence:
        return {"0.up": ColwiseParallel(), "0.down": RowwiseParallel()}
    return {
        "0": PrepareModuleInput(
            input_layouts=(Shard(0),), desired_input_layouts=(Shard(0),), use_local_output=False
        ),
        "0.norm": SequenceParallel(sequence_dim=0),
        "0.up": ColwiseParallel(input_layouts=Shard(0)),
        "0.down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "1": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }


def parallel(rank: int, size: int, sequence: bool, sharded: bool) -> Any:
    """Tensor parallel over the last axis, FSDP over the first one where asked for."""
    torch.manual_seed(7)
    model = nn.Sequential(Block(), nn.Linear(WIDTH, 4))
    names = ("data", "tensor") if sharded else ("tensor",)
    mesh = init_device_mesh("cpu", (2, size // 2) if sharded else (size,), mesh_dim_names=names)
    parallelize_module(model, mesh["tensor"], plans(sequence))
    if sharded:
        fully_shard(model, mesh=mesh["data"])
    data = mesh["data"].get_local_rank() if sharded else 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    for step in range(3):
        x, y = batch(data, step, rows=8)
        given = x.chunk(size // 2 if sharded else size)[mesh["tensor"].get_local_rank()] if sequence else x
        loss = nn.functional.mse_loss(model(given), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "weights": weights(model)}


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "tensor and sequence"])
def test_plans(ranks: Ranks, sequence: bool) -> None:
    """Column- and row-wise plans, with and without sequence parallel norms, train as with Gloo."""
    ranks.compare(parallel, sequence=sequence, sharded=False, tolerance=1e-6)


def test_tensor_parallel_within_fsdp2(ranks: Ranks) -> None:
    """A 2-D mesh of FSDP2 by tensor parallel trains as with Gloo."""
    ranks.compare(parallel, 4, sequence=False, sharded=True, tolerance=1e-5)


def split_loss(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    logits = distribute_tensor(torch.randn(6, 8), mesh, [Shard(1)]).requires_grad_()
    target = distribute_tensor(torch.arange(6), mesh, [Replicate()])
    with loss_parallel():
        loss = nn.functional.cross_entropy(logits, target)
        loss.backward()
    assert isinstance(logits.grad, DTensor)
    dist.barrier()
    return {"loss": loss.full_tensor().detach(), "gradient": logits.grad.full_tensor()}


def test_loss_parallel(ranks: Ranks) -> None:
    """Cross entropy over logits that are split by class communicates as with Gloo."""
    ranks.compare(split_loss)
