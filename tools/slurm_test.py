"""Try deploy/slurm/trainmover.sbatch on a real Slurm: two machines and a standby, one of them killed.

``make slurm-test`` runs it, as root, with Debian's slurmctld, slurmd and munge on this one host.  Slurm
and its keys live in a temporary folder and end with the test; nothing of the system's own is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TASKS = 3
STEPS = 600
TRAIN = ("examples/train_gpt.py", "--steps", str(STEPS), "--layers", "2", "--width", "128")

CONFIG = """\
ClusterName=trainmover
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={tasks} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Failed(Exception):
    """The test failed; the message says what did not happen."""


class Slurm:
    """A Slurm of one host in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().split(".")[0]
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Keys, configuration, three daemons."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = [free_port(), free_port()]
        text = CONFIG.format(
            host=self.host, folder=self.folder, port=ports[0], node_port=ports[1], tasks=TASKS
        )
        (self.folder / "slurm.conf").write_text(text)
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/seed",
        )
        until("munge answers", (self.folder / "munge.socket").exists, 20)
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D", "-N", self.host)
        until(
            "the host is idle", lambda: "idle" in self("sinfo", "--noheader", "--format=%t", check=False), 60
        )

    def __call__(self, *command: str, check: bool = True, **environment: str) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.env | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout.strip()

    def stop(self) -> None:
        """End the daemons, the last one first."""
        self("scancel", "--user=root", check=False)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _daemon(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.out").open("wb")
        self._daemons.append(
            subprocess.Popen([path_of(command[0]), *command[1:]], env=self.env, stdout=log, stderr=log)
        )


def path_of(name: str) -> str:
    """A daemon's path; they are in /usr/sbin, which is not on every PATH."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise Failed(f"there is no {name}; on Debian: apt install slurmctld slurmd slurm-client munge")
    return found


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def until(what: str, condition: Callable[[], object], limit: float) -> None:
    """Wait.

    Raises:
        Failed: not within ``limit`` seconds.
    """
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not within {limit:g} s: {what}")
        time.sleep(0.5)


def status(run: Path) -> dict:
    """What ``trainmover status --json`` says; only ``said``, its words, while there is nothing to show."""
    command = ["trainmover", "status", "--json", "--bus", str(run / "credentials" / "operator")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"said": done.stderr.strip()[-500:]}


def wait_for_a_spare(run: Path, limit: float) -> None:
    """Wait until training goes on, and a standby is parked.

    Raises:
        Failed: not within ``limit`` seconds, or the job ended before; says what was seen last.
    """
    what, seen, known = "it trains, and a standby is parked", {}, {}
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        seen = status(run)
        known = known if "said" in seen else seen
        if (known.get("step") or 0) > 5 and any(machine["parked"] for machine in known["machines"]):
            return
        if known.get("phase") in ("completed", "failed") or (run / "report.json").exists():
            raise Failed(f"the job has ended before: {what}\n{json.dumps(known, indent=1)[:6000]}")
        time.sleep(0.5)
    raise Failed(
        f"not within {limit:g} s: {what}\n{seen.get('said', '')}\n{json.dumps(known, indent=1)[:6000]}"
    )


def report(folder: Path, slurm: Slurm, *, kill: bool) -> dict:
    """Submit the batch script, kill a machine if asked to, wait for the end."""
    run = folder / ("killed" if kill else "calm")
    number = slurm(
        "sbatch",
        "--parsable",
        f"--ntasks={TASKS}",
        f"--ntasks-per-node={TASKS}",
        f"--output={folder}/{run.name}.out",
        "deploy/slurm/trainmover.sbatch",
        *TRAIN,
        RUN_DIR=str(run),
        BUS_PORT=str(free_port()),
    )
    if kill:
        wait_for_a_spare(run, 180)
        victim = next(machine for machine in status(run)["machines"] if machine["position"] == 1)
        name = victim["name"]
        found = subprocess.run(
            ["pgrep", "--full", f"trainmover machine .*--name {name} "],
            capture_output=True,
            text=True,
            check=False,
        )
        for pid in found.stdout.split():
            os.kill(int(pid), 9)
        print(f"killed {name}", flush=True)
    until(
        "the job has left the queue",
        lambda: not slurm("squeue", "--noheader", f"--jobs={number}", check=False),
        200,
    )
    told = (folder / f"{run.name}.out").read_text()
    print(told.strip(), flush=True)
    if not (run / "report.json").exists():
        logs = "\n".join(
            f"== {path.name}\n{path.read_text()[-1500:]}" for path in (run / "logs").glob("*.log")
        )
        raise Failed(f"no report\n{told}\n{logs}")
    return json.loads((run / "report.json").read_text())


def main() -> None:
    """The test."""
    with tempfile.TemporaryDirectory(prefix="trainmover-slurm-") as name:
        folder = Path(name)
        slurm = Slurm(folder)
        try:
            slurm.start()
            print(slurm("sinfo", "--version"), flush=True)
            calm = report(folder, slurm, kill=False)
            killed = report(folder, slurm, kill=True)
        finally:
            slurm.stop()
    if not killed["incidents"]:
        raise Failed("the machine that was killed was no incident")
    if killed["digest"] != calm["digest"]:
        raise Failed(
            f"the digests differ: {calm['digest']} undisturbed, {killed['digest']} with a machine killed"
        )
    print(f"same digest {calm['digest'][:16]} with and without")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"slurm-test: {error}", file=sys.stderr)
        print("0 passed, 1 failed")
        sys.exit(1)
