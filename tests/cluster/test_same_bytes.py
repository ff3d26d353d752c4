"""The promise: whatever happens to its machines, the run ends in the bytes of the undisturbed run.

The example trains for real, with a small model: three machines, a standby, an embedded server.  The
same seed runs once without faults; every other run must have its digest and all of its losses.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
STEPS = 40
LIMIT = 100.0


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    digest: str
    losses: dict[int, float]
    incidents: list[tuple[str, str]]


def train(folder: Path, *faults: str, standbys: int = 1) -> Outcome:
    """Run the example with these faults and read its report."""
    command = [sys.executable, "-m", "trainmover.cli", "run", "--machines", "3", "--standbys", str(standbys)]
    command += ["--seed", "11", "--run-dir", str(folder / "run")]
    for fault in faults:
        command += ["--fault", fault]
    command += [str(EXAMPLE), "--steps", str(STEPS), "--layers", "2", "--width", "64", "--context", "32"]
    command += ["--data-limit", "200000"]
    with (folder / "output").open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        driver = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
        try:
            code = driver.wait(LIMIT)
        except subprocess.TimeoutExpired:
            end(driver)
            code = -1
    assert code == 0, (folder / "output").read_text()
    report: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    incidents = [(item["kind"], item["machine"]) for item in report["incidents"]]
    return Outcome(report["digest"], losses_of(report), incidents)


def losses_of(report: dict[str, Any]) -> dict[int, float]:
    """The loss of every step, by step."""
    losses = report["losses"]
    items = losses.items() if isinstance(losses, dict) else enumerate(losses)
    return {int(step): float(loss) for step, loss in items}


def end(driver: subprocess.Popen[bytes]) -> None:
    """End a driver that takes too long, and everything below it."""
    family = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGTERM)
    try:
        driver.wait(15)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
    for process in psutil.wait_procs(family, timeout=5)[1]:
        process.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in which nothing happens."""
    outcome = train(tmp_path_factory.mktemp("undisturbed"), standbys=0)
    assert sorted(outcome.losses) == list(range(STEPS))
    assert outcome.losses[STEPS - 1] < outcome.losses[0] - 1.0
    return outcome


@pytest.mark.parametrize("step", [0, 1, 2, 17, STEPS - 1])
def test_a_machine_is_killed(step: int, undisturbed: Outcome, tmp_path: Path) -> None:
    """A kill at any step, the first two and the last included, changes no bit and no loss."""
    outcome = train(tmp_path, f"kill:machine=1,step={step}")
    assert outcome.digest == undisturbed.digest
    assert outcome.losses == undisturbed.losses


def test_the_machine_of_rank_0_is_killed(undisturbed: Outcome, tmp_path: Path) -> None:
    """No rank is special, rank 0 neither."""
    outcome = train(tmp_path, "kill:machine=0,step=20")
    assert outcome.incidents == [("failure", "m0")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


def test_a_machine_is_moved(undisturbed: Outcome, tmp_path: Path) -> None:
    """Planned maintenance changes no bit.

    A move waits for a spare that is being warmed; slow steps let the job last until it is.
    """
    outcome = train(tmp_path, "slow:machine=0,step=5,factor=40", "move:machine=2,step=6")
    assert outcome.incidents == [("move", "m2")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


def test_a_frozen_machine_comes_back(undisturbed: Outcome, tmp_path: Path) -> None:
    """A machine that is frozen, replaced and goes on is fenced out and changes no bit."""
    outcome = train(tmp_path, "stop:machine=1,step=15,seconds=4")
    assert outcome.incidents == [("failure", "m1")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


def test_two_machines_are_killed_one_after_the_other(undisturbed: Outcome, tmp_path: Path) -> None:
    """A second failure after the first changes no bit either."""
    outcome = train(tmp_path, "kill:machine=1,step=12", "kill:machine=2,step=28", standbys=2)
    assert outcome.incidents == [("failure", "m1"), ("failure", "m2")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)
