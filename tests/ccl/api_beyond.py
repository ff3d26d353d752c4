"""What torch's collectives do here and not over Gloo, rank by rank.

A check gets (rank, size) and returns what this rank saw and what it should be.  Each runs on whatever
default group there is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.ccl.api import Check
from tests.ccl.checks import numbers

BEYOND: dict[str, Check] = {}

SPLITS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
"""Before, torch splits only groups that are bound to a GPU."""

OURS = [torch.int16, torch.bool, torch.complex64, torch.complex128]


def beyond(function: Check) -> Check:
    BEYOND[function.__name__] = function
    return function


def options(kind: type, **values: Any) -> Any:
    """torch's options of a call."""
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


@beyond
def averages(rank: int, size: int) -> Any:
    seen, wanted = [], []
    total = sum(numbers(r, 6, kind=torch.int64) for r in range(size))
    for kind in (torch.float32, torch.float64, torch.int32):
        tensor = numbers(rank, 6, kind=kind)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        seen.append(tensor)
        average = total.double() / size
        wanted.append((average if kind.is_floating_point else average.floor()).to(kind))
    return seen, wanted


@beyond
def premultiplied_sums(rank: int, size: int) -> Any:
    op = dist._make_nccl_premul_sum(0.5)
    summed, reduced = numbers(rank, 6), numbers(rank, 6)
    dist.all_reduce(summed, op)
    dist.reduce(reduced, 0, op)
    got, source = torch.zeros(2), numbers(rank, size * 2)
    dist.reduce_scatter_tensor(got, source, op)
    half = sum(numbers(r, 6) for r in range(size)) / 2
    halves = sum(numbers(r, size * 2) for r in range(size)) / 2
    kept = [source, half if rank == 0 else numbers(rank, 6)]
    return [summed, got, source, reduced], [half, halves.chunk(size)[rank], numbers(rank, size * 2), kept[1]]


@beyond
def other_dtypes(rank: int, size: int) -> Any:
    seen: list[Any] = []
    wanted: list[Any] = []
    for kind in OURS:
        tensor = numbers(rank, 5, kind=kind)
        parts = [torch.zeros(5, dtype=kind) for _ in range(size)]
        dist.all_gather(parts, tensor)
        seen.append(parts)
        wanted.append([numbers(r, 5, kind=kind) for r in range(size)])
    short, truth = numbers(rank, 5, kind=torch.int16), torch.tensor([rank == 0, False, True])
    dist.all_reduce(short)
    dist.all_reduce(truth, dist.ReduceOp.MAX)
    seen += [short, truth]
    wanted.append(sum(numbers(r, 5, kind=torch.int16) for r in range(size)).to(torch.int16))
    wanted.append(torch.tensor([True, False, True]))
    return seen, wanted


@beyond
def tensors_with_gaps(rank: int, size: int) -> Any:
    whole = numbers(rank, 6, 6)
    got = torch.zeros(6, 6)
    parts = [torch.zeros(6, 6)[::2] for _ in range(size)]
    dist.all_gather(parts, whole[::2])
    dist.broadcast(got[:, 1], 0) if rank else dist.broadcast(whole[:, 1], 0)
    moved = torch.zeros(2, size).t()
    dist.all_to_all_single(moved, numbers(rank, 2, size).t())
    negative = torch.complex(numbers(rank, 3), numbers(rank, 3)).conj().imag
    assert negative.is_neg()  # a view that is read with the other sign
    negatives = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(negatives, negative)
    column = torch.zeros(6, 6)
    if rank:
        column[:, 1] = numbers(0, 6, 6)[:, 1]
    return [parts, got, moved, negatives], [
        [numbers(r, 6, 6)[::2] for r in range(size)],
        column,
        torch.stack([numbers(r, 2, size).t()[rank] for r in range(size)]),
        [-numbers(r, 3) for r in range(size)],
    ]


@beyond
def uneven_lists(rank: int, size: int) -> Any:
    parts = [torch.zeros(r + 1) for r in range(size)]
    dist.all_gather(parts, numbers(rank, rank + 1))
    return parts, [numbers(r, r + 1) for r in range(size)]


@beyond
def coalesced_forms(rank: int, size: int) -> Any:
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    tensors = [numbers(rank, 4), numbers(rank, 9)]
    backend.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()
    outs = [torch.zeros(size * 2), torch.zeros(size * 3)]
    backend.all_gather_single_coalesced(outs, [numbers(rank, 2), numbers(rank, 3)]).wait()
    got = [torch.zeros(2), torch.zeros(3)]
    backend.reduce_scatter_single_coalesced(got, [numbers(rank, size * 2), numbers(rank, size * 3)]).wait()
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    backend.allgather_coalesced(lists, [numbers(rank, 2), numbers(rank, 3)]).wait()
    everybody = range(size)
    return [tensors, outs, got, lists], [
        [sum(numbers(r, n) for r in everybody) for n in (4, 9)],
        [torch.cat([numbers(r, n) for r in everybody]) for n in (2, 3)],
        [sum(numbers(r, size * n) for r in everybody).chunk(size)[rank] for n in (2, 3)],
        [[numbers(r, n) for n in (2, 3)] for r in everybody],
    ]


