"""Checkpoints of real runs: the promise holds across the end of everything.

The example trains with the small model.  Runs that are killed as a whole and go on from a checkpoint, and
runs that lose all their machines and go back to one by themselves, must end in the bytes of the undisturbed
run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.test_roles import WHOLE
from tests.cluster.training import EXAMPLES, SMALL, STEPS, Outcome, end, killed_at_once, train
from trainmover.events.catalogue import CheckpointFailed, CheckpointSaved
from trainmover.events.log import read_log

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run whose driver is killed after a few of them; nothing else of it is left."""
    folder = tmp_path_factory.mktemp("killed")
    checkpoints = folder / "checkpoints"
    command = [sys.executable, "-m", "trainmover.cli", "run", "--machines", "3", "--seed", "11"]
    command += ["--fault", "slow:machine=0,step=10,factor=8"]
    command += ["--run-dir", str(folder / "run"), "--checkpoint-every", "5"]
    command += ["--checkpoints", str(checkpoints)]
    command += [str(EXAMPLES / SMALL[0]), "--steps", str(STEPS), *SMALL[1:]]
    printed = folder / "output"
    with printed.open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        driver = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
        try:
            deadline = time.monotonic() + 150
            while max(steps_in(checkpoints), default=0) < 10:
                assert driver.poll() is None, printed.read_text()
                assert time.monotonic() < deadline, printed.read_text()
                time.sleep(0.005)
            driver.send_signal(signal.SIGKILL)
            driver.wait(10)
        finally:
            end(driver)
    return checkpoints


def steps_in(checkpoints: Path) -> list[int]:
    """Steps of the whole checkpoints."""
    there = checkpoints.glob("step-????????/manifest.json")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in there)


@pytest.mark.long(every=0)  # so does the next but one, and more happens to it
def test_a_run_that_was_killed_as_a_whole_goes_on(left: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    """SIGKILL for the driver ends everything; --resume goes on from the newest whole checkpoint."""
    checkpoints = shutil.copytree(left, tmp_path / "checkpoints")
    (newest, *_) = steps_in(checkpoints)[::-1]
    assert 10 <= newest < STEPS
    outcome = train(
        tmp_path,
        standbys=0,
        flags=("--checkpoint-every", "5", "--checkpoints", str(checkpoints), "--resume", "--keep", "3"),
    )
    assert min(outcome.losses) == newest
    assert outcome.losses == {step: undisturbed.losses[step] for step in range(newest, STEPS)}
    assert outcome.digest == undisturbed.digest
    assert steps_in(checkpoints) == [STEPS - 10, STEPS - 5, STEPS]
    assert not list(checkpoints.glob("*.part"))


@pytest.mark.long(every=0)  # tests/cluster/test_data.py has more of it
def test_all_machines_are_lost_at_once(undisturbed: Outcome, tmp_path: Path) -> None:
    """The job goes back to its last checkpoint by itself, and the report says what that cost."""
    outcome = train(
        tmp_path,
        *killed_at_once(0, 1, 2, step=17),
        standbys=3,
        flags=("--checkpoint-every", "5"),
    )
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)
    assert {item["steps_lost"] for item in outcome.report["incidents"]} <= {2, 7}
    assert all(item["step"] in (10, 15) for item in outcome.report["incidents"])


def test_a_machine_is_lost_in_a_run_that_has_gone_on(
    left: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    """After a resume a machine is replaced as ever, and its joiner takes part in the next checkpoints."""
    checkpoints = shutil.copytree(left, tmp_path / "checkpoints")
    (newest, *_) = steps_in(checkpoints)[::-1]
    assert 10 <= newest < 30
    outcome = train(
        tmp_path,
        "slow:machine=0,step=6,factor=10",
        "kill:machine=1,step=30",
        flags=("--checkpoint-every", "4", "--checkpoints", str(checkpoints), "--resume"),
    )
    assert outcome.losses == {step: undisturbed.losses[step] for step in range(newest, STEPS)}
    assert outcome.digest == undisturbed.digest
    assert outcome.incidents == [("failure", "m1")]
    assert steps_in(checkpoints) == [STEPS - 4, STEPS]
    assert not list(checkpoints.glob("*.part"))


@pytest.mark.long(every=0)
@pytest.mark.parametrize("machine", [0, 1])
def test_a_machine_is_lost_at_the_very_end(machine: int, undisturbed: Outcome, tmp_path: Path) -> None:
    """It has voted for the last step and writes nothing: there is a checkpoint after it all the same."""
    outcome = train(
        tmp_path,
        f"kill:machine={machine},step={STEPS - 1},at=voted",
        flags=("--checkpoint-every", "15"),
    )
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)
    assert outcome.incidents == [("failure", f"m{machine}")]
    assert steps_in(tmp_path / "run" / "checkpoints") == [30, STEPS]
    assert not list((tmp_path / "run" / "checkpoints").glob("*.part"))


