"""How long training stands still when a machine of any role is lost or moved: data x pipeline x tensor.

The 3D example runs on six machines of two ranks (two replicas, three stages of two halves) with one
standby, which knows every role.  One run loses a last, a first and a middle stage, one moves them away, far
enough apart that a warm spare waits each time; one runs undisturbed.  All must end in one digest.  Limits
as in ``downtime.py``; with twelve ranks on few cores a step is long and its time varies, so the
figures are told in median steps too::

    python benchmarks/roles.py --json roles.json
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import PIPELINES, Options, environment, options, trainmover_run, write

MACHINES, RANKS = 6, 2
STAGES = {5: "last", 0: "first", 4: "middle"}
"""The machines that are hit, in this order, and what they are."""
LIMITS = {"kill": (2.0, 1.0), "move": (1.0, 0.5)}
"""Allowed downtime: so many median steps plus so many seconds."""


def faults(kind: str, steps: int) -> list[str]:
    """The fault specs of one run, spread over its steps."""
    gap = steps // (len(STAGES) + 1)
    return [f"{kind}:machine={machine},step={gap * number}" for number, machine in enumerate(STAGES, 1)]


def rows_of(kind: str, report: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per fault, from the report of one run."""
    by_machine = {incident["machine"]: incident for incident in report["incidents"]}
    rows = []
    for machine, stage in STAGES.items():
        incident, step = by_machine.get(f"m{machine}"), report["median_step_seconds"]
        if incident is None:
            raise SystemExit(f"the report has no incident of m{machine} ({kind})")
        steps, seconds = LIMITS[kind]
        limit = steps * step + seconds
        rows.append(
            {
                "fault": kind,
                "stage": stage,
                "median_step_seconds": step,
                "downtime_seconds": incident["downtime_seconds"],
                "downtime_steps": incident["downtime_steps"],
                "limit_seconds": limit,
                "within_limit": incident["downtime_seconds"] <= limit,
                "phases": incident["phases"],
                "digest": report["digest"],
            }
        )
    return rows


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """The rows as a table."""
    table = Table(title="downtime by role", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("fault", "stage"):
        table.add_column(name)
    phases = list(rows[0]["phases"])
    for name in ("downtime", "steps", "limit", *phases):
        table.add_column(name, justify="right")
    for row in rows:
        limit = f"{row['limit_seconds']:.2f}{'' if row['within_limit'] else ' over'}"
        took = [row["phases"].get(name) for name in phases]
        table.add_row(
            row["fault"],
            row["stage"],
            f"{row['downtime_seconds']:.2f}",
            f"{row['downtime_steps']:.1f}",
            limit,
            *("-" if seconds is None else f"{seconds:.2f}" for seconds in took),
        )
    console.print(table)


def main() -> None:
    """Run, print, write."""
    chosen: Options = options(
        __doc__.split("\n", maxsplit=1)[0], repeats=1, quick_repeats=1, steps=240, quick_steps=200
    )
    chosen = replace(chosen, machines=MACHINES)
    where, console = environment(), Console()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainmover-roles-") as base:

        def run(name: str, specs: list[str]) -> dict[str, Any]:
            with console.status(name):
                return trainmover_run(
                    Path(base) / name,
                    chosen,
                    standbys=1 if specs else 0,
                    faults=specs,
                    script=PIPELINES,
                    script_args=["--data-limit", "200000"],
                    flags=["--ranks-per-machine", str(RANKS)],
                )

        digest = run("undisturbed", [])["digest"]
        for number in range(chosen.repeats):
            for kind in LIMITS:
                rows += rows_of(kind, run(f"{kind}-{number}", faults(kind, chosen.steps)))
    show(console, rows)
    same = all(row["digest"] == digest for row in rows)
    console.print(f"same bytes as the undisturbed run: {'yes' if same else 'NO'}")
    summary = {"same_bytes": same, "within_limits": all(row["within_limit"] for row in rows)}
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
