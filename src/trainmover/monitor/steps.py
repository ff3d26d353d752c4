"""What the ranks wrote down: the files under ``RUN_DIR/steps``, read back.

What lives here: one record per kind of line and the reader.  What never lives here: what follows
from them (``report``, ``timeline``).

A process that is killed may leave half a line; that line is skipped, and so is a kind or a field
that a newer version may have added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = re.compile(r"(?P<machine>.+)-(?P<slot>\d+)-(?P<pid>\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class StepFact:
    """One rank committed one step; times in unix seconds, memory in bytes."""

    machine: str
    slot: int
    pid: int
    step: int
    epoch: int
    rank: int
    start: float
    end: float
    seconds: float
    loss: float | None
    rss: int
    first: bool


@dataclass(frozen=True, slots=True)
class VoidFact:
    """One rank threw an attempt at a step away."""

    machine: str
    slot: int
    step: int
    epoch: int
    time: float


@dataclass(frozen=True, slots=True)
class FaultFact:
    """One rank carried a fault out."""

    machine: str
    slot: int
    spec: str
    step: int
    time: float


@dataclass(frozen=True, slots=True)
class SwitchFact:
    """One rank went over to an epoch."""

    machine: str
    slot: int
    epoch: int
    step: int
    start: float
    end: float
    copy_seconds: float
    joiner: bool


@dataclass(slots=True)
class StepFacts:
    """Everything that the ranks of a run wrote, each list by time."""

    steps: list[StepFact] = field(default_factory=list)
    voids: list[VoidFact] = field(default_factory=list)
    faults: list[FaultFact] = field(default_factory=list)
    switches: list[SwitchFact] = field(default_factory=list)


def read_steps(folder: Path) -> StepFacts:
    """Read all files of a run; an empty record when there are none."""
    facts = StepFacts()
    for path in sorted(folder.glob("*.jsonl")):
        name = FILE.fullmatch(path.name)
        if name is None:
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                _take(facts, name["machine"], int(name["slot"]), int(name["pid"]), line)
    facts.steps.sort(key=lambda fact: fact.end)
    facts.voids.sort(key=lambda fact: fact.time)
    facts.faults.sort(key=lambda fact: fact.time)
    facts.switches.sort(key=lambda fact: fact.end)
    return facts


def _take(facts: StepFacts, machine: str, slot: int, pid: int, line: str) -> None:
    try:
        row = json.loads(line)
        _READERS[row["kind"]](facts, machine, slot, pid, row)
    except (ValueError, TypeError, KeyError):
        return


def _step(facts: StepFacts, machine: str, slot: int, pid: int, row: dict[str, Any]) -> None:
    loss = row.get("loss")
    facts.steps.append(
        StepFact(
            machine=machine,
            slot=slot,
            pid=pid,
            step=int(row["step"]),
            epoch=int(row["epoch"]),
            rank=int(row["rank"]),
            start=float(row["start"]),
            end=float(row["end"]),
            seconds=float(row["seconds"]),
            loss=None if loss is None else float(loss),
            rss=int(row.get("rss", 0)),
            first=bool(row.get("first", False)),
        )
    )


def _void(facts: StepFacts, machine: str, slot: int, pid: int, row: dict[str, Any]) -> None:
    facts.voids.append(VoidFact(machine, slot, int(row["step"]), int(row["epoch"]), float(row["time"])))


def _fault(facts: StepFacts, machine: str, slot: int, pid: int, row: dict[str, Any]) -> None:
    facts.faults.append(FaultFact(machine, slot, str(row["spec"]), int(row["step"]), float(row["time"])))


def _switch(facts: StepFacts, machine: str, slot: int, pid: int, row: dict[str, Any]) -> None:
    facts.switches.append(
        SwitchFact(
            machine,
            slot,
            int(row["epoch"]),
            int(row["step"]),
            float(row["start"]),
            float(row["end"]),
            float(row.get("copy_seconds", 0.0)),
            bool(row.get("joiner", False)),
        )
    )


_READERS: dict[str, Callable[[StepFacts, str, int, int, dict[str, Any]], None]] = {
    "step": _step,
    "void": _void,
    "fault": _fault,
    "switch": _switch,
}
