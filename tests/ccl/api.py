"""What torch's collectives do beyond the common cases, rank by rank, to be compared with Gloo.

A check gets (rank, size) and returns what this rank saw.  Each runs on whatever default group there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.ccl.checks import numbers

Check = Callable[[int, int], Any]

LIKE_GLOO: dict[str, Check] = {}

KINDS = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def like_gloo(function: Check) -> Check:
    LIKE_GLOO[function.__name__] = function
    return function


@like_gloo
def every_dtype_moves(rank: int, size: int) -> Any:
    found: list[Any] = []
    for kind in KINDS:
        tensor = numbers(rank, 5, kind=kind)
        parts = [torch.zeros(5, dtype=kind) for _ in range(size)]
        dist.all_gather(parts, tensor)
        dist.broadcast(tensor, 1)
        got = torch.zeros(5, dtype=kind)
        dist.scatter(got, [numbers(r, 5, kind=kind) for r in range(size)] if rank == 0 else None, src=0)
        summed = numbers(rank, 5, kind=kind)
        dist.reduce(summed, 2)
        found.append([parts, tensor, got, summed if rank == 2 else None])
    return found


@like_gloo
def every_operation_reduces(rank: int, size: int) -> Any:
    found = []
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    for kind in (torch.float32, torch.int32, torch.uint8):
        for op in ops:
            small, large = numbers(rank, 3, kind=kind), numbers(rank, 40_000, kind=kind)
            dist.all_reduce(small, op)
            dist.all_reduce(large, op)
            found += [small, large]
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        bits = numbers(rank, 3, kind=torch.uint8)
        dist.all_reduce(bits, op)
        found.append(bits)
    return found


@like_gloo
def complex_sums(rank: int, size: int) -> Any:
    tensor = torch.complex(numbers(rank, 4), numbers(rank + 1, 4))
    dist.all_reduce(tensor)
    parts = [torch.zeros(4, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(parts, torch.complex(numbers(rank, 4), numbers(rank + 1, 4)))
    return [tensor, parts]


@like_gloo
def messages_by_tag(rank: int, size: int) -> Any:
    after, before = (rank + 1) % size, (rank - 1) % size
    sent = [dist.isend(numbers(rank + tag, 100), after, tag=tag) for tag in (5, 6, 7)]
    found = {tag: torch.zeros(100) for tag in (7, 5, 6)}
    for tag, tensor in found.items():
        dist.recv(tensor, before, tag=tag)
    for work in sent:
        work.wait()
    return [found[tag] for tag in (5, 6, 7)]


@like_gloo
def messages_from_anybody(rank: int, size: int) -> Any:
    if rank:
        dist.send(numbers(rank, 50), 0)
        return None
    seen = {}
    for _ in range(size - 1):
        tensor = torch.zeros(50)
        seen[dist.recv(tensor)] = tensor
    return [seen[source] for source in sorted(seen)], sorted(seen)


@like_gloo
def messages_from_anybody_in_a_group(rank: int, size: int) -> Any:
    group = dist.new_group([1, 2])
    source = None
    if rank == 2:
        dist.send(numbers(rank, 9), 1, group=group)
    elif rank == 1:
        tensor = torch.zeros(9)
        source = dist.recv(tensor, group=group)
    if rank:
        dist.destroy_process_group(group)
    return source


@like_gloo
def messages_many_and_large(rank: int, size: int) -> Any:
    after, before = (rank + 1) % size, (rank - 1) % size
    ops, got = [], []
    for count in (1, 100_000, 3, 500_000):
        got.append(torch.zeros(count))
        ops.append(dist.P2POp(dist.irecv, got[-1], before))
        ops.append(dist.P2POp(dist.isend, numbers(rank, count), after))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


@like_gloo
def many_groups(rank: int, size: int) -> Any:
    found = []
    for _ in range(3):
        groups = [dist.new_group(members) for members in ([0], [0, 1], [1, 2], [0, 1, 2], [2])]
        for group in groups:
            if dist.get_rank(group) >= 0:
                tensor = numbers(rank, 6)
                dist.all_reduce(tensor, group=group)
                dist.barrier(group)
                found.append([tensor, dist.get_rank(group), dist.get_process_group_ranks(group)])
        for group in groups:
            if dist.get_rank(group) >= 0:
                dist.destroy_process_group(group)
    return found


@like_gloo
def subgroups_by_size(rank: int, size: int) -> Any:
    own, _ = dist.new_subgroups(1)
    own_too, _ = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    tensor = numbers(rank, 2)
    dist.all_reduce(tensor, group=own_too)
    return [dist.get_process_group_ranks(own), tensor]


@like_gloo
def objects_of_any_size(rank: int, size: int) -> Any:
    found: list[Any] = [None] * size
    dist.all_gather_object(found, list(range(rank * 5_000)))
    if rank == 0:
        dist.send_object_list(["a message", {"x": 1}], 1)
    told: list[Any] = [None, None]
    if rank == 1:
        dist.recv_object_list(told, 0)
    return [[len(item) for item in found], told]


@like_gloo
def functional_collectives(rank: int, size: int) -> Any:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    summed = functional.all_reduce(numbers(rank, 4), "sum", group)
    gathered = functional.all_gather_tensor(numbers(rank, 2), 0, group)
    moved = functional.all_to_all_single(numbers(rank, size * 2), None, None, group)
    return [summed + 0, gathered + 0, moved + 0]


@like_gloo
def sparse_sums(rank: int, size: int) -> Any:
    places = torch.tensor([[0, rank], [1, 2]])
    tensor = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0 + rank]), (4, 4), check_invariants=True)
    dist.all_reduce(tensor)
    return tensor.to_dense()
