"""CUDA tensors: results, and their order with the caller's streams. Three processes share one GPU."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ccl.checks import numbers
from tests.ccl.side_by_side import same
from tests.ccl.test_standalone import meet, spawn

SIZE = 3
SLEEP_CYCLES = 400_000_000
"""A few tenths of a second on the GPUs of these years."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

Case = Callable[[int, int], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def on_gpu(rank: int, *shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """The numbers of a rank, on the GPU."""
    return numbers(rank, *shape, kind=kind).cuda()


def total(size: int, *shape: int) -> torch.Tensor:
    """The sum over all ranks."""
    return sum((numbers(rank, *shape) for rank in range(size)), torch.zeros(*shape))


@case
def every_collective(rank: int, size: int) -> Any:
    reduced, everywhere = on_gpu(rank, 70_001), on_gpu(rank, 5)
    dist.all_reduce(reduced)
    dist.broadcast(everywhere, 1)
    parts = [torch.zeros(4, device="cuda") for _ in range(size)]
    dist.all_gather(parts, on_gpu(rank, 4))
    whole = torch.zeros(size * 2, device="cuda")
    dist.all_gather_into_tensor(whole, on_gpu(rank, 2))
    mine = torch.zeros(3, device="cuda")
    dist.reduce_scatter_tensor(mine, on_gpu(rank, size * 3))
    moved = torch.zeros(size * 2, device="cuda")
    dist.all_to_all_single(moved, on_gpu(rank, size * 2))
    gathered = [torch.zeros(2, device="cuda") for _ in range(size)] if rank == 0 else None
    dist.gather(on_gpu(rank, 2), gathered, dst=0)
    given = torch.zeros(2, device="cuda")
    dist.scatter(given, [on_gpu(r, 2) for r in range(size)] if rank == 2 else None, src=2)
    found = [reduced, everywhere, *parts, whole, mine, moved, *(gathered or []), given]
    return [tensor.cpu() for tensor in found], [
        total(size, 70_001),
        numbers(1, 5),
        *(numbers(r, 4) for r in range(size)),
        torch.cat([numbers(r, 2) for r in range(size)]),
        total(size, size * 3).chunk(size)[rank],
        torch.cat([numbers(r, size * 2).chunk(size)[rank] for r in range(size)]),
        *([numbers(r, 2) for r in range(size)] if rank == 0 else []),
        numbers(rank, 2),
    ]


@case
def messages(rank: int, size: int) -> Any:
    got = torch.zeros(1000, device="cuda")
    sent = dist.isend(on_gpu(rank, 1000), (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    sent.wait()
    return got.cpu(), numbers((rank - 1) % size, 1000)


@case
def a_call_sees_what_was_queued_before_it(rank: int, size: int) -> Any:
    tensor = torch.zeros(1000, device="cuda")
    torch.cuda._sleep(SLEEP_CYCLES)
    tensor += on_gpu(rank, 1000)
    dist.all_reduce(tensor)
    return (tensor * 2).cpu(), total(size, 1000) * 2


@case
def an_asynchronous_call_does_not_hold_up_its_caller(rank: int, size: int) -> Any:
    tensor = on_gpu(rank, 1000)
    torch.cuda.synchronize()
    dist.barrier()
    started = time.monotonic()
    torch.cuda._sleep(SLEEP_CYCLES)
    tensor += 1
    work = dist.all_reduce(tensor, async_op=True)
    asked = time.monotonic() - started
    work.wait()
    doubled = tensor * 2
    torch.cuda.synchronize()
    slept = time.monotonic() - started
    return [asked < slept / 2, doubled.cpu()], [True, (total(size, 1000) + size) * 2]


@case
def another_stream_waits_too(rank: int, size: int) -> Any:
    tensor, stream = on_gpu(rank, 1000), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES // 4)
        tensor *= 2
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()  # on the default stream
    result = tensor + 1
    return result.cpu(), total(size, 1000) * 2 + 1


@case
def futures_give_results_in_order(rank: int, size: int) -> Any:
    work = dist.all_reduce(on_gpu(rank, 500), async_op=True)
    value = work.get_future().then(lambda future: future.value()[0] * 3).wait()
    return value.cpu(), total(size, 500) * 3


@case
def many_calls_in_flight(rank: int, size: int) -> Any:
    tensors = [on_gpu(rank, count) for count in (10, 100_000, 1, 5_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    return [tensor.cpu() for tensor in tensors], [total(size, n) for n in (10, 100_000, 1, 5_000)]


@case
def views_and_both_kinds_of_memory(rank: int, size: int) -> Any:
    whole = on_gpu(rank, 6, 4)
    dist.all_reduce(whole[:, 1])
    host = numbers(rank, 3)
    dist.all_reduce(host)
    expected = numbers(rank, 6, 4)
    expected[:, 1] = total(size, 6, 4)[:, 1]
    return [whole.cpu(), host], [expected, total(size, 3)]


@case
def data_parallel_training(rank: int, size: int) -> Any:
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 20).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        model(torch.randn(8, 20, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [torch.zeros(20, 20, device="cuda") for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    return all(torch.equal(weights[0], other) for other in weights), True


def play(rank: int, size: int, folder: str) -> dict[str, str]:
    """All cases; what went wrong in each."""
    torch.cuda.set_device(0)
    meet(folder, rank, size)
    report = {}
    for name, function in CASES.items():
        try:
            found, expected = function(rank, size)
            report[name] = "" if same(found, expected) else f"{found!r:.500} is not {expected!r:.500}"
        except Exception:
            report[name] = traceback.format_exc()
    dist.destroy_process_group()
    return report


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Each rank's report."""
    folder: Path = tmp_path_factory.mktemp("store")
    return spawn(play, SIZE, folder)


@pytest.mark.parametrize("name", list(CASES))
def test_gpu_tensors(reports: list[dict[str, str]], name: str) -> None:
    """Tensors on a GPU are communicated right, in order with the streams that use them."""
    assert [report[name] for report in reports] == [""] * SIZE
