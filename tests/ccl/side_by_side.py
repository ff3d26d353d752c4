"""The checks, and DDP, in one process of several: over Gloo first, then over trainmover, and what differs.

:func:`run` is the body of a spawned process.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.ccl.checks import CHECKS, ONLY_HERE, Check


def train(rank: int, **options: Any) -> tuple[list[torch.Tensor], list[float]]:
    """A few steps of a small model under DDP, in several buckets."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(8, 600), nn.ReLU(), nn.BatchNorm1d(600), nn.Linear(600, 300), nn.Linear(300, 4)
    )
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.1, **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        loss = wrapped(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return [p.detach().clone() for p in model.parameters()] + list(model.buffers()), losses


def equal_everywhere(tensors: list[torch.Tensor]) -> bool:
    """The same bits on every rank."""
    import hashlib

    digest = hashlib.sha256(
        b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() if t.dim() else b"" for t in tensors)
    )
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, digest.hexdigest())
    return len(set(found)) == 1


def data_parallel(rank: int) -> dict[str, Any]:
    """DDP in its usual forms."""
    found: dict[str, Any] = {}
    for name, options in (
        ("plain", {}),
        ("static", {"static_graph": True}),
        ("unused", {"find_unused_parameters": True}),
        ("views", {"gradient_as_bucket_view": True}),
    ):
        state, losses = train(rank, **options)
        found[name] = (state, losses, equal_everywhere([t for t in state[:8] if t.dim()]))
    return found


# -- one process -----------------------------------------------------------------------------------


def run(rank: int, size: int, pipe: Pipe, folder: str) -> None:
    """Body of a spawned process: everything over Gloo, then over trainmover; reports what differs."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        pipe.send(("report", compare(rank, size, pipe, folder)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        sys.exit(1)


def compare(rank: int, size: int, pipe: Pipe, folder: str) -> dict[str, str]:
    """What differs from Gloo, by check; empty when nothing does."""
    store = dist.FileStore(str(Path(folder) / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    expected = {name: function(rank, size) for name, function in CHECKS.items()}
    trained = data_parallel(rank)
    dist.destroy_process_group()

    report: dict[str, str] = {}
    with trainmover(rank, size, pipe):
        for name, function in CHECKS.items():
            note(report, name, function, rank, size, expected[name])
        for name, function in ONLY_HERE.items():
            note(report, name, function, rank, size, None)
        for name, (state, losses, equal) in data_parallel(rank).items():
            other, other_losses, _ = trained[name]
            close = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(state, other, strict=True))
            near = torch.allclose(torch.tensor(losses), torch.tensor(other_losses), atol=1e-5)
            report[f"DDP {name}"] = "" if close and near and equal else f"{close=} {near=} {equal=}"
        dist.destroy_process_group()
    return report


def note(report: dict[str, str], name: str, function: Check, rank: int, size: int, expected: Any) -> None:
    """Run one check and note how it differs."""
    try:
        found = function(rank, size)
        if name in ONLY_HERE:
            found, expected = found
        report[name] = "" if same(found, expected) else f"{found!r:.500} is not {expected!r:.500}"
    except Exception:
        report[name] = traceback.format_exc()


def same(left: Any, right: Any) -> bool:
    """Equal in structure, dtype, shape and value."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


@contextmanager
def trainmover(rank: int, size: int, pipe: Pipe):
    """The default process group on the trainmover backend, in epoch 1."""
    import threading

    from torch._C._distributed_c10d import HashStore

    from trainmover.ccl import backend
    from trainmover.ccl.communicator import Communicator
    from trainmover.ccl.engine import Engine
    from trainmover.ccl.table import LinkTable, Peer, Plan, new_life

    table = LinkTable("job", new_life(f"m{rank}", 0), b"secret", "127.0.0.1")
    broken: list[str] = []
    engine = Engine(table, lambda _epoch, _peer, reason, _told: broken.append(reason))
    communicator = Communicator(engine, rank, size, 1, 20.0)
    pipe.send(("peer", (table.host, table.port, table.life)))
    peers = tuple(Peer(*peer) for peer in pipe.recv())
    plan = Plan(1, rank, peers, communicator.links(), 20.0)
    ready = threading.Event()
    engine.call(lambda: table.prepare(plan, lambda *_: ready.set()))
    assert ready.wait(20.0)
    engine.adopt(plan)
    communicator.plan = plan
    backend.register()
    backend.register()
    backend.install(communicator)
    dist.init_process_group(backend.NAME, store=HashStore(), rank=rank, world_size=size)
    try:
        yield
    except Exception as error:
        error.add_note(f"broken epochs: {broken}, fatal: {engine.fatal!r}")
        raise
    pipe.send(("done", broken))
    pipe.recv()
    engine.stop()
    assert communicator.groups == {}
