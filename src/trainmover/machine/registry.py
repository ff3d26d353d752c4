"""Which local runs there are: how ``trainmover status`` finds the bus, the job and the secret.

What lives here: a folder in the temporary directory that only this user can enter, with a small
file per running driver and a folder per machine program's socket, and the rules for trusting them.
Each is a claim: it counts only while the process that made it lives, and is swept away after that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from trainmover.errors import ConfigError

SOCKETS = "sockets-"
SOCKET_PATH_BYTES = 100
"""A unix socket's path has at most 107 bytes (unix(7)); some are left for its name."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One local run.

    Attributes:
        job: name of the job.
        bus: address of its bus, credentials included.
        run_dir: its folder; the secret is in ``secret`` there.
        pid: process id of its driver.
        started: when that process was created, unix seconds; with the pid it names one process.
    """

    job: str
    bus: str
    run_dir: str
    pid: int
    started: float

    @property
    def alive(self) -> bool:
        """Whether the driver still runs."""
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.started) < 1.0)
        except psutil.Error:
            return False

    @property
    def secret(self) -> str:
        """The job's secret.

        Raises:
            ConfigError: it cannot be read.
        """
        path = Path(self.run_dir) / "secret"
        try:
            return path.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the secret of job {self.job} cannot be read: {error}") from None


def folder() -> Path:
    """The registry's folder, made if missing.

    Raises:
        ConfigError: somebody else could have put something there.
    """
    path = Path(tempfile.gettempdir()) / f"trainmover-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{path} is not a folder that only you can enter: remove it, or set TMPDIR to another place"
        )
    return path


def socket_folder() -> Path:
    """A new private folder for the unix socket of this process; see :func:`sweep`."""
    home = folder()
    prefix = f"{SOCKETS}{os.getpid()}-"
    if len(os.fsencode(home)) + len(prefix) + 12 > SOCKET_PATH_BYTES:
        return Path(tempfile.mkdtemp(prefix=f"tm-{os.getpid()}-", dir="/tmp"))
    return Path(tempfile.mkdtemp(prefix=prefix, dir=home))


def sweep() -> None:
    """Remove the socket folders of processes that were killed and could not do it themselves."""
    for path in folder().glob(f"{SOCKETS}*"):
        pid = path.name.removeprefix(SOCKETS).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def register(job: str, bus: str, run_dir: Path) -> RunEntry:
    """Announce a run of this process; :func:`unregister` takes it back."""
    process = psutil.Process()
    entry = RunEntry(job, bus, str(run_dir), process.pid, process.create_time())
    path = folder() / f"{job}.json"
    temporary = path.with_suffix(f".{process.pid}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(entry), file)
    temporary.replace(path)
    return entry


def unregister(job: str) -> None:
    """Take an announcement back."""
    with contextlib.suppress(OSError):
        (folder() / f"{job}.json").unlink(missing_ok=True)


def runs() -> list[RunEntry]:
    """Runs whose driver lives, the latest first; claims of dead drivers are removed."""
    found: list[RunEntry] = []
    for path in folder().glob("*.json"):
        try:
            entry = RunEntry(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        if entry.alive:
            found.append(entry)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda entry: entry.started, reverse=True)


def find(job: str | None = None) -> RunEntry:
    """The run of this job, or the only one there is.

    Raises:
        ConfigError: there is none, or several and no job was named.
    """
    there = runs()
    chosen = [entry for entry in there if job in (None, entry.job)]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        what = "no run is going on here" if job is None else f"no run of job {job} is going on here"
        raise ConfigError(f"{what}: start one with trainmover run, or give --bus and --job")
    names = ", ".join(entry.job for entry in chosen)
    raise ConfigError(f"several runs are going on here ({names}): choose one with --job")
