"""Where things are: the registry of local runs, a run's folder, a rank's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmover.errors import ConfigError
from trainmover.events import catalogue as say
from trainmover.machine import environment, registry
from trainmover.machine.rundir import RunDir
from trainmover.machine.supervisor import RunConfig

JOB = say.JobSubmitted(
    script="train.py",
    cwd="/",
    python="python",
    machines=2,
    ranks_per_machine=2,
    run_dir="/run",
    seed=3,
    faults=("kill:machine=m1,step=9", "kill:machine=m0,step=2", "slow:machine=m1,step=1,factor=2"),
)
SEAT = environment.Seat("job", "m1", "life", "127.0.0.1", "/tmp/s", "5ec7e7", 4711, 99)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return registry.folder()


def test_a_live_rank_gets_the_names_of_torchrun() -> None:
    """Position and slot give the rank; the other torchrun names follow."""
    launch = say.MachineLaunch(
        machine="m1",
        incarnation="life",
        position=1,
        world_size=4,
        ranks_per_machine=2,
        generation=5,
        record=True,
    )
    first, second = environment.live(SEAT, JOB, launch)
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"], second["GROUP_RANK"]) == ("2", "3", "1", "1")
    assert (second["WORLD_SIZE"], second["LOCAL_WORLD_SIZE"], second["MASTER_PORT"]) == ("4", "2", "4711")
    assert (second["TRAINMOVER_MODE"], second["TRAINMOVER_GENERATION"]) == ("live", "5")
    assert second["TRAINMOVER_RECORD"] == "1"
    assert second["TRAINMOVER_FAULTS"] == "slow:machine=m1,step=1,factor=2;kill:machine=m1,step=9"


def test_a_sandbox_rank_takes_the_role_of_its_recording() -> None:
    """Each slot of a spare gets its recording and the rank number of that role."""
    warm = say.StandbyWarm(
        machine="m1",
        incarnation="life",
        generation=5,
        recordings=("/r/a", "/r/b"),
        world_size=4,
        ranks_per_machine=2,
        positions=(0, 0),
    )
    first, second = environment.sandbox(SEAT, JOB, warm)
    assert (first["RANK"], second["RANK"], second["TRAINMOVER_RECORDING"]) == ("0", "1", "/r/b")
    assert (second["TRAINMOVER_MODE"], second["TRAINMOVER_RECORD"]) == ("sandbox", "0")


def test_threads_are_limited_unless_the_user_says_otherwise() -> None:
    """OMP_NUM_THREADS is 1 when unset, like under torchrun; a rank's own names always win."""
    assert environment.complete({"RANK": "1"}, {"RANK": "9"}) == {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "RANK": "1",
    }
    assert environment.complete({}, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_a_run_is_found_while_its_driver_lives(home: Path, tmp_path: Path) -> None:
    """One run is found without a name; two need one; a dead driver's claim is removed."""
    run = RunDir.create(tmp_path / "run")
    run.write_secret("5ec7e7")
    with pytest.raises(ConfigError, match="no run is going on here"):
        registry.find()
    entry = registry.register("job-a", "nats://t@h:1", run.path)
    assert registry.find() == entry
    assert entry.secret == "5ec7e7"
    registry.register("job-b", "nats://t@h:2", run.path)
    with pytest.raises(ConfigError, match="choose one with --job"):
        registry.find()
    assert registry.find("job-b").bus == "nats://t@h:2"
    registry.unregister("job-b")
    assert registry.find("job-a") == entry
    path = home / "job-a.json"
    path.write_text(path.read_text().replace(str(os.getpid()), str(2**22 + 1)))
    assert registry.runs() == []
    assert not path.exists()


def test_a_folder_of_somebody_else_is_not_trusted(home: Path) -> None:
    """A registry that others can write to is refused."""
    home.chmod(0o777)
    with pytest.raises(ConfigError, match="only you can enter"):
        registry.folder()
    home.chmod(0o700)


def test_sockets_of_dead_processes_are_swept(home: Path) -> None:
    """What a killed machine program left behind goes; what a living one has stays."""
    own = registry.socket_folder()
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    orphan = home / f"sockets-{int(done.stdout)}-xyz"
    orphan.mkdir()
    registry.sweep()
    assert own.exists()
    assert not orphan.exists()


def test_a_run_folder_is_used_once(tmp_path: Path) -> None:
    """A folder that holds a run is not written over."""
    run = RunDir.create(tmp_path / "run")
    run.write_secret("5ec7e7")
    assert (run.path / "secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDir.create(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        RunDir.create(tmp_path / "file" / "run")


def test_a_run_that_cannot_work_is_refused(tmp_path: Path) -> None:
    """A script that is not there is named before anything starts."""
    with pytest.raises(ConfigError, match="does not exist"):
        RunConfig(tmp_path / "none.py").check()
