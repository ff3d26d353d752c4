"""What warming up a standby costs, what it saves, and whether training notices.

One run of the example with ``torch.compile``: a machine is killed once the standby is parked, and the
joiner's first real step is held against the median step and against a cold one, which is the first step of
the ranks that the job started with.  The standby warms up beside training; the stayers' median step of that
time is held against the one afterwards.  Medians over the runs::

    python benchmarks/warmup.py --json warmup.json

The parts of a warm-up are what the standby's own ranks tell (``standby.parked``).  An interpreter that only
imports torch is measured beside them, because that is the part that nobody can do anything about.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import Options, environment, options, trainmover_run, write
from trainmover.events.catalogue import StandbyParked, StandbyWarm, SwitchCommitted
from trainmover.events.log import read_log
from trainmover.monitor.steps import read_steps

LIMIT = 1.2
"""Most that the joiner's first step may take, in median steps."""


def imports() -> float:
    """Seconds that a fresh interpreter takes to import torch and this package."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, trainmover"], check=True, timeout=120)
    return time.perf_counter() - started


def row_of(number: int, folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    """The figures of one run, from its log and what its ranks wrote down."""
    log = [record.envelope for record in read_log(folder / "run" / "events.tmlog")]
    warm = [item.time for item in log if isinstance(item.event, StandbyWarm)]
    parked = [item for item in log if isinstance(item.event, StandbyParked)]
    switched = [item.time for item in log if isinstance(item.event, SwitchCommitted) and item.event.joiners]
    if not (warm and parked and switched):
        raise SystemExit(f"run {number}: no standby was warmed and used; see {folder}")
    from_, to = warm[0], parked[0].time
    steps = read_steps(folder / "run" / "steps").steps
    usual = [fact for fact in steps if not fact.first and fact.rank == 0 and fact.end < switched[0]]
    beside = [fact.seconds for fact in usual if from_ <= fact.start and fact.end <= to]
    alone = [fact.seconds for fact in usual if fact.start > to]
    cold = [fact.seconds for fact in steps if fact.first and fact.step == 0]
    joiner = [fact.seconds for fact in steps if fact.first and fact.step > 0]
    if not (beside and alone and joiner):
        raise SystemExit(f"run {number}: too few steps beside or after the warm-up; say --steps")
    typical = median(alone)
    event = parked[0].event
    assert isinstance(event, StandbyParked)
    return {
        "run": number,
        "median_step_seconds": typical,
        "cold_first_step_seconds": max(cold),
        "joiner_first_step_seconds": max(joiner),
        "joiner_first_step_ratio": max(joiner) / typical,
        "cold_first_step_ratio": max(cold) / typical,
        "step_beside_warming_seconds": median(beside),
        "step_beside_warming_ratio": median(beside) / typical,
        "warm_seconds": to - from_,
        "parts": event.seconds,
        "prepare_seconds": report["incidents"][0]["phases"]["prepare"],
        "imports_seconds": imports(),
        "digest": report["digest"],
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the runs; all must have ended in the same bytes."""
    names = [name for name, value in rows[0].items() if isinstance(value, float)]
    summary: dict[str, Any] = {name: median(row[name] for row in rows) for name in names}
    summary["parts"] = {part: median(row["parts"][part] for row in rows) for part in rows[0]["parts"]}
    summary["within_limit"] = summary["joiner_first_step_ratio"] <= LIMIT
    summary["one_digest"] = len({row["digest"] for row in rows}) == 1
    return summary


def lines(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """What is printed: a figure and its name."""
    parts = summary["parts"]
    yield "an interpreter that imports torch, alone", f"{summary['imports_seconds']:.2f} s"
    for part, seconds in parts.items():
        yield f"standby: {part}", f"{seconds:.2f} s"
    yield "standby: all of it, beside training", f"{summary['warm_seconds']:.2f} s"
    yield "connections, when it is needed", f"{summary['prepare_seconds']:.3f} s"
    yield "median step", f"{summary['median_step_seconds']:.3f} s"
    cold, warm = summary["cold_first_step_ratio"], summary["joiner_first_step_ratio"]
    yield "first step, cold", f"{summary['cold_first_step_seconds']:.3f} s, {cold:.1f} median steps"
    verdict = "" if summary["within_limit"] else ", missed"
    yield (
        "first step of the joiner",
        f"{summary['joiner_first_step_seconds']:.3f} s, {warm:.2f} median steps (at most {LIMIT:g}{verdict})",
    )
    beside = summary["step_beside_warming_ratio"]
    yield "median step while a standby warms", f"{beside:.2f} median steps"


def main() -> None:
    """Measure, print, write."""
    chosen: Options = options(
        __doc__.split("\n", maxsplit=1)[0], repeats=3, quick_repeats=1, steps=160, quick_steps=120
    )
    where, console = environment(), Console()
    rows = []
    with tempfile.TemporaryDirectory() as base:
        for number in range(chosen.repeats):
            folder = Path(base) / str(number)
            fault = f"kill:machine=1,step={chosen.steps * 5 // 6}"
            with console.status(f"run {number + 1} of {chosen.repeats}"):
                report = trainmover_run(folder, chosen, standbys=1, faults=[fault], script_args=["--compile"])
            rows.append(row_of(number, folder, report))
    summary = summarize(rows)
    table = Table("part", "took", box=SIMPLE_HEAD, title="warming a standby, with torch.compile")
    for column in table.columns:
        column.no_wrap = True
    for line in lines(summary):
        table.add_row(*line)
    console.print(table)
    if not summary["one_digest"]:
        raise SystemExit("the runs ended in different bytes")
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
