"""How long training stands still when a machine of any role is lost or moved: data x pipeline x tensor.

The 3D example runs on six machines of two ranks (two replicas, three stages of two halves) with one
standby, which knows every role.  A run each loses a first, a middle and a last stage, a run each moves them
away, as soon as the spare says that it is warm in all roles; one runs undisturbed.  All must end in one
digest.  Limits as in ``downtime.py``; with twelve ranks on few cores a step is long and its time varies,
so the figures are told in median steps too::

    python benchmarks/roles.py --json roles.json
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import PIPELINES, Options, environment, options, trainmover_run, write

MACHINES, RANKS = 6, 2
STAGES = {0: "first", 4: "middle", 5: "last"}
"""The machines that are hit and what they are."""
TRAINMOVER = str(Path(sys.executable).with_name("trainmover"))
LIMITS = {"kill": (2.0, 1.0), "move": (1.0, 0.5)}
"""Allowed downtime: so many median steps plus so many seconds."""


class Striker:
    """Listens to a run as any subscriber may, and hits a machine when the spare is warm in every role.

    Args:
        kind: ``kill`` (all processes of the machine get SIGKILL) or ``move`` (it is asked to go).
        machine: whom to hit.
        limit: seconds after which it gives up.
    """

    def __init__(self, kind: str, machine: str, limit: float) -> None:
        self.kind, self.machine, self.limit = kind, machine, limit
        self.struck = False
        self._roles, self._parked = 0, set[tuple[str, int]]()
        self._pids: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="striker")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def _watch(self) -> None:
        end = time.monotonic() + self.limit
        while not self.struck and not self._ended.wait(0.5) and time.monotonic() < end:
            # Before the run is there, this ends at once.
            tail = subprocess.Popen(
                [TRAINMOVER, "events", "tail", "--json", "roles", "standby", "machine", "rank"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            timer = threading.Timer(end - time.monotonic(), tail.kill)
            timer.start()
            assert tail.stdout is not None, "it was asked for"
            for line in tail.stdout:
                if self._warm(json.loads(line)):
                    self._strike()
                    break
            timer.cancel()
            tail.kill()
            tail.wait(10)

    def _warm(self, said: dict[str, Any]) -> bool:
        """An event: is the spare warm in all roles by it?"""
        event = said["data"]
        match said["type"]:
            case "roles.found":
                self._roles = len(event["roles"])
            case "standby.parked":
                self._parked.add((event["role"], event["slot"]))
            case "machine.joined" if event["machine"] == self.machine:
                self._pids["machine"] = event["pid"]
            case "rank.started" if event["machine"] == self.machine:
                self._pids[f"slot {event['slot']}"] = event["pid"]
        return self._roles > 0 and len(self._parked) == self._roles * RANKS

    def _strike(self) -> None:
        self.struck = True
        if self.kind == "move":
            subprocess.run([TRAINMOVER, "move", self.machine], check=True, timeout=30, capture_output=True)
            return
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)


def row_of(kind: str, machine: int, seconds: float, report: dict[str, Any]) -> dict[str, Any]:
    """What the report of one run says of its fault."""
    found = [incident for incident in report["incidents"] if incident["machine"] == f"m{machine}"]
    if len(found) != 1:
        raise SystemExit(
            f"the report has {len(found)} incidents of m{machine}, which was to be hit once ({kind}): "
            "were there too few steps for the spare to become warm?"
        )
    incident, step = found[0], report["median_step_seconds"]
    steps, more = LIMITS[kind]
    limit = steps * step + more
    return {
        "fault": kind,
        "stage": STAGES[machine],
        "median_step_seconds": step,
        "run_seconds": seconds,
        "downtime_seconds": incident["downtime_seconds"],
        "downtime_steps": incident["downtime_steps"],
        "limit_seconds": limit,
        "within_limit": incident["downtime_seconds"] <= limit,
        "phases": incident["phases"],
        "digest": report["digest"],
    }


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """The rows as a table."""
    table = Table(title="downtime by role, seconds and median steps", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("fault", "stage"):
        table.add_column(name)
    phases = list(rows[0]["phases"])
    for name in ("run", "median step", "downtime", "steps", "limit", *phases):
        table.add_column(name, justify="right")
    for row in rows:
        limit = f"{row['limit_seconds']:.2f}{'' if row['within_limit'] else ' over'}"
        took = [row["phases"].get(name) for name in phases]
        table.add_row(
            row["fault"],
            row["stage"],
            f"{row['run_seconds']:.0f}",
            f"{row['median_step_seconds']:.2f}",
            f"{row['downtime_seconds']:.2f}",
            f"{row['downtime_steps']:.1f}",
            limit,
            *("-" if seconds is None else f"{seconds:.2f}" for seconds in took),
        )
    console.print(table)


def main() -> None:
    """Run, print, write."""
    chosen: Options = options(
        __doc__.split("\n", maxsplit=1)[0], repeats=3, quick_repeats=1, steps=150, quick_steps=150
    )
    chosen = replace(chosen, machines=MACHINES)
    where, console = environment(), Console()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainmover-roles-") as base:

        def run(name: str, standbys: int) -> dict[str, Any]:
            with console.status(name):
                return trainmover_run(
                    Path(base) / name,
                    chosen,
                    standbys=standbys,
                    script=PIPELINES,
                    script_args=["--data-limit", "200000"],
                    flags=["--ranks-per-machine", str(RANKS)],
                )

        digest = run("undisturbed", 0)["digest"]
        for number in range(chosen.repeats):
            for kind in LIMITS:
                for machine, stage in STAGES.items():
                    began = time.perf_counter()
                    with Striker(kind, f"m{machine}", chosen.limit):
                        report = run(f"{kind}-{stage}-{number}", 1)
                    rows.append(row_of(kind, machine, time.perf_counter() - began, report))
    show(console, rows)
    same = all(row["digest"] == digest for row in rows)
    console.print(f"same bytes as the undisturbed run: {'yes' if same else 'NO'}")
    summary = {"same_bytes": same, "within_limits": all(row["within_limit"] for row in rows)}
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
