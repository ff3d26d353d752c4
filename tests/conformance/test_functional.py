"""Functional collectives, differentiable ones, and the coalescing manager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

from tests.conformance.ranks import Ranks

OPERATIONS = {
    "all_reduce": lambda x, size: functional.all_reduce(x, "sum", list(range(size))),
    "all_reduce max": lambda x, size: functional.all_reduce(x, "max", list(range(size))),
    "all_gather_tensor": lambda x, size: functional.all_gather_tensor(x, 0, list(range(size))),
    "all_gather_tensor columns": lambda x, size: functional.all_gather_tensor(x, 1, list(range(size))),
    "reduce_scatter_tensor": lambda x, size: functional.reduce_scatter_tensor(x, "sum", 0, list(range(size))),
    "all_to_all_single": lambda x, size: functional.all_to_all_single(x, None, None, list(range(size))),
    "broadcast": lambda x, size: functional.broadcast(x, 1, list(range(size))),
    "permute_tensor": lambda x, size: functional.permute_tensor(
        x.flatten(), [(i + 1) % size for i in range(size)], list(range(size))
    ),
    "all_reduce_coalesced": lambda x, size: functional.all_reduce_coalesced(
        [x, x * 2], "sum", list(range(size))
    ),
    "all_gather_coalesced": lambda x, size: functional.all_gather_into_tensor_coalesced(
        [x, x * 2], list(range(size))
    ),
    "reduce_scatter_coalesced": lambda x, size: functional.reduce_scatter_tensor_coalesced(
        [x, x * 2], "sum", [0, 0], list(range(size))
    ),
}


def functionally(rank: int, size: int, name: str) -> Any:
    """Two of them under way at once; one is waited for by being used."""
    x = torch.arange(12 * size, dtype=torch.float32).reshape(2 * size, 6) + rank
    result = OPERATIONS[name](x, size)
    started = OPERATIONS[name](x + 100, size)
    parts = result if isinstance(result, list) else [result]
    later = started if isinstance(started, list) else [started]
    return [part + 0 for part in parts] + [functional.wait_tensor(part).clone() for part in later]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [2, 3])
def test_functional_collectives(ranks: Ranks, name: str, size: int) -> None:
    """A functional collective returns what it does over Gloo: small whole numbers, so exactly."""
    ranks.compare(functionally, size, name=name, tolerance=0.0)


def with_gradients(rank: int, size: int) -> Any:
    """Collectives that autograd differentiates."""
    x = (torch.arange(4.0 * size) + rank).requires_grad_()
    parts = differentiable.all_gather(x)
    total = differentiable.all_reduce(sum(part.square() for part in parts))
    swapped = differentiable.all_to_all_single(torch.empty(4 * size), x)
    scattered = differentiable.reduce_scatter(torch.empty(4), [part.contiguous() for part in x.chunk(size)])
    (total.sum() + (swapped * torch.arange(4.0 * size)).sum() + scattered.square().sum()).backward()
    return {"total": total.detach(), "swapped": swapped.detach(), "gradient": x.grad}


def test_differentiable_collectives(ranks: Ranks) -> None:
    """Gradients flow through collectives as over Gloo."""
    ranks.compare(with_gradients)


def coalesced(rank: int, size: int, async_ops: bool) -> Any:
    """The coalescing manager turns several calls into one coalesced call."""
    found: dict[str, list[torch.Tensor]] = {}
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        inputs = [torch.arange(4.0 * size) + 10 * rank + i for i in range(3)]
        if name == "all_reduce":
            outputs = inputs
        else:
            outputs = [torch.zeros(4 * size * size if name == "all_gather" else 4) for _ in inputs]
        with dist._coalescing_manager(async_ops=async_ops) as manager:
            for source, target in zip(inputs, outputs, strict=True):
                if name == "all_reduce":
                    dist.all_reduce(source)
                elif name == "all_gather":
                    dist.all_gather_into_tensor(target, source)
                else:
                    dist.reduce_scatter_tensor(target, source)
        if async_ops:
            manager.wait()
        found[name] = outputs
    return found


@pytest.mark.parametrize("async_ops", [False, True], ids=["sync", "async"])
def test_coalescing_manager(ranks: Ranks, async_ops: bool) -> None:
    """Calls inside a coalescing manager give their results at its end, or when it is waited for."""
    ranks.compare(coalesced, async_ops=async_ops)
