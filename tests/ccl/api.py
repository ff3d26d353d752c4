"""What torch's collectives do beyond the common cases, rank by rank, to be compared with Gloo.

A check gets (rank, size) and returns what this rank saw; those of ``BEYOND`` return what they saw and
what it should be, because Gloo cannot do them.  Each runs on whatever default group there is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.ccl.checks import numbers

Check = Callable[[int, int], Any]

LIKE_GLOO: dict[str, Check] = {}
BEYOND: dict[str, Check] = {}

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
SPLITS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
"""Before, torch splits only groups that are bound to a GPU."""

OURS = [torch.int16, torch.bool, torch.complex64, torch.complex128]


def like_gloo(function: Check) -> Check:
    LIKE_GLOO[function.__name__] = function
    return function


def beyond(function: Check) -> Check:
    BEYOND[function.__name__] = function
    return function


def options(kind: type, **values: Any) -> Any:
    """torch's options of a call."""
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


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
