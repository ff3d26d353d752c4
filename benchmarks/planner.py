"""How long the planner takes to decide on the change of one machine, from 64 to 131,072 ranks.

A planner core is fed the events of a job of that size until it trains: machines of 8 ranks, in
tensor groups of 8 (one machine), pipeline groups of 16 (in the smallest jobs less) and data groups
of the rest, and the default group of all ranks.  Then a machine fails, a spare takes its seat, and
the time is taken that ``PlannerCore.handle`` needs from ``standby.assigned``, which completes the
change, to the plan (``plan.ready``).  Each repetition is another seat; the plan is committed before
the next one.  Feeding and committing are not in that time.

Beside it stand its part in ``topology.delta``, and what does grow with the job, because events name
all machines by position: making the message of the plan (``encode``), and what the plan would be if
it carried the endpoint of every rank (``whole``), as it does in jobs of up to 4,096 ranks::

    python benchmarks/planner.py --json planner.json
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgpack
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import environment, write
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services.core import Output, Say
from trainmover.services.planner import PlannerCore
from trainmover.topology import Grid, Groups, Layout, Row, delta

SIZES = (64, 256, 1024, 4096, 16384, 65536, 131072)
QUICK_SIZES = (64, 1024, 16384, 131072)
PER_MACHINE = 8
LIMIT = 0.1
"""Seconds that a decision may take at any size."""

RATIO = 2.0
"""Most that the largest job may take in terms of one of 1,024 ranks."""


def dims_of(ranks: int) -> tuple[tuple[str, int], ...]:
    """Pipeline, data and tensor dimensions of a job, outermost first."""
    pipeline = min(16, ranks // PER_MACHINE // 4)
    return ("pipeline", pipeline), ("data", ranks // PER_MACHINE // pipeline), ("tensor", PER_MACHINE)


AXES = (("pipeline",), ("data",), ("tensor",), ("pipeline", "data", "tensor"))


@dataclass
class Job:
    """A planner and what it hears."""

    ranks: int
    core: PlannerCore
    numbers: itertools.count[int]
    seconds: float = 0.0

    @property
    def machines(self) -> int:
        return self.ranks // PER_MACHINE

    def hear(self, event: say.Event) -> list[Output]:
        """Feed an event and take the time of that."""
        envelope = Envelope(id=f"e{next(self.numbers)}", source="bench", time=1.0, job="bench", event=event)
        began = time.perf_counter()
        outputs = self.core.handle(envelope, 1.0)
        self.seconds = time.perf_counter() - began
        return outputs

    def join(self, name: str, mode: say.RankMode) -> None:
        """A machine's ranks come up."""
        for slot in range(PER_MACHINE):
            where = say.Endpoint(host="10.0.0.1", port=20000 + slot, life=f"{name}-{slot}-0123456789abcdef")
            up = say.RankStarted(
                machine=name,
                incarnation="a",
                slot=slot,
                mode=mode,
                generation=1,
                pid=1,
                endpoint=where,
                role="all" if mode == "sandbox" else "",
            )
            plan = plan_in(self.hear(up))
            if plan is not None:
                self.commit(plan)

    def commit(self, plan: say.PlanReady) -> None:
        """The epoch of a plan comes about."""
        self.hear(
            say.SwitchCommitted(
                epoch=plan.epoch,
                kind=plan.kind,
                incidents=plan.incidents,
                machines=plan.machines,
                leavers=plan.leavers,
                joiners=plan.joiners,
                step=1,
                generation=1,
            )
        )


def plan_in(outputs: list[Output]) -> say.PlanReady | None:
    """The plan that a core said, if it did."""
    return next((o.event for o in outputs if isinstance(o, Say) and isinstance(o.event, say.PlanReady)), None)


def here(name: str) -> say.MachineJoined:
    """A machine joins."""
    return say.MachineJoined(machine=name, incarnation="a", host="10.0.0.1", slots=PER_MACHINE, pid=1)


