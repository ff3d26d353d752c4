"""What is more than is promised ends in one sentence: a machine and the keeper of its private state are lost.

Nobody has the position in the data and the random generators of that machine's ranks any more, so the job
cannot go on exactly.  It says so once, and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmover.events import catalogue as say
from trainmover.events.log import read_log

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]

TINY = Path(__file__).parent / "scripts" / "tiny.py"


def test_a_machine_and_its_keeper_are_lost(tmp_path: Path) -> None:
    """The command ends with code 1 and that sentence, and no other error is told."""
    command = [sys.executable, "-m", "trainmover.cli", "run", "--machines", "3", "--standbys", "2"]
    command += ["--run-dir", str(tmp_path / "run")]
    for machine in (1, 2):
        command += ["--fault", f"kill:machine={machine},step=15"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*command, str(TINY), "--steps", "30"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 1, told
    events = [record.envelope.event for record in read_log(tmp_path / "run" / "events.tmlog")]
    reasons = {event.reason for event in events if isinstance(event, say.JobFailed)}
    assert len(reasons) == 1, reasons
    (reason,) = reasons
    assert reason.startswith("the private state of rank 1 (random generators, data position) is lost: rank 2")
    assert reason in " ".join(told.split())
    failed = [event.machine for event in events if isinstance(event, say.MachineFailed)]
    assert sorted(failed) == ["m1", "m2"]
