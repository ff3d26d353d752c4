"""Sharded training: FSDP2 on a flat and on a hybrid mesh, FSDP1, ZeRO."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.models import WIDTH, Block, batch, mlp, train, weights, whole
from tests.conformance.ranks import Ranks


def blocks() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 4))


def fully_sharded(
    rank: int, _size: int, shape: list[int], clip: bool, mixed: bool = False, reshard: bool = True
) -> Any:
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard}
    if mixed:
        options["mp_policy"] = policy
    model = blocks()
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    norms: list[torch.Tensor] = []

    def clipped() -> None:
        norms.append(whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))

    losses = train(model, model.parameters(), rank, before_step=clipped if clip else None)
    return {"losses": losses, "norms": norms, "weights": weights(model)}


@pytest.mark.parametrize(
    ("shape", "size"), [([2], 2), ([3], 3), ([2, 2], 4)], ids=["1-D", "1-D uneven", "hybrid 2-D"]
)
@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
def test_fsdp2(ranks: Ranks, shape: list[int], size: int, clip: bool) -> None:
    """fully_shard trains to Gloo's weights, gathered norms of the gradients included."""
    # Divisions by the group's size happen before or after the sum, depending on what a back end offers.
    ranks.compare(fully_sharded, size, shape=shape, clip=clip, tolerance=1e-5)


@pytest.mark.parametrize(
    "options", [{"mixed": True}, {"reshard": False}], ids=["bfloat16 parameters", "no reshard"]
)
def test_fsdp2_options(ranks: Ranks, options: dict[str, bool]) -> None:
    """fully_shard gathers parameters in bfloat16 where told to, and keeps them gathered where told to."""
    ranks.compare(fully_sharded, shape=[2], clip=False, tolerance=1e-5, **options)


def accumulated(rank: int, size: int) -> Any:
    """Gradients pile up, unsharded, until the last part of a step reduces them."""
    model = blocks()
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)
            x, y = batch(rank, 10 * step + part)
            nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_fsdp2_gradient_accumulation(ranks: Ranks) -> None:
    """With set_requires_gradient_sync(False) gradients are reduced at the last part of a step only."""
    ranks.compare(accumulated, tolerance=1e-5)


def fsdp1(rank: int, _size: int) -> Any:
    model = FullyShardedDataParallel(blocks(), use_orig_params=True)
    losses = train(model, model.parameters(), rank)
    norm = model.clip_grad_norm_(1.0)
    with FullyShardedDataParallel.summon_full_params(model):
        return {"losses": losses, "norm": norm, "weights": weights(model)}


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="torch's FSDP1 refuses to run on CPUs alone")
def test_fsdp1(ranks: Ranks) -> None:
    """The first generation of FSDP trains as with Gloo."""
    ranks.compare(fsdp1, tolerance=1e-5)


def zero(rank: int, _size: int, overlap: bool) -> Any:
    model = DistributedDataParallel(mlp(), gradient_as_bucket_view=overlap)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=1e-2, parameters_as_bucket_view=overlap
    )
    losses = train(model, model.parameters(), rank, optimizer=optimizer)
    optimizer.consolidate_state_dict(0)
    state = optimizer.state_dict()["state"] if rank == 0 else {}
    return {"losses": losses, "weights": weights(model.module), "state": dict(sorted(state.items()))}


@pytest.mark.parametrize("views", [False, True], ids=["plain", "bucket views"])
@pytest.mark.parametrize("size", [2, 3])
def test_zero_redundancy_optimizer(ranks: Ranks, views: bool, size: int) -> None:
    """Optimizer state split over the ranks gives Gloo's weights, and can be gathered on rank 0."""
    ranks.compare(zero, size, overlap=views)
