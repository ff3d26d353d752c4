"""What the benchmarks share: starting a run under a limit, describing the machine, writing the JSON.

Every benchmark starts whole programs (``trainmover run``, ``torchrun``) as a user would and reads
only what they leave behind; nothing here reaches into TrainMover.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "train_gpt.py"
PIPELINES = ROOT / "examples" / "train_gpt_3d.py"


@dataclass(frozen=True)
class Options:
    """What every benchmark can be told."""

    quick: bool
    json: Path | None
    repeats: int
    steps: int
    machines: int
    seed: int
    limit: float


def options(description: str, *, repeats: int, quick_repeats: int, steps: int, quick_steps: int) -> Options:
    """Parse the command line; ``--quick`` lowers the defaults so that all ends within a minute."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer and shorter runs: within a minute")
    add("--json", type=Path, default=None, metavar="FILE", help="write rows, summary and environment here")
    add("--repeats", type=int, default=None, help=f"default {repeats}, quick {quick_repeats}")
    add("--steps", type=int, default=None, help=f"default {steps}, quick {quick_steps}")
    add("--machines", type=int, default=3)
    add("--seed", type=int, default=1337)
    add("--limit", type=float, default=300.0, help="seconds that one run may take")
    args = parser.parse_args()
    return Options(
        quick=args.quick,
        json=args.json,
        repeats=args.repeats or (quick_repeats if args.quick else repeats),
        steps=args.steps or (quick_steps if args.quick else steps),
        machines=args.machines,
        seed=args.seed,
        limit=args.limit,
    )


def run(command: Sequence[str], *, log: Path, limit: float, env: dict[str, str] | None = None) -> float:
    """Run a program to its end in a session of its own; returns seconds.

    A program that fails or takes longer than ``limit`` ends the benchmark with the tail of its log.
    """
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    if code != 0:
        what = f"took longer than {limit:.0f} s" if code is None else f"ended with code {code}"
        tail = log.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{tail}\n{' '.join(command)}\n{what}")
    return time.perf_counter() - started


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a program that still runs to stop; when it does not, end what is left of it."""
    if process.poll() is not None:
        return
    program = psutil.Process(process.pid)
    family = [program, *program.children(recursive=True)]
    process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=15)
    for item in left:
        item.kill()
    process.wait(15)


def trainmover_run(
    folder: Path,
    options: Options,
    *,
    standbys: int,
    faults: Iterable[str] = (),
    script: Path = EXAMPLE,
    script_args: Iterable[str] = (),
    flags: Iterable[str] = (),
) -> dict[str, Any]:
    """``trainmover run`` of an example in ``folder``, with more flags; returns its report.json."""
    program = Path(sys.executable).with_name("trainmover")
    report = folder / "report.json"
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(program), "run", "--machines", str(options.machines), "--standbys", str(standbys)]
    command += ["--seed", str(options.seed), "--run-dir", str(folder / "run"), "--report", str(report)]
    for fault in faults:
        command += ["--fault", fault]
    command += [*flags, str(script), "--steps", str(options.steps), *script_args]
    run(command, log=folder / "output.log", limit=options.limit)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def environment() -> dict[str, Any]:
    """Where the figures were taken; without it they mean nothing."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "torch": version("torch"),
        "trainmover": version("trainmover"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write(
    path: Path | None, rows: list[dict[str, Any]], summary: dict[str, Any], where: dict[str, Any]
) -> None:
    """Write the JSON that every benchmark writes; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"rows": rows, "summary": summary, "environment": where}, indent=2) + "\n")
        print(f"written: {path}")
