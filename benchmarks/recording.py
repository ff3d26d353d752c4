"""What recording costs the steps that are recorded, and those after.

A run records its first 16 steps (two, if nobody says otherwise) for the standbys that will warm up with
them.  Their median is held against the median of the steps that follow in the same run, the very first
steps left out, which are slow for reasons of their own.  The step in which what was recorded is
written down counts as one that follows.  Medians over the runs::

    python benchmarks/recording.py --json recording.json
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks.common import EXAMPLE, PIPELINES, Options, environment, options, trainmover_run, write
from trainmover.monitor.steps import read_steps

RECORDED = 16
"""Steps that are recorded: as many as can be asked for, so that there is a median."""
SLOW = 3
"""First steps that are left out: allocators, buckets and caches settle."""
LIMIT = 1.1
"""Most that a recorded step may take, in median steps."""
SCRIPTS: dict[str, tuple[Path, list[str], int, int]] = {
    "data parallel": (EXAMPLE, [], 3, 1),
    "data x pipeline x tensor": (PIPELINES, ["--data-limit", "200000"], 6, 2),
}
"""Script, its arguments, machines and ranks of each."""


def row_of(name: str, folder: Path) -> dict[str, Any]:
    """The figures of one run, from what rank 0 wrote down."""
    steps = [fact for fact in read_steps(folder / "run" / "steps").steps if fact.rank == 0]
    beside = [fact.seconds for fact in steps if SLOW <= fact.step < RECORDED]
    after = [fact.seconds for fact in steps if fact.step >= RECORDED]
    recordings = sorted((folder / "run" / "recordings").rglob("*"))
    return {
        "script": name,
        "recorded_step_seconds": median(beside),
        "later_step_seconds": median(after),
        "ratio": median(beside) / median(after),
        "recorded_bytes": sum(path.stat().st_size for path in recordings if path.is_file()),
    }


def main() -> None:
    """Measure, print, write."""
    chosen: Options = options(
        __doc__.split("\n", maxsplit=1)[0], repeats=5, quick_repeats=2, steps=48, quick_steps=40
    )
    where, console = environment(), Console()
    rows = []
    with tempfile.TemporaryDirectory(prefix="trainmover-recording-") as base:
        for number in range(chosen.repeats):
            for name, (script, arguments, machines, ranks) in SCRIPTS.items():
                folder = Path(base) / f"{number}-{machines}"
                sized = replace(chosen, machines=machines)
                with console.status(f"run {number + 1} of {chosen.repeats}: {name}"):
                    trainmover_run(
                        folder,
                        sized,
                        standbys=0,
                        script=script,
                        script_args=arguments,
                        flags=["--ranks-per-machine", str(ranks), "--warmup-steps", str(RECORDED)],
                    )
                rows.append(row_of(name, folder))
    summary: dict[str, Any] = {}
    for name in SCRIPTS:
        mine = [row for row in rows if row["script"] == name]
        ratio = median(row["ratio"] for row in mine)
        summary[name] = {"ratio": ratio, "within_limit": ratio <= LIMIT}
        size = median(row["recorded_bytes"] for row in mine) / 2**20
        console.print(
            f"{name}: a recorded step takes {ratio:.3f} of a later one (at most {LIMIT:g}); "
            f"{size:.1f} MiB for {RECORDED} steps"
        )
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
