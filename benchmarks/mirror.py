"""What it costs to mirror state that no other rank has: bytes, step time, memory.

``examples/train_gpt_3d.py --optimizer sharded`` runs under ``trainmover run --state mirror`` and
``--state none`` in turn, so that a change of the machine's mood hits both; no rank has the state of another.
The script takes the time of each step; the steps before the mirrors are whole are left out.  Two shapes:
*small* is the example's own model, *wide* has four times its parameters and four times its tokens in a
step.  What a step sends grows with the parameters, what it computes with parameters times tokens, so
the second is nearer to a real job, and both are on the side of what mirrors cost::

    python benchmarks/mirror.py --json mirror.json
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

from benchmarks.common import PIPELINES, Options, environment, options, trainmover_run, write

LEFT_OUT = 6
"""Steps at the start that do not count: they are recorded, roles are found, mirrors become whole."""

LIMIT = 1.05
"""Allowed ratio of the median step times."""

SHAPES = {
    "small": (),
    "wide": ("--width", "128", "--microbatch-size", "8"),
}


def one(shape: str, side: str, folder: Path, chosen: Options) -> dict[str, Any]:
    """One run: seconds of the steps that count, what the report says of mirrors, its ranks' peak memory."""
    times = folder / "times.json"
    folder.mkdir(parents=True)
    args = ["--optimizer", "sharded", "--data-ranks", str(chosen.machines), "--pipe-ranks", "1"]
    args += ["--tensor-ranks", "1", "--times", str(times), *SHAPES[shape]]
    report = trainmover_run(
        folder, chosen, standbys=0, script=PIPELINES, script_args=args, flags=("--state", side)
    )
    return {
        "shape": shape,
        "side": side,
        "times": json.loads(times.read_text())[LEFT_OUT:],
        "state": report["state"],
        "peak_rss_bytes": max(noted(folder / "run" / "steps", "rss")),
        "waits": noted(folder / "run" / "steps", "mirror")[LEFT_OUT * chosen.machines :],
        "digest": report["digest"],
    }


def noted(folder: Path, name: str) -> list[float]:
    """What the ranks have noted of each step under a name, by step."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    facts = [fact for fact in map(json.loads, lines) if fact["kind"] == "step"]
    return [float(fact[name]) for fact in sorted(facts, key=lambda fact: fact["step"])]


def summary_of(rows: list[dict[str, Any]], shape: str) -> dict[str, Any]:
    """What the runs of one shape come to."""
    sides = {
        side: [row for row in rows if (row["shape"], row["side"]) == (shape, side)]
        for side in ("none", "mirror")
    }
    medians = {side: median(t for row in found for t in row["times"]) for side, found in sides.items()}
    pairs = [
        median(b["times"]) / median(a["times"]) for a, b in zip(sides["none"], sides["mirror"], strict=True)
    ]
    state = sides["mirror"][0]["state"]
    return {
        "median_step_seconds": medians,
        "ratio": medians["mirror"] / medians["none"],
        "ratio_by_pair": pairs,
        "limit": LIMIT,
        "within_limit": medians["mirror"] / medians["none"] <= LIMIT,
        "vote_seconds": median(wait for row in sides["mirror"] for wait in row["waits"]),
        "bytes_per_step": state["mirror_bytes_per_step"],
        "memory_bytes": state["mirror_memory_bytes"],
        "peak_rss_growth_bytes": median(row["peak_rss_bytes"] for row in sides["mirror"])
        - median(row["peak_rss_bytes"] for row in sides["none"]),
        "same_digest": len({row["digest"] for found in sides.values() for row in found}) == 1,
    }


def main() -> None:
    """Run, print, write."""
    chosen = options(__doc__ or "", repeats=3, quick_repeats=1, steps=40, quick_steps=20)
    where, console = environment(), Console()
    shapes = ["wide"] if chosen.quick else list(SHAPES)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainmover-mirror-") as folder:
        for shape in shapes:
            for number in range(chosen.repeats):
                for side in ("none", "mirror") if number % 2 == 0 else ("mirror", "none"):
                    with console.status(f"{shape}, pair {number + 1} of {chosen.repeats}: --state {side}"):
                        rows.append(one(shape, side, Path(folder) / f"{shape}-{number}-{side}", chosen))
    summary = {shape: summary_of(rows, shape) for shape in shapes}
    table = Table(title=f"mirrors, {chosen.machines} ranks, {chosen.repeats} pairs", box=SIMPLE_HEAD)
    for name in (
        "",
        "without",
        "with",
        "ratio",
        "at the vote",
        "sent per step",
        "kept",
        "peak memory",
        "same bytes",
    ):
        table.add_column(name, justify="right")
    for shape, found in summary.items():
        medians = found["median_step_seconds"]
        table.add_row(
            shape,
            *(f"{medians[side]:.3f} s" for side in ("none", "mirror")),
            f"{found['ratio']:.3f}",
            f"{1000 * found['vote_seconds']:.1f} ms",
            *(
                f"{found[name] / 2**20:+.1f} MiB" if "growth" in name else f"{found[name] / 2**20:.1f} MiB"
                for name in ("bytes_per_step", "memory_bytes", "peak_rss_growth_bytes")
            ),
            "yes" if found["same_digest"] else "NO",
        )
    console.print(table)
    for shape, found in summary.items():
        spread = ", ".join(f"{value:.3f}" for value in found["ratio_by_pair"])
        mark = "" if found["within_limit"] else ", over"
        console.print(f"{shape}: ratio {found['ratio']:.3f} (limit {LIMIT}{mark}); by pair: {spread}")
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
