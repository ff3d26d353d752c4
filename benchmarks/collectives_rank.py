"""One rank of ``benchmarks/collectives.py``: the same calls through Gloo and through TrainMover, in turn.

Both back ends have a group over the same ranks in the same processes and work on the same tensors; they
take turns within each repetition, so that a change of the machine's mood hits both.  A turn is several calls
right after one another, as such benchmarks do, behind one that is not measured: it meets what the other
side has left in the caches.  (``--calls 1`` measures that one instead.)  Of a turn the slowest rank's time
counts, and the ranks' mean of CPU time (all threads of the process).  Rank 0 writes one row per case.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import trainmover

SIDES = ("gloo", "trainmover")

TURN_SECONDS = 0.01
"""About so long a turn takes, where a call is shorter."""

MOST_CALLS = 50
"""Of a turn."""

Action = Callable[[], None]


class Tensors:
    """What one case works on: ``size`` bytes as one tensor, and this rank's part of it."""

    def __init__(self, size: int) -> None:
        world = dist.get_world_size()
        count = max(world, size // 4 // world * world)
        self.whole, self.part, self.other = (
            torch.zeros(count),
            torch.zeros(count // world),
            torch.zeros(count),
        )

    def fill(self) -> None:
        """Small whole numbers that differ from rank to rank: every sum is exact."""
        for start, tensor in enumerate((self.whole, self.part, self.other)):
            torch.arange(tensor.numel(), out=tensor).remainder_(7 + start).add_(dist.get_rank())

    def copies(self) -> list[torch.Tensor]:
        return [self.whole.clone(), self.part.clone(), self.other.clone()]

    def zero(self) -> None:
        """So that sums over and over again stay finite."""
        for tensor in (self.whole, self.part, self.other):
            tensor.zero_()


def action_of(name: str, on: Tensors, group: Any) -> Action:
    """The operation as a user calls it."""
    rank, whole, part = dist.get_rank(), on.whole, on.part
    if name == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if name == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    if name == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group)
    if name == "all_to_all":
        return lambda: dist.all_to_all_single(on.other, whole, group=group)

    def there_and_back() -> None:
        if rank % 2 == 0:
            dist.send(whole, rank + 1, group=group)
            dist.recv(whole, rank + 1, group=group)
        else:
            dist.recv(whole, rank - 1, group=group)
            dist.send(whole, rank - 1, group=group)

    return there_and_back


def check(name: str, on: Tensors, actions: dict[str, Action]) -> None:
    """Both sides must bring the same; this is also their first call."""
    brought = []
    for side in SIDES:
        on.fill()
        actions[side]()
        brought.append(on.copies())
    if not all(map(torch.equal, *brought)):
        raise SystemExit(f"{name} of {on.whole.nbytes} bytes: the two sides brought different results")
    on.zero()


def measure(action: Action, calls: int, gloo: Any) -> tuple[float, float]:
    """Wall and CPU seconds of one call at this rank; a single one is measured with nothing before it."""
    dist.barrier(group=gloo)
    if calls > 1:
        action()
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - began) / calls, (time.process_time() - cpu) / calls


def slowest(seconds: float, gloo: Any) -> float:
    """The same number on all ranks: the largest."""
    found = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=gloo)
    return float(found)


def case(name: str, size: int, groups: dict[str, Any], budget: float, calls: int | None) -> dict[str, Any]:
    """Measure one operation at one size on both sides, so many calls a turn (None: as it has time for)."""
    gloo = groups["gloo"]
    on = Tensors(size)
    actions = {side: action_of(name, on, groups[side]) for side in SIDES}
    check(name, on, actions)
    if calls is None:
        call = slowest(max(measure(actions[side], 3, gloo)[0] for side in SIDES), gloo)
        calls = int(min(MOST_CALLS, max(2, TURN_SECONDS / call)))
    trial = slowest(sum(measure(actions[side], calls, gloo)[0] for side in SIDES), gloo)
    repeats = int(min(40, max(5, budget / (trial * (calls + 1)))))
    found = torch.zeros(repeats, len(SIDES), 2, dtype=torch.float64)
    for number in range(repeats):
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            found[number, at] = torch.tensor(measure(actions[SIDES[at]], calls, gloo), dtype=torch.float64)
    everybody = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, found, group=gloo)
    together = torch.stack(everybody)
    ways = 2 if name == "send/recv" else 1
    row: dict[str, Any] = {"operation": name, "bytes": size, "repeats": repeats, "calls": calls}
    for at, side in enumerate(SIDES):
        row[f"{side}_seconds"] = median(together[:, :, at, 0].amax(0).tolist()) / ways
        row[f"{side}_cpu_seconds"] = median(together[:, :, at, 1].mean(0).tolist()) / ways
    return row


def main() -> None:
    """Read the plan, connect, measure, write."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    trainmover.register_backend()
    dist.init_process_group(
        "trainmover",
        init_method=f"file://{plan['store']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=120),
    )
    groups = {"trainmover": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    rows = []
    for name in plan["operations"]:
        for size in plan["sizes"]:
            rows.append(case(name, size, groups, plan["budget"], plan["calls"]))
            if dist.get_rank() == 0:
                print(json.dumps(rows[-1]), flush=True)
    dist.barrier(group=groups["gloo"])
    dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        Path(plan["result"]).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
