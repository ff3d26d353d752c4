"""How long training stands still when a machine is killed, moved away or frozen.

One run of the example meets all three, far enough apart that a warm spare waits each time: machine
1 is killed, machine 2 is moved away as planned maintenance, machine 0 is frozen (SIGSTOP).  The
figures are those of the run's report.json: downtime is the time from the last step committed
before the fault to the first committed after it.  All runs use one seed, so all must end in one
digest.  Medians over five runs (``--quick``: one run)::

    python benchmarks/downtime.py --json downtime.json
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import Options, environment, options, trainmover_run, write

KINDS = {"kill": 1, "move": 2, "stop": 0}
"""Fault kinds in the order in which they hit, each with the machine it hits."""

LIMITS: dict[str, tuple[float, float]] = {"kill": (2.0, 1.0), "move": (1.0, 0.5), "stop": (2.0, 3.0)}
"""Allowed downtime: so many median steps plus so many seconds."""

PHASES = ("detect", "plan", "prepare", "copy", "switch")


def faults(steps: int) -> dict[str, str]:
    """The fault specs of one run, spread over its steps."""
    gap = steps // (len(KINDS) + 1)
    return {
        kind: f"{kind}:machine={machine},step={gap * (number + 1)}"
        for number, (kind, machine) in enumerate(KINDS.items())
    }


def rows_of(number: int, report: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per fault, from the report of one run."""
    by_machine = {incident["machine"]: incident for incident in report["incidents"]}
    rows = []
    for kind, machine in KINDS.items():
        incident = by_machine.get(f"m{machine}")
        if incident is None:
            raise SystemExit(f"run {number}: the report has no incident of m{machine} ({kind})")
        step = report["median_step_seconds"]
        steps, seconds = LIMITS[kind]
        rows.append(
            {
                "run": number,
                "fault": kind,
                "step": incident["step"],
                "median_step_seconds": step,
                "downtime_seconds": incident["downtime_seconds"],
                "downtime_steps": incident["downtime_steps"],
                "limit_seconds": steps * step + seconds,
                "steps_lost": incident["steps_lost"],
                "phases": incident["phases"],
                "joiner_first_step_ratio": report["joiner_first_step_ratio"],
                "stayer_peak_memory_growth": report["stayer_peak_memory_growth"],
                "digest": report["digest"],
            }
        )
    return rows


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians per kind of fault, and whether all runs ended in the same bytes."""
    summary: dict[str, Any] = {}
    for kind in KINDS:
        mine = [row for row in rows if row["fault"] == kind]
        downtime, limit = (
            median(row[name] for row in mine) for name in ("downtime_seconds", "limit_seconds")
        )
        summary[kind] = {
            "downtime_seconds": downtime,
            "downtime_steps": median(row["downtime_steps"] for row in mine),
            "limit_seconds": limit,
            "within_limit": downtime <= limit,
            "steps_lost": max(row["steps_lost"] for row in mine),
            "phases": {name: _median([row["phases"].get(name) for row in mine]) for name in PHASES},
        }
    summary["median_step_seconds"] = median(row["median_step_seconds"] for row in rows)
    summary["joiner_first_step_ratio"] = _median([row["joiner_first_step_ratio"] for row in rows])
    summary["stayer_peak_memory_growth"] = _median([row["stayer_peak_memory_growth"] for row in rows])
    summary["same_bytes"] = len({row["digest"] for row in rows}) == 1
    return summary


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def show(console: Console, summary: dict[str, Any], chosen: Options) -> None:
    """The summary as a table."""
    title = f"downtime, {chosen.machines} machines, median of {chosen.repeats} run(s)"
    caption = f"median step {summary['median_step_seconds']:.3f} s; times in seconds"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("fault")
    for name in ("downtime", "steps", "limit", *PHASES, "lost"):
        table.add_column(name, justify="right")
    for kind in KINDS:
        item = summary[kind]
        mark = "" if item["within_limit"] else " over"
        phases = [_text(item["phases"][name]) for name in PHASES]
        table.add_row(
            kind,
            f"{item['downtime_seconds']:.2f}",
            f"{item['downtime_steps']:.1f}",
            f"{item['limit_seconds']:.2f}{mark}",
            *phases,
            str(item["steps_lost"]),
        )
    console.print(table)
    console.print(
        f"joiner's first step: {_text(summary['joiner_first_step_ratio'])} medians (limit 1.30)\n"
        f"stayers' peak memory: {_text(summary['stayer_peak_memory_growth'], '+.2%')} (limit +2%)\n"
        f"same bytes in all runs: {'yes' if summary['same_bytes'] else 'NO'}"
    )


def _text(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def main() -> None:
    """Run, print, write."""
    chosen = options(__doc__ or "", repeats=5, quick_repeats=1, steps=160, quick_steps=112)
    where = environment()
    console = Console()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainmover-downtime-") as folder:
        for number in range(chosen.repeats):
            with console.status(f"run {number + 1} of {chosen.repeats}"):
                specs = faults(chosen.steps).values()
                report = trainmover_run(Path(folder) / str(number), chosen, standbys=1, faults=specs)
            rows += rows_of(number, report)
    summary = summarize(rows)
    show(console, summary, chosen)
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
