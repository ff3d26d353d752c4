"""Tensors of more than 2 GiB, between two real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.ccl.test_standalone import meet, spawn

COUNT = (1 << 31) + 4097
"""Bytes: more than fit a signed 32-bit length."""

NEEDED = 14 << 30
"""Free memory without which the test would only be slow."""

MARKS = (0, 1, (1 << 31) - 1, 1 << 31, COUNT - 1)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        psutil.virtual_memory().available < NEEDED, reason=f"needs {NEEDED >> 30} GiB of free memory"
    ),
]


def marked(value: int) -> torch.Tensor:
    """A huge tensor of zeros with marks at its ends and where 32 bits end."""
    tensor = torch.zeros(COUNT, dtype=torch.uint8)
    for place in MARKS:
        tensor[place] = value
    return tensor


def seen(tensor: torch.Tensor) -> list[int]:
    """The marks, and how many elements are not zero."""
    return [*(int(tensor[place]) for place in MARKS), int(torch.count_nonzero(tensor))]


def all_reduce(rank: int, size: int, folder: str) -> Any:
    meet(folder, rank, size)
    tensor = marked(rank + 1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return seen(tensor)


def broadcast(rank: int, size: int, folder: str) -> Any:
    meet(folder, rank, size)
    tensor = marked(3 * (1 - rank))
    dist.broadcast(tensor, 0)
    dist.destroy_process_group()
    return seen(tensor)


def send_and_receive(rank: int, size: int, folder: str) -> Any:
    meet(folder, rank, size)
    tensor = marked(3 * (1 - rank))
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    dist.destroy_process_group()
    return seen(tensor)


def all_gather(rank: int, size: int, folder: str) -> Any:
    meet(folder, rank, size)
    parts = [torch.empty(COUNT, dtype=torch.uint8) for _ in range(size)]
    dist.all_gather(parts, marked(rank + 1))
    dist.destroy_process_group()
    return seen(parts[0].add_(parts[1]))


@pytest.mark.long(every=2)
@pytest.mark.parametrize("body", [all_reduce, broadcast, send_and_receive, all_gather])
def test_huge_tensors_arrive_whole(body: Callable[..., Any], tmp_path: Path) -> None:
    """Nothing is lost or moved where a length or an offset does not fit 32 bits."""
    count = len(MARKS)
    assert spawn(body, 2, tmp_path, limit=250.0) == [[*[3] * count, count]] * 2
