"""Campaigns: real runs in which things go wrong, and what is found when one does not hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainmover.chaos.campaign import Campaign

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(280)]

FAKE = Path(__file__).parents[1] / "machine" / "fake_rank.py"
TINY = Path(__file__).parents[1] / "cluster" / "scripts" / "tiny.py"


def chaos(folder: Path, *arguments: str) -> tuple[int, str]:
    """``trainmover chaos``: its exit code and what it prints."""
    command = [sys.executable, "-m", "trainmover.cli", "chaos", "--keep", str(folder / "kept"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_fixed_seed_of_the_control_plane(tmp_path: Path) -> None:
    """Services, the bus and clocks go wrong; ranks are small programs without torch."""
    summary = tmp_path / "summary.json"
    options = ("--seed", "19", "--runs", "1", "--machines", "3", "--kinds", "service,bus,stall,clock")
    code, told = chaos(tmp_path, *options, "--json", str(summary), str(FAKE), "--step-seconds", "0.05")
    assert code == 0, told
    found = json.loads(summary.read_text())
    assert (found["runs"], found["survived"]) == (1, 1)
    assert found["faults_survived"] >= 2
    assert not (tmp_path / "kept").exists()


def test_a_fixed_seed_of_a_training(tmp_path: Path) -> None:
    """A tiny model trains, and everything goes wrong that can be made here."""
    options = ("--seed", "31", "--runs", "1", "--machines", "3", "--standbys", "1")
    code, told = chaos(tmp_path, *options, str(TINY), "--steps", "40")
    assert code == 0, told
    assert "1 of 1 runs survived" in told


def test_what_is_not_survived_is_told_with_the_command_that_shows_it_again(tmp_path: Path) -> None:
    """A script whose result hangs on where it runs does not hold, and is kept to be looked into."""
    script = tmp_path / "fickle.py"
    text = FAKE.read_text().replace("loss = 4.0 / (1 + index)", "loss = float(len(str(RUN_DIR)))")
    assert "len(str(RUN_DIR))" in text
    script.write_text(text)
    options = ("--seed", "0", "--runs", "1", "--machines", "2", "--standbys", "1", "--kinds", "none")
    code, told = chaos(tmp_path, *options, str(script), "--step-seconds", "0.05")
    assert code == 1, told
    assert "NOT SURVIVED" in told
    assert re.search(r"its losses differ in step \d+", told)
    again = next(line for line in told.splitlines() if line.startswith("again: "))
    assert again.startswith(
        "again: trainmover chaos --seed 0 --runs 1 --machines 2 --standbys 1 --kinds none"
    )
    (kept,) = (tmp_path / "kept").iterdir()
    assert (kept / "order.json").is_file()
    assert (kept / "run" / "events.tmlog").is_file()


def test_a_campaign_that_could_not_end_is_refused(tmp_path: Path) -> None:
    """Without a spare a job that holds would wait for ever."""
    code, told = chaos(tmp_path, "--standbys", "0", str(TINY))
    assert code != 0
    assert "--standbys 0 needs --on-exhausted shrink" in told


def test_the_command_says_what_is_not_usual() -> None:
    """And nothing else."""
    assert Campaign(Path("t.py")).command(7, Campaign.kinds) == "trainmover chaos --seed 7 --runs 1 t.py"
    asked = Campaign(Path("t.py"), ("--steps", "9"), machines=3, on_exhausted="shrink")
    assert asked.command(7, ("bus",)) == (
        "trainmover chaos --seed 7 --runs 1 --machines 3 --on-exhausted shrink --kinds bus t.py --steps 9"
    )
