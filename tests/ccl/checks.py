"""What ``torch.distributed`` must do, written once: run over Gloo and over trainmover, then compared.

Each check returns plain values and tensors; all numbers are small integers, so that sums are exact
whatever their order.  ``side_by_side`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Check = Callable[[int, int], Any]
CHECKS: dict[str, Check] = {}
ONLY_HERE: dict[str, Check] = {}
"""Checks of what Gloo cannot do; they return a pair (result, expected)."""


def check(function: Check) -> Check:
    """Compare this one with Gloo."""
    CHECKS[function.__name__] = function
    return function


def only_here(function: Check) -> Check:
    """Compare this one with what it says itself."""
    ONLY_HERE[function.__name__] = function
    return function


def numbers(rank: int, *shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers that differ by rank."""
    count = int(torch.tensor(shape).prod())
    return ((torch.arange(count) * 7 + rank * 3) % 11 + 1).reshape(shape).to(kind)


@check
def all_reduce_of_every_kind(rank: int, size: int) -> Any:
    found = []
    for kind in (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.int32):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            tensor = numbers(rank, 3, 5, kind=kind)
            dist.all_reduce(tensor, op)
            found.append(tensor)
    return found


@check
def all_reduce_of_bits(rank: int, size: int) -> Any:
    found = []
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        tensor = numbers(rank, 9, kind=torch.int64)
        dist.all_reduce(tensor, op)
        found.append(tensor)
    return found


@check
def all_reduce_large(rank: int, size: int) -> Any:
    tensor = numbers(rank, 700_001)
    dist.all_reduce(tensor)
    return tensor


@only_here
def all_reduce_average(rank: int, size: int) -> Any:
    tensor, whole = numbers(rank, 6), numbers(rank, 6, kind=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    total = sum(numbers(r, 6, kind=torch.int64) for r in range(size))
    return [tensor, whole], [total.float() / size, total // size]


@only_here
def all_reduce_bfloat16(rank: int, size: int) -> Any:
    tensor = numbers(rank, 6, kind=torch.bfloat16)
    dist.all_reduce(tensor)
    return tensor, sum(numbers(r, 6) for r in range(size)).to(torch.bfloat16)


@only_here
def all_reduce_of_a_view(rank: int, size: int) -> Any:
    whole = numbers(rank, 4, 6)
    before = whole.clone()
    dist.all_reduce(whole.t()[::2])
    expected = before
    expected.t()[::2] = sum(numbers(r, 4, 6).t()[::2] for r in range(size))
    return whole, expected


@only_here
def empty_tensors(rank: int, size: int) -> Any:
    nothing = torch.empty(0, 3)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 1)
    dist.reduce(nothing, 0)
    parts = [torch.empty(0) for _ in range(size)]
    dist.all_gather(parts, torch.empty(0))
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    return [nothing, scalar], [torch.empty(0, 3), torch.tensor(float(sum(range(size))))]


@check
def async_calls(rank: int, size: int) -> Any:
    tensors = [numbers(rank, n) for n in (1, 10, 100_000, 3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works)
    return tensors


@only_here
def futures_of_calls(rank: int, size: int) -> Any:
    tensor = numbers(rank, 4)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] + 1)
    return future.wait(), sum(numbers(r, 4) for r in range(size)) + 1


@check
def broadcast(rank: int, size: int) -> Any:
    found = []
    for root in range(size):
        for tensor in (numbers(rank, 3, 4), numbers(rank, 200_000)):
            dist.broadcast(tensor, root)
            found.append(tensor)
    return found


@check
def reduce(rank: int, size: int) -> Any:
    tensor = numbers(rank, 5, 3)
    dist.reduce(tensor, 1)
    return tensor if rank == 1 else None


@check
def all_gather(rank: int, size: int) -> Any:
    parts = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(parts, numbers(rank, 2, 3))
    views = [torch.zeros(3, 2).t() for _ in range(size)]
    dist.all_gather(views, numbers(rank, 2, 3))
    return [parts, views]


@check
def all_gather_into_tensor(rank: int, size: int) -> Any:
    whole = torch.zeros(size * 2, 3)
    dist.all_gather_into_tensor(whole, numbers(rank, 2, 3))
    return whole


@check
def gather(rank: int, size: int) -> Any:
    parts = [torch.zeros(4) for _ in range(size)] if rank == 2 else None
    dist.gather(numbers(rank, 4), parts, dst=2)
    return parts


