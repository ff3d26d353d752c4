"""Training runs for the cluster tests: the example, small, as a real ``trainmover run``.

What lives here: how to start a run, what to do to its processes meanwhile, and what it came to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 40
LIMIT = 200.0

ABREAST = 3.0
"""Seconds in which every machine gets to the step in which all of them are hit."""

Script = tuple[str, ...]
"""An example's name and what it is called with."""

SMALL: Script = (
    *("train_gpt.py", "--layers", "2", "--width", "64", "--context", "32"),
    *("--data-limit", "200000"),
)


@dataclass(frozen=True)
class Outcome:
    """What a run came to; ``told`` is what it printed, ``report`` all of its report."""

    digest: str
    losses: dict[int, float]
    incidents: list[tuple[str, str]]
    told: str
    report: dict[str, Any]


class Running:
    """A run that goes on, for whoever wants to disturb it."""

    def __init__(self, driver: subprocess.Popen[bytes], output: Path) -> None:
        self.driver, self.output = driver, output

    def told(self) -> str:
        """What it has printed so far."""
        return self.output.read_text("utf-8", errors="replace")

    def until(self, *words: str, limit: float = 60.0) -> None:
        """Wait until one printed line has all these words."""
        wait_until(
            lambda: any(all(word in line for word in words) for line in self.told().splitlines()),
            lambda: f"the run says {words}:\n{self.told()}",
            limit,
            lambda: self._goes_on(words),
        )

    def _goes_on(self, words: tuple[str, ...]) -> None:
        assert self.driver.poll() is None, f"the run ended without saying {words}:\n{self.told()}"

    def kill(self, *words: str) -> None:
        """SIGKILL for the process below the driver whose command line has all these words."""
        deadline = time.monotonic() + 10.0
        while True:
            for process in psutil.Process(self.driver.pid).children(recursive=True):
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if all(word in line for word in words):
                    process.kill()
                    return
            assert time.monotonic() < deadline, f"no process with {words} below the driver"
            time.sleep(0.01)


def train(
    folder: Path,
    *faults: str,
    machines: int = 3,
    standbys: int = 1,
    ranks_per_machine: int = 1,
    steps: int = STEPS,
    meanwhile: Callable[[Running], None] | None = None,
    script: Script = SMALL,
    flags: tuple[str, ...] = (),
    limit: float = LIMIT,
) -> Outcome:
    """Run an example with these faults to its end and read its report."""
    command = [sys.executable, "-m", "trainmover.cli", "run", "--machines", str(machines)]
    command += ["--standbys", str(standbys), "--ranks-per-machine", str(ranks_per_machine)]
    command += ["--seed", "11", "--run-dir", str(folder / "run")]
    for fault in faults:
        command += ["--fault", fault]
    command += [*flags, str(EXAMPLES / script[0]), "--steps", str(steps), *script[1:]]
    printed = folder / "output"
    with printed.open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        driver = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
        try:
            if meanwhile is not None:
                meanwhile(Running(driver, printed))
            code = driver.wait(limit)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end(driver)
    assert code == 0, printed.read_text()
    report: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    incidents = [(item["kind"], item["machine"]) for item in report["incidents"]]
    losses = {step: float(loss) for step, loss in enumerate(report["losses"]) if loss is not None}
    return Outcome(report["digest"], losses, incidents, printed.read_text(), report)


def killed_at_once(*machines: int, step: int) -> list[str]:
    """Faults that kill machines at the beginning of a step, none before the others have got there.

    Without a pause the first may be gone while another, on a busy computer, has not learnt yet that the step
    before is committed.  That one waits at its boundary then, and is hit long after.
    """
    return [
        fault
        for machine in machines
        for fault in (
            f"pause:machine={machine},step={step},seconds={ABREAST:g}",
            f"kill:machine={machine},step={step}",
        )
    ]


def end(driver: subprocess.Popen[bytes]) -> None:
    """End a driver that has not ended, and everything below it."""
    if driver.poll() is not None:
        return
    family = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGTERM)
    try:
        driver.wait(15)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
    for process in psutil.wait_procs(family, timeout=5)[1]:
        process.kill()


def join(running: Running, name: str, slots: int = 1) -> subprocess.Popen[bytes]:
    """One more machine joins the run."""
    command = [sys.executable, "-m", "trainmover.cli", "machine", "--name", name, "--slots", str(slots)]
    temporary = str(running.output.parent)
    environment = {**os.environ, "TMPDIR": temporary, "OMP_NUM_THREADS": "1"}
    with (running.output.parent / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=temporary)
