"""What running under TrainMover costs when nothing fails.

The same script, model, seed and number of ranks run in turn under ``torchrun`` with Gloo and under
``trainmover run``; the script itself takes the time of each step, from one end to the next.  The
two take turns so that a change of the machine's mood hits both; the first steps are left out
(TrainMover records in them, Gloo connects in them)::

    python benchmarks/overhead.py --json overhead.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import EXAMPLE, Options, environment, options, run, trainmover_run, write

LEFT_OUT = 5
"""Steps at the start that do not count."""

LIMIT = 1.05
"""Allowed ratio of the median step times."""


def step_times(side: str, folder: Path, chosen: Options) -> list[float]:
    """One run; seconds of each step that counts."""
    folder.mkdir(parents=True)
    times = folder / "times.json"
    script_args = ["--times", str(times)]
    if side == "trainmover":
        trainmover_run(folder, chosen, standbys=0, script_args=script_args)
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [str(chosen.machines), str(EXAMPLE), "--steps", str(chosen.steps)]
        command += ["--seed", str(chosen.seed), *script_args]
        run(command, log=folder / "output.log", limit=chosen.limit)
    found: list[float] = json.loads(times.read_text())
    return found[LEFT_OUT:]


def main() -> None:
    """Run, print, write."""
    chosen = options(__doc__ or "", repeats=5, quick_repeats=2, steps=60, quick_steps=18)
    where = environment()
    console = Console()
    sides = ("torchrun", "trainmover")
    all_times: dict[str, list[float]] = {side: [] for side in sides}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainmover-overhead-") as folder:
        for number in range(chosen.repeats):
            for side in sides if number % 2 == 0 else reversed(sides):
                with console.status(f"pair {number + 1} of {chosen.repeats}: {side}"):
                    times = step_times(side, Path(folder) / f"{number}-{side}", chosen)
                all_times[side] += times
                rows.append(
                    {"pair": number, "side": side, "median_step_seconds": median(times), "times": times}
                )
    medians = {side: median(all_times[side]) for side in sides}
    by_pair = [
        {r["side"]: r["median_step_seconds"] for r in rows if r["pair"] == n} for n in range(chosen.repeats)
    ]
    ratios = [pair["trainmover"] / pair["torchrun"] for pair in by_pair]
    ratio = medians["trainmover"] / medians["torchrun"]
    summary = {
        "median_step_seconds": medians,
        "ratio": ratio,
        "ratio_by_pair": ratios,
        "limit": LIMIT,
        "within_limit": ratio <= LIMIT,
    }

    table = Table(
        title=f"step time without faults, {chosen.machines} ranks, {chosen.repeats} pairs of runs",
        box=SIMPLE_HEAD,
    )
    table.add_column("")
    for name in ("median", "fastest", "slowest"):
        table.add_column(name, justify="right")
    for side in sides:
        values = (medians[side], min(all_times[side]), max(all_times[side]))
        table.add_row(side, *(f"{value:.3f} s" for value in values))
    console.print(table)
    spread = ", ".join(f"{value:.3f}" for value in ratios)
    mark = "" if ratio <= LIMIT else ", over"
    console.print(f"ratio {ratio:.3f} (limit {LIMIT}{mark}); by pair: {spread}")
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
