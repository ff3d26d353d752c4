"""Every operation of a process group as a row of a table: how a rank starts it, what it must bring.

Tests go through this table where something must hold for all operations.  The calls are torch's own
methods on the group.  Numbers are small integers, so every sum is exact.  Data goes from rank 1 to
rank 0 in each of them (in a barrier too), so a test can tamper with what rank 0 hears from rank 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.ccl.worlds import GROUP, Member
from trainmover.ccl.group import TrainMoverGroup

SMALL, LARGE = 5, 700_001
"""Elements of a call that is one frame, and of one that is pieces and more than a socket holds."""

SOURCE, HEARER = 1, 0
"""In every operation the hearer waits for bytes from the source."""


@dataclass
class Started:
    """An operation under way on one rank: what completes, and whether the outputs are right then."""

    works: list[dist.Work]
    right: Callable[[], bool]

    @property
    def done(self) -> bool:
        """All of it has completed."""
        return all(work.is_completed() for work in self.works)

    def wait(self) -> None:
        """Block until all of it has completed, as a script does."""
        for work in self.works:
            work.wait()


Start = Callable[[TrainMoverGroup, int, int, int], Started]
"""Starts an operation on ``(group, own rank, size of the group, number of elements)``."""


@dataclass(frozen=True)
class Operation:
    """One row."""

    name: str
    count: int
    begin: Start

    def start(self, member: Member) -> Started:
        """Call it on one rank; returns at once."""
        ranks = member.comm.groups[GROUP].ranks
        group = TrainMoverGroup(member.comm, GROUP, ranks)
        return self.begin(group, ranks.index(member.rank), len(ranks), self.count)

    def __str__(self) -> str:
        return self.name


def value(rank: int, count: int) -> torch.Tensor:
    """What a rank brings."""
    return torch.full((count,), float(rank + 1))


def is_(tensor: torch.Tensor, number: float) -> bool:
    """Whether all elements are this number."""
    return bool((tensor == number).all())


def total(size: int) -> float:
    """The sum over the ranks."""
    return size * (size + 1) / 2


def options(kind: Any, root: int | None = None) -> Any:
    """Options of a c10d call."""
    made = kind()
    if root is not None:
        made.rootRank = root
    return made


def all_reduce(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    tensor = value(rank, count)
    return Started([group.allreduce([tensor])], lambda: is_(tensor, total(size)))


def reduce(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    tensor, root = value(rank, count), HEARER
    work = group.reduce([tensor], options(dist.ReduceOptions, root))
    return Started([work], lambda: is_(tensor, total(size)) if rank == root else True)


def broadcast(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    tensor = value(rank, count)
    work = group.broadcast([tensor], options(dist.BroadcastOptions, SOURCE))
    return Started([work], lambda: is_(tensor, SOURCE + 1))


def all_gather(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    parts = [torch.zeros(count) for _ in range(size)]
    work = group.allgather([parts], [value(rank, count)])
    return Started([work], lambda: all(is_(part, i + 1) for i, part in enumerate(parts)))


def reduce_scatter(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    output = torch.zeros(count)
    parts = [value(rank, count) * (i + 1) for i in range(size)]
    work = group.reduce_scatter([output], [parts])
    return Started([work], lambda: is_(output, total(size) * (rank + 1)))


def all_to_all(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    outputs = [torch.zeros(count) for _ in range(size)]
    work = group.alltoall(outputs, [value(10 * rank + i, count) for i in range(size)])
    return Started([work], lambda: all(is_(out, 10 * i + rank + 1) for i, out in enumerate(outputs)))


def gather(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    outputs = [torch.zeros(count) for _ in range(size)] if rank == HEARER else []
    work = group.gather(
        [outputs] if outputs else [], [value(rank, count)], options(dist.GatherOptions, HEARER)
    )
    return Started([work], lambda: all(is_(out, i + 1) for i, out in enumerate(outputs)))


def scatter(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    output = torch.zeros(count)
    inputs = [[value(i, count) for i in range(size)]] if rank == SOURCE else []
    work = group.scatter([output], inputs, options(dist.ScatterOptions, SOURCE))
    return Started([work], lambda: is_(output, rank + 1))


def send_and_receive(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    before, after = (rank - 1) % size, (rank + 1) % size
    got = torch.zeros(count)
    works = [group.send([value(rank, count)], before, 7), group.recv([got], after, 7)]
    return Started(works, lambda: is_(got, after + 1))


def barrier(group: TrainMoverGroup, rank: int, size: int, count: int) -> Started:
    return Started([group.barrier()], lambda: True)


OPERATIONS: tuple[Operation, ...] = (
    Operation("all_reduce", SMALL, all_reduce),
    Operation("all_reduce large", LARGE, all_reduce),
    Operation("reduce", SMALL, reduce),
    Operation("reduce large", LARGE, reduce),
    Operation("broadcast", SMALL, broadcast),
    Operation("broadcast large", LARGE, broadcast),
    Operation("all_gather", SMALL, all_gather),
    Operation("all_gather large", LARGE, all_gather),
    Operation("reduce_scatter", SMALL, reduce_scatter),
    Operation("reduce_scatter large", LARGE, reduce_scatter),
    Operation("all_to_all", SMALL, all_to_all),
    Operation("all_to_all large", LARGE, all_to_all),
    Operation("gather", SMALL, gather),
    Operation("scatter", SMALL, scatter),
    Operation("send and receive", SMALL, send_and_receive),
    Operation("send and receive large", LARGE, send_and_receive),
    Operation("barrier", 1, barrier),
)
