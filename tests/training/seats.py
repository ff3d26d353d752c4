"""A process that sits on a rank alone, as in a sandbox: torch is there, calls are answered from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.ccl.conftest import engines
from tests.waiting import wait_until
from trainmover.ccl import backend
from trainmover.ccl.communicator import Call, Communicator, GroupInfo
from trainmover.ccl.engine import Engine
from trainmover.ccl.table import LinkTable, new_life


class Answers:
    """Answers every call with the same number, and notes the call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[tuple[Any, ...]] = []

    def play(self, group: GroupInfo, call: Call) -> None:
        self.calls.append((group.ordinal, group.ranks, call.name, call.detail, call.peer, call.source))
        if not call.in_place:
            for tensor in call.outputs:
                tensor.detach().fill_(self.number)


@contextmanager
def sitting(rank: int, world: int, ranks_per_machine: int = 1) -> Iterator[Communicator]:
    """This process is a rank of a world of which nobody else is there; calls are answered with ones."""
    before = engines()
    engine = Engine(LinkTable("job", new_life("m", 0), b"s" * 32, "127.0.0.1"), lambda *_: None)
    communicator = Communicator(engine, rank, world, ranks_per_machine, 60.0)
    communicator.player = Answers(1)
    backend.register()
    backend.install(communicator)
    try:
        dist.init_process_group(backend.NAME, store=HashStore(), rank=rank, world_size=world)
        yield communicator
    finally:
        dist.destroy_process_group()
        backend.install(None)
        engine.stop()
        wait_until(lambda: engines() <= before, "engine threads end")
