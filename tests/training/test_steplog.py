"""The step log: whole lines of JSON, on disk as soon as they are written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainmover.chaos import disk
from trainmover.training.steplog import StepLog, peak_rss_bytes


def test_facts_are_on_disk_at_once(tmp_path: Path) -> None:
    """Each fact is one line with a time, readable while the process still runs."""
    log = StepLog(tmp_path, "m1", 2)
    log.write("step", step=3, loss=0.5)
    log.write("void", step=4, time=12.0)
    lines = (tmp_path / "steps" / f"m1-2-{os.getpid()}.jsonl").read_text(encoding="utf-8").splitlines()
    log.close()
    first, second = (json.loads(line) for line in lines)
    assert (first["kind"], first["step"], first["loss"]) == ("step", 3, 0.5)
    assert first["time"] > 1e9
    assert second == {"kind": "void", "step": 4, "time": 12.0}


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    """Opening the log again loses nothing."""
    for step in range(2):
        log = StepLog(tmp_path, "m1", 0)
        log.write("step", step=step)
        log.close()
    (path,) = (tmp_path / "steps").iterdir()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1]


def test_peak_memory_is_in_bytes() -> None:
    """A Python process with torch takes more than a few megabytes and less than this machine has."""
    assert 20e6 < peak_rss_bytes() < 1e12


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
def test_a_full_disk_ends_no_training(tmp_path: Path) -> None:
    """What cannot be written waits until it can be, and no fact is lost."""
    folder = tmp_path / "run"
    disk.mount(folder)
    try:
        log = StepLog(folder, "m1", 0)
        log.write("step", step=0)
        disk.fill(folder)
        for step in range(1, 300):
            log.write("step", step=step, text="x" * 100)
        disk.empty(folder)
        log.finish(limit=5.0)
        (path,) = (folder / "steps").iterdir()
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        log.close()
    finally:
        disk.unmount(folder)
    assert steps == list(range(300))