@pytest.mark.long(every=0)
@pytest.mark.parametrize("every", [1, 2], ids=["on the boundary of one", "on it, or right after"])
def test_a_machine_is_moved_at_a_checkpoint(every: int, undisturbed: Outcome, tmp_path: Path) -> None:
    """The new epoch makes the one that is due there, and the leaver ends its part of the one before."""
    outcome = train(
        tmp_path,
        "slow:machine=0,step=3,factor=20",
        "move:machine=2,step=15",
        flags=("--checkpoint-every", str(every)),
    )
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)
    assert outcome.incidents == [("move", "m2")]
    (incident,) = outcome.report["incidents"]
    assert incident["steps_lost"] == 0
    said = [record.envelope.event for record in read_log(tmp_path / "run" / "events.tmlog")]
    saved = {event.step for event in said if isinstance(event, CheckpointSaved)}
    lost = [event for event in said if isinstance(event, CheckpointFailed) and "lost" in event.reason]
    assert lost == []
    moved_at = incident["step"]
    assert {moved_at - moved_at % every, moved_at + -moved_at % every} <= saved
    assert steps_in(tmp_path / "run" / "checkpoints") == [STEPS - every, STEPS]
    assert not list((tmp_path / "run" / "checkpoints").glob("*.part"))


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    """Checkpoints of another run are not mixed with new ones, and --resume needs some."""
    folder = tmp_path / "step-00000005"
    folder.mkdir()
    command = [sys.executable, "-m", "trainmover.cli", "run", "--checkpoints", str(tmp_path)]
    script = str(EXAMPLES / SMALL[0])
    asked = [[*command, "--resume", script]]
    (folder / "manifest.json").write_text("{}")
    asked.append([*command, "--checkpoint-every", "5", script])
    asked.append([*command[:-2], "--resume", script])
    (folder / "manifest.json").unlink()
    said = [subprocess.run(asked[0], capture_output=True, text=True, cwd=tmp_path, check=False)]
    (folder / "manifest.json").write_text("{}")
    said += [subprocess.run(a, capture_output=True, text=True, cwd=tmp_path, check=False) for a in asked[1:]]
    assert [item.returncode for item in said] == [2, 2, 2]
    assert "no checkpoint in" in said[0].stderr
    assert "has checkpoints of an earlier run" in said[1].stderr
    assert "--resume needs --checkpoints" in said[2].stderr


def test_pipelines_with_a_sharded_optimizer_go_on(tmp_path: Path) -> None:
    """Four ranks, none of which has the state of another, go on from the middle in the same bytes."""
    checkpoints = tmp_path / "checkpoints"
    shape = {"machines": 4, "ranks_per_machine": 1, "standbys": 0, "steps": 12, "limit": 180.0}
    script = (*WHOLE, "--layers", "4", "--pipe-ranks", "2", "--optimizer", "sharded")
    flags = ("--checkpoint-every", "6", "--checkpoints", str(checkpoints))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    straight = train(first, script=script, flags=flags, **shape)  # type: ignore[arg-type]
    assert steps_in(checkpoints) == [6, 12]
    shutil.rmtree(checkpoints / "step-00000012")
    outcome = train(second, script=script, flags=(*flags, "--resume"), **shape)  # type: ignore[arg-type]
    assert outcome.digest == straight.digest
    assert outcome.losses == {step: straight.losses[step] for step in range(6, 12)}


@pytest.mark.long(every=0)
def test_a_run_goes_on_with_fewer_machines(tmp_path: Path) -> None:
    """Two machines go on from what three had: with the same model, and in the same bytes whatever happens."""
    checkpoints = tmp_path / "checkpoints"
    folders = [tmp_path / name for name in ("three", "straight", "killed")]
    for folder in folders:
        folder.mkdir()
    flags = ("--checkpoint-every", "10", "--checkpoints", str(checkpoints))
    three = train(folders[0], standbys=0, steps=20, flags=flags)
    there = {number: tmp_path / f"of {number}" for number in (0, 1)}
    for copy in there.values():
        shutil.copytree(checkpoints, copy)
    straight, killed = (
        train(
            folder,
            *faults,
            machines=2,
            standbys=len(faults),
            flags=("--checkpoint-every", "10", "--checkpoints", str(copy), "--resume"),
        )
        for folder, faults, copy in zip(
            folders[1:], ((), ("kill:machine=1,step=30",)), there.values(), strict=True
        )
    )
    assert sorted(straight.losses) == list(range(20, STEPS))
    assert straight.losses[20] < three.losses[0] - 0.5
    assert straight.losses[20] == pytest.approx(three.losses[19], abs=0.5)
    assert killed.incidents == [("failure", "m1")]
    assert (killed.digest, killed.losses) == (straight.digest, straight.losses)