@check
def scatter(rank: int, size: int) -> Any:
    got = torch.zeros(4)
    dist.scatter(got, [numbers(r, 4) for r in range(size)] if rank == 0 else None, src=0)
    return got


@only_here
def reduce_scatter(rank: int, size: int) -> Any:
    counts = [3, 0, 5][:size]
    got = torch.zeros(counts[rank])
    dist.reduce_scatter(got, [numbers(rank + i, counts[i]) for i in range(size)])
    return got, sum(numbers(r + rank, counts[rank]) for r in range(size))


@only_here
def reduce_scatter_tensor(rank: int, size: int) -> Any:
    source = numbers(rank, size * 50_000)
    kept, got = source.clone(), torch.zeros(50_000)
    dist.reduce_scatter_tensor(got, source)
    total = sum(numbers(r, size * 50_000) for r in range(size))
    return [got, source], [total.chunk(size)[rank], kept]


@only_here
def all_to_all(rank: int, size: int) -> Any:
    ins = [torch.full((rank + i,), float(10 * rank + i)) for i in range(size)]
    outs = [torch.zeros(rank + i) for i in range(size)]
    dist.all_to_all(outs, ins)
    return outs, [torch.full((rank + i,), float(10 * i + rank)) for i in range(size)]


@check
def all_to_all_single(rank: int, size: int) -> Any:
    even = torch.zeros(size * 2, 3)
    dist.all_to_all_single(even, numbers(rank, size * 2, 3))
    sends, receives = [i + 1 for i in range(size)], [rank + 1] * size
    uneven = torch.zeros(sum(receives), 2)
    dist.all_to_all_single(uneven, numbers(rank, sum(sends), 2), receives, sends)
    return [even, uneven]


@check
def send_and_recv(rank: int, size: int) -> Any:
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(1000)
    sent = dist.isend(numbers(rank, 1000), after)
    dist.recv(got, before)
    sent.wait()
    back = torch.zeros(2, 2)
    request = dist.irecv(back, after)
    dist.send(numbers(rank, 2, 2), before)
    request.wait()
    return [got, back]


@check
def batched_send_and_recv(rank: int, size: int) -> Any:
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(5)
    ops = [dist.P2POp(dist.isend, numbers(rank, 5), after), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


@check
def objects(rank: int, size: int) -> Any:
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank})
    told: list[Any] = [("a", 1), None] if rank == 0 else [None, None]
    dist.broadcast_object_list(told, 0)
    at_one: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object(rank * 2, at_one, 1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    return [everybody, told, at_one, mine]


@check
def barriers(rank: int, size: int) -> Any:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    return None


@check
def subgroups(rank: int, size: int) -> Any:
    pair = dist.new_group([0, 2])
    other = dist.new_group([1, 2])
    found = []
    for group, members in ((pair, (0, 2)), (other, (1, 2))):
        if rank in members:
            tensor = numbers(rank, 7)
            dist.all_reduce(tensor, group=group)
            found += [tensor, dist.get_rank(group), dist.get_world_size(group)]
            dist.barrier(group)
    dist.barrier()
    for group, members in ((pair, (0, 2)), (other, (1, 2))):
        if rank in members:
            dist.destroy_process_group(group)
    tensor = numbers(rank, 3)
    dist.all_reduce(tensor)
    return [found, tensor]


@only_here
def functional(rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functional_collectives

    group = dist.group.WORLD
    summed = functional_collectives.all_reduce(numbers(rank, 4), "sum", group)
    gathered = functional_collectives.all_gather_tensor(numbers(rank, 2), 0, group)
    return (
        [summed + 0, gathered + 0],
        [sum(numbers(r, 4) for r in range(size)), torch.cat([numbers(r, 2) for r in range(size)])],
    )


@only_here
def coalesced(rank: int, size: int) -> Any:
    tensors = [numbers(rank, 4), numbers(rank, 9)]
    dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()
    return tensors, [sum(numbers(r, n) for r in range(size)) for n in (4, 9)]


@only_here
def refusals(rank: int, size: int) -> Any:
    from trainmover.errors import LinkError

    said = []
    for action in (
        lambda: dist.all_gather_into_tensor(torch.zeros(2), torch.zeros(7)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(7)),
        lambda: dist.all_reduce(torch.zeros(2), dist.ReduceOp.BAND),
    ):
        try:
            action()
        except (LinkError, ValueError, RuntimeError) as error:
            said.append(type(error).__name__)
    tensor = numbers(rank, 2)
    dist.all_reduce(tensor)
    return [len(said), tensor], [3, sum(numbers(r, 2) for r in range(size))]
