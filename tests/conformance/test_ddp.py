"""DistributedDataParallel in all its forms."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import averagers
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.models import WIDTH, batch, mlp, train, weights
from tests.conformance.ranks import Ranks


def trained(rank: int, _size: int, **options: Any) -> Any:
    """Several buckets, so that reductions overlap with the backward pass and order matters."""
    model = DistributedDataParallel(mlp(64), bucket_cap_mb=0.01, **options)
    losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        x, y = batch(rank, step, width=64)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "weights": weights(model.module)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"find_unused_parameters": True},
        {"init_sync": False},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
@pytest.mark.parametrize("size", [2, 3])
def test_options(ranks: Ranks, options: dict[str, bool], size: int) -> None:
    """Every option of DDP trains to the weights that Gloo trains to, equal on all ranks."""
    results = ranks.compare(trained, size, **options)
    for other in results[1:]:
        assert all(
            torch.equal(one, two)
            for one, two in zip(results[0]["weights"].values(), other["weights"].values(), strict=True)
        )


def accumulated(rank: int, _size: int) -> Any:
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for step in range(2):
        with model.no_sync():
            for part in range(2):
                x, y = batch(rank, 10 * step + part)
                nn.functional.mse_loss(model(x), y).backward()
        x, y = batch(rank, 10 * step + 2)
        nn.functional.mse_loss(model(x), y).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
    return {"gradients": gradients, "weights": weights(model.module)}


def test_gradient_accumulation(ranks: Ranks) -> None:
    """Under no_sync() gradients pile up unreduced and the last backward pass reduces the sum."""
    ranks.compare(accumulated)


def hooked(rank: int, size: int, hook: str) -> Any:
    # PowerSGD waits inside a future's callback, for which Gloo has two threads: one bucket, then.
    model = DistributedDataParallel(mlp(64), bucket_cap_mb=25 if hook == "powerSGD" else 0.01)
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "own":
        model.register_comm_hook(None, _gather_and_add)
    else:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(rank, step, width=64)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model.module)


def _gather_and_add(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook with an operation of its own and work in the future's callback."""
    mine, size = bucket.buffer(), dist.get_world_size()
    everybody = torch.empty(size, mine.numel())
    work = dist.all_gather_into_tensor(everybody.view(-1), mine, async_op=True)
    assert work is not None
    return work.get_future().then(lambda _: everybody.sum(0) / size)


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "powerSGD", "own"])
def test_comm_hooks(ranks: Ranks, hook: str) -> None:
    """Communication hooks get futures that they can chain, and lead to Gloo's weights."""
    ranks.compare(hooked, hook=hook)


def averaged(rank: int, _size: int) -> Any:
    """After two steps gradients stay among two ranks, and all average the weights every second step."""
    mine, _ = dist.new_subgroups(2)
    state = post_localSGD_hook.PostLocalSGDState(None, mine, start_localSGD_iter=2)
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        x, y = batch(rank, step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    return weights(model.module)


def test_model_averaging(ranks: Ranks) -> None:
    """Post-local SGD averages the weights themselves, as over Gloo."""
    ranks.compare(averaged, 4)


class Branches(nn.Module):
    """Each rank and step uses one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.left, self.right = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor, left: bool) -> torch.Tensor:
        """The chosen branch."""
        return self.left(x) if left else self.right(x)


def unused(rank: int, _size: int) -> Any:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(rank, step)
        nn.functional.mse_loss(model(x, (step + rank * (step // 2)) % 2 == 0), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model.module)


def test_unused_parameters(ranks: Ranks) -> None:
    """Parameters that one rank or nobody used in a step are found and handled as with Gloo."""
    ranks.compare(unused)


def normed(rank: int, _size: int) -> Any:
    torch.manual_seed(7)
    inner = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model = DistributedDataParallel(inner)
    train(model, model.parameters(), rank)
    model(batch(rank, 99)[0])  # the buffers of rank 0 are broadcast at the beginning of a forward pass
    return weights(inner)


def test_batch_norm_buffers(ranks: Ranks) -> None:
    """Buffers are broadcast from rank 0, and come out as with Gloo on every rank."""
    ranks.compare(normed)


def uneven(rank: int, size: int) -> Any:
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 2 + 2 * rank
    with Join([model]):
        for step in range(steps):
            x, y = batch(rank, step)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(model.module)


def test_uneven_inputs_under_join(ranks: Ranks) -> None:
    """Under ``Join`` a rank that runs out of data shadows the others' collectives until all are done."""
    ranks.compare(uneven)


def uneven_with_exception(rank: int, size: int) -> Any:
    model = DistributedDataParallel(mlp())
    done, error = 0, ""
    try:
        with Join([model], throw_on_early_termination=True):
            for step in range(2 + rank):
                x, y = batch(rank, step)
                nn.functional.mse_loss(model(x), y).backward()
                done += 1
    except RuntimeError as problem:
        error = str(problem)
    return {"done": done, "error": error}


def test_uneven_inputs_can_be_reported(ranks: Ranks) -> None:
    """With throw_on_early_termination every rank hears at once that one has run out of data."""
    results = ranks.compare(uneven_with_exception)
    assert all("exhausted" in result["error"] for result in results)
