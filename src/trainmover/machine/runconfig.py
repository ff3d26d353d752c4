"""What ``trainmover run`` was asked for, as one value that is checked before anything is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainmover.errors import ConfigError
from trainmover.events.catalogue import JobSubmitted
from trainmover.faults import FaultSpec


def check_job(job: JobSubmitted) -> None:
    """Refuse a job that cannot be what was asked for, whichever command asks.

    Raises:
        ConfigError: says which part, and what would be right.
    """
    if job.state == "checkpoint" and not job.checkpoint_every:
        raise ConfigError("--state checkpoint needs --checkpoint-every: there would be nothing to go back to")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What the user asked for; see ``trainmover run --help``."""

    script: Path
    args: tuple[str, ...] = ()
    machines: int = 1
    ranks_per_machine: int = 1
    standbys: int = 0
    seed: int = 0
    faults: tuple[FaultSpec, ...] = ()
    on_exhausted: Literal["hold", "fail", "shrink"] = "hold"
    bus: str | None = None
    standby_memory: Literal["resident", "sequential"] = "resident"
    recordings: str = ""
    recording_limit_bytes: int = 2 * 2**30
    warmup_steps: int = 2
    checkpoint_every: int = 0
    checkpoints: str = ""
    checkpoint_keep: int = 2
    warm_limit_seconds: float = 1800.0
    resume: bool = False
    tls: bool = False
    state: Literal["mirror", "checkpoint", "none"] = "mirror"

    def description(self, run_dir: Path) -> JobSubmitted:
        """The job as its services and machines hear of it."""
        return JobSubmitted(
            script=str(self.script.absolute()),
            args=self.args,
            cwd=str(Path.cwd()),
            python=sys.executable,
            machines=self.machines,
            ranks_per_machine=self.ranks_per_machine,
            standbys=self.standbys,
            seed=self.seed,
            run_dir=str(run_dir),
            on_exhausted=self.on_exhausted,
            faults=tuple(str(spec) for spec in self.faults),
            standby_memory=self.standby_memory,
            recordings=self.recordings,
            recording_limit_bytes=self.recording_limit_bytes,
            warmup_steps=self.warmup_steps,
            checkpoint_every=self.checkpoint_every,
            checkpoints=self.checkpoints,
            checkpoint_keep=self.checkpoint_keep,
            warm_limit_seconds=self.warm_limit_seconds,
            resume=self.resume,
            state=self.state,
        )

    def check(self) -> None:
        """Refuse what cannot work before anything is started.

        Raises:
            ConfigError: says which part, and what would be right.
        """
        if not self.script.is_file():
            raise ConfigError(f"the script {self.script} does not exist")
        self._check_checkpoints()
        check_job(self.description(Path()))
        names = {f"m{number}" for number in range(self.machines + self.standbys)}
        for spec in self.faults:
            if spec.machine not in names and not spec.machine.startswith("m"):
                known = f"m0 to m{len(names) - 1}"
                raise ConfigError(f"fault {spec}: there will be no machine {spec.machine}, only {known}")
            if spec.slot >= self.ranks_per_machine:
                known = f"0 to {self.ranks_per_machine - 1} (--ranks-per-machine)"
                raise ConfigError(f"fault {spec}: there is no slot {spec.slot} on a machine, only {known}")

    def _check_checkpoints(self) -> None:
        """A folder that has checkpoints is gone on from, or it is left alone."""
        if self.resume and not self.checkpoints:
            raise ConfigError(
                "--resume needs --checkpoints: the folder that the earlier run kept its checkpoints in, for "
                "example runs/mine/checkpoints"
            )
        if not self.checkpoints or "://" in self.checkpoints:
            return
        there = any(Path(self.checkpoints).glob("step-????????/manifest.json"))
        if self.resume and not there:
            raise ConfigError(f"--resume: there is no checkpoint in {self.checkpoints}")
        if there and self.checkpoint_every and not self.resume:
            raise ConfigError(
                f"{self.checkpoints} has checkpoints of an earlier run: go on from them with --resume, or "
                "give another folder"
            )