def described(rank: int, machine: str, groups: Groups, ranks: int) -> say.RankDescribed:
    """A rank says which groups it is in; those along the data dimension have the same state."""
    (_, _), (_, data), (_, tensor) = dims_of(ranks)
    rows = [
        say.GroupRow(name=name, first=members.first, stride=members.stride, count=members.size)
        for name, members in groups.of(rank)
        if isinstance(members, Row)
    ]
    return say.RankDescribed(
        machine=machine,
        incarnation="a",
        slot=rank % PER_MACHINE,
        rank=rank,
        generation=1,
        signature=f"{rank % PER_MACHINE}",
        state=f"{rank // (data * tensor)}.{rank % tensor}",
        groups=tuple(rows),
    )


def training(ranks: int) -> Job:
    """A job of this size that has committed its first step and has a recording."""
    job = Job(ranks, PlannerCore(), itertools.count())
    names = [f"node{seat:05d}" for seat in range(job.machines)]
    job.hear(
        say.JobSubmitted(
            script="train.py",
            cwd="/",
            python="python",
            machines=job.machines,
            ranks_per_machine=PER_MACHINE,
            run_dir="/run",
        )
    )
    for name in names:
        job.hear(here(name))
    for name in names:
        job.join(name, "live")
    job.hear(say.TrainingStarted(generation=1, epoch=1, step=1, groups={}))
    groups = Groups(grids=[Grid(dims_of(ranks), AXES)])
    for rank in range(ranks):
        job.hear(described(rank, names[rank // PER_MACHINE], groups, ranks))
    seats = (say.SeatRow(first=0, count=job.machines),)
    job.hear(
        say.RolesFound(generation=1, roles=(say.MachineRole(name="all", seats=seats, representative=1),))
    )
    for slot in range(PER_MACHINE):
        job.hear(say.RecordingReady(machine=names[1], slot=slot, generation=1, path="/r", steps=2, bytes=1))
    return job


def decide(job: Job, number: int, seat: int) -> tuple[say.PlanReady, float]:
    """A machine fails and is replaced: the plan, and the seconds that the decision took."""
    leaver, joiner = job.core.roster.members[seat], f"spare{number:04d}"
    job.hear(here(joiner))
    job.join(joiner, "sandbox")
    job.hear(say.MachineFailed(machine=leaver, incarnation="a", reason="killed"))
    plan = plan_in(
        job.hear(
            say.StandbyAssigned(
                incident=f"inc-{number}",
                kind="failure",
                leaver=leaver,
                joiner=joiner,
                joiner_incarnation="a",
                generation=1,
            )
        )
    )
    if plan is None:
        raise SystemExit(f"no plan for seat {seat} of {job.ranks} ranks")
    return plan, job.seconds


def alone(plan: say.PlanReady, before: tuple[str, ...], groups: Groups) -> float:
    """Seconds of the plan's delta by itself."""
    old = Layout(plan.base_epoch, before, PER_MACHINE)
    new = old.replaced(plan.epoch, dict(zip(plan.leavers, plan.joiners, strict=True)))
    seats = [old.positions[leaver] for leaver in plan.leavers]
    began = time.perf_counter()
    change = delta(old, new, groups, seats=seats)
    seconds = time.perf_counter() - began
    if (len(change.added), change.total) != (len(plan.links_added), plan.links_total):
        raise SystemExit(f"the plan of epoch {plan.epoch} does not have the links of its delta")
    return seconds


def message(plan: say.PlanReady) -> tuple[float, int]:
    """Seconds and bytes of making the body of the plan's message."""
    began = time.perf_counter()
    body = msgpack.packb(plan.model_dump(mode="python"))
    return time.perf_counter() - began, len(body)


def measure(ranks: int, repeats: int) -> dict[str, Any]:
    """One row: medians over changes of seats spread over the job."""
    began = time.perf_counter()
    job = training(ranks)
    start = time.perf_counter() - began
    groups = Groups(grids=[Grid(dims_of(ranks), AXES)])
    groups.links_total(ranks, PER_MACHINE)
    gc.collect()  # what the start left behind is not the decisions' to pay for
    decisions, deltas, messages, wholes = [], [], [], []
    for number in range(repeats):
        before = job.core.roster.members
        seat = number * job.machines // repeats
        plan, seconds = decide(job, number, seat)
        decisions.append(seconds)
        deltas.append(alone(plan, before, groups))
        messages.append(message(plan))
        if number == 0:
            endpoints = (plan.endpoints[0],) * ranks
            wholes.append(message(plan.model_copy(update={"endpoints": endpoints, "endpoint_ranks": ()})))
        job.commit(plan)
    return {
        "ranks": ranks,
        "machines": job.machines,
        "groups": len(groups),
        "seconds": median(decisions),
        "slowest_seconds": max(decisions),
        "delta_seconds": median(deltas),
        "links_changed": len(plan.links_added),
        "links_total": plan.links_total,
        "endpoints": len(plan.endpoints),
        "encode_seconds": median(seconds for seconds, _ in messages),
        "message_bytes": messages[0][1],
        "whole_encode_seconds": wholes[0][0],
        "whole_message_bytes": wholes[0][1],
        "start_seconds": start,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that are held against a limit."""
    by_ranks = {row["ranks"]: row for row in rows}
    small, large = by_ranks[1024], by_ranks[131072]
    ratio = large["seconds"] / small["seconds"]
    delta_ratio = large["delta_seconds"] / small["delta_seconds"]
    return {
        "seconds_1024": small["seconds"],
        "seconds_131072": large["seconds"],
        "ratio": ratio,
        "delta_seconds_1024": small["delta_seconds"],
        "delta_seconds_131072": large["delta_seconds"],
        "delta_ratio": delta_ratio,
        "limit_seconds": LIMIT,
        "limit_ratio": RATIO,
        "within_limit": large["seconds"] <= LIMIT and max(ratio, delta_ratio) <= RATIO,
    }


DECISION: dict[str, Callable[[dict[str, Any]], str]] = {
    "decision": lambda row: f"{row['seconds'] * 1000:.2f} ms",
    "slowest": lambda row: f"{row['slowest_seconds'] * 1000:.2f} ms",
    "of it delta": lambda row: f"{row['delta_seconds'] * 1000:.2f} ms",
    "links": lambda row: f"{row['links_changed']} of {row['links_total']:,}",
    "groups": lambda row: f"{row['groups']:,}",
}
LINEAR: dict[str, Callable[[dict[str, Any]], str]] = {
    "plan": lambda row: f"{row['message_bytes'] / 1024:,.0f} KiB",
    "made in": lambda row: f"{row['encode_seconds'] * 1000:.2f} ms",
    "all endpoints": lambda row: f"{row['whole_message_bytes'] / 1024:,.0f} KiB",
    "then made in": lambda row: f"{row['whole_encode_seconds'] * 1000:.1f} ms",
    "start": lambda row: f"{row['start_seconds']:.2f} s",
}


def picture(
    title: str, rows: list[dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str]]
) -> Table:
    """Rows as a table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("ranks", *columns):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(f"{row['ranks']:,}", *(show(row) for show in columns.values()))
    return table


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer sizes and repetitions")
    add("--json", type=Path, default=None, metavar="FILE", help="write rows, summary and environment here")
    add("--repeats", type=int, default=None, help="changes per size; default 31, quick 9")
    chosen = parser.parse_args()
    repeats = chosen.repeats or (9 if chosen.quick else 31)
    where = environment()
    rows = [measure(ranks, repeats) for ranks in (QUICK_SIZES if chosen.quick else SIZES)]
    summary = summarize(rows)

    console = Console()
    console.print(picture(f"one of the job's machines changes ({repeats} changes)", rows, DECISION))
    console.print(picture("what grows with the job: the plan's message, and the start", rows, LINEAR))
    mark = "within its limits" if summary["within_limit"] else "over a limit"
    console.print(
        f"131,072 ranks: {summary['seconds_131072'] * 1000:.2f} ms (limit {LIMIT * 1000:.0f} ms), "
        f"{summary['ratio']:.2f} times that of 1,024 (limit {RATIO:g}): {mark}"
    )
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