@beyond
def windows_of_calls(rank: int, size: int) -> Any:
    tensors = [numbers(rank, n) for n in (2, 70_000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    return tensors, [sum(numbers(r, n) for r in range(size)) for n in (2, 70_000)]


@beyond
def split_groups(rank: int, size: int) -> Any:
    seen: list[Any] = []
    if SPLITS:
        pair = dist.split_group(split_ranks=[[0, 2], [1]])
        tensor = numbers(rank, 5)
        dist.all_reduce(tensor, group=pair)
        seen = [tensor, dist.get_rank(pair), dist.get_process_group_ranks(pair)]
        dist.destroy_process_group(pair)
    return seen, [] if not SPLITS else [
        numbers(1, 5) if rank == 1 else numbers(0, 5) + numbers(2, 5),
        rank // 2,
        [1] if rank == 1 else [0, 2],
    ]


@beyond
def gathering_into_one_tensor(rank: int, size: int) -> Any:
    gather = getattr(dist, "gather_single", None)
    whole = torch.zeros(size * 2)
    if gather is not None:
        gather(numbers(rank, 2), whole if rank == 1 else None, dst=1)
    everybodys = torch.cat([numbers(r, 2) for r in range(size)])
    return whole, everybodys if gather is not None and rank == 1 else torch.zeros(size * 2)


@beyond
def works_tell(rank: int, size: int) -> Any:
    tensor = numbers(rank, 4)
    work = dist.all_reduce(tensor, async_op=True)
    waited = work.wait(timedelta(seconds=30))
    value = work.get_future().then(lambda f: f.value()[0] + 1).wait()
    total = sum(numbers(r, 4) for r in range(size))
    return [waited, work.is_completed(), work.is_success(), value], [True, True, True, total + 1]


def words(rank: int) -> str:
    """How the error of a monitored barrier begins that rank 1 does not come to."""
    return [
        "Rank 1 failed to pass monitoredBarrier in 500 ms",
        "",
        "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv",
    ][rank]


@beyond
def barriers_that_watch(rank: int, size: int) -> Any:
    barrier = getattr(dist.group.WORLD, "monitored_barrier")  # noqa: B009 - not in torch's stubs
    barrier(timedelta(seconds=30), wait_all_ranks=True)
    if SPLITS:  # the version that also lets other back ends than Gloo in
        dist.monitored_barrier(timeout=timedelta(seconds=30))
    said = ""
    pair = dist.new_group([0, 1, 2])
    if rank != 1:
        try:
            pair.monitored_barrier(timedelta(seconds=0.5), wait_all_ranks=True)
        except RuntimeError as error:
            said = str(error)
    dist.barrier()
    dist.destroy_process_group(pair)
    return [rank, said.startswith(words(rank))], [rank, True]


@beyond
def wrong_arguments(rank: int, size: int) -> Any:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    calls: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: dist.all_reduce(torch.zeros(2), dist.ReduceOp.BAND),
            "BAND is not defined for torch.float32",
        ),
        (
            lambda: dist.all_reduce(torch.zeros(2, dtype=torch.bool), dist.ReduceOp.AVG),
            "AVG is not defined for torch.bool",
        ),
        (
            lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int32), dist._make_nccl_premul_sum(2.0)),
            "PREMUL_SUM",
        ),
        (lambda: dist.all_gather_into_tensor(torch.zeros(2), torch.zeros(7)), "needs 21"),
        (lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(7)), "needs 6"),
        (lambda: dist.all_to_all_single(torch.zeros(7), torch.zeros(7)), "7 rows cannot be cut into 3"),
        (
            lambda: dist.all_to_all_single(torch.zeros(6), torch.zeros(6), [1, 2, 2], [2, 2, 2]),
            "do not cut 6 rows",
        ),
        (
            lambda: backend.allgather([[torch.zeros(2)] * size], [torch.zeros(2, dtype=torch.int64)]),
            "different dtypes",
        ),
        (lambda: backend.allgather([[torch.zeros(2)]], [torch.zeros(2)]), "for each of the group's 3 ranks"),
        (lambda: backend.send([torch.zeros(1)], 7, 0), "there is no rank 7 in a group of 3"),
        (lambda: backend.send([torch.zeros(1)], (rank + 1) % size, 1 << 24), "a message's tag is between"),
        (lambda: backend.broadcast([], options(dist.BroadcastOptions, rootRank=0)), "takes one tensor"),
    ]
    missed = []
    for call, words in calls:
        try:
            call()
            missed.append(f"{words}: nothing said")
        except RuntimeError as error:
            if words not in str(error):
                missed.append(f"{words}: {error}")
    tensor = numbers(rank, 2)
    dist.all_reduce(tensor)
    return [missed, tensor], [[], sum(numbers(r, 2) for r in range(size))]


@beyond
def shorter_timeouts(rank: int, size: int) -> Any:
    """The last check: what it does to the links lasts until the groups are made again."""
    set_timeout = getattr(dist.distributed_c10d, "set_timeout", None)
    pair = dist.new_group([0, 1, 2], timeout=timedelta(seconds=60))
    said = ""
    if set_timeout is not None and rank == 0:
        set_timeout(timedelta(seconds=0.3), pair)
        try:
            dist.recv(torch.zeros(1), 1, group=pair)
        except RuntimeError as error:
            said = str(error)
    return "Timed out waiting 300ms" in said, set_timeout is not None and rank == 0
