"""The folder of a run: where everything is, and who may read it.

RUN_DIR/
  secret          the job's secret, readable by its owner only
  bus/            the embedded server's store and configuration
  logs/           one file per process
  steps/          what each rank did, one JSON line per fact
  recordings/     collective results for the standbys' shadow steps
  events.tmlog    the event log, exported at the end
  report.json  timeline.json  loss.png
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainmover.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths inside one run's folder."""

    path: Path

    @classmethod
    def create(cls, path: Path | None) -> RunDir:
        """Make the folder of a new run; None: a fresh one under ``runs/``.

        Raises:
            ConfigError: the folder holds a run already, or cannot be made.
        """
        if path is None:
            now = datetime.now().astimezone()
            path = Path("runs") / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        run = cls(path.absolute())
        if any(part.exists() for part in (run.bus, run.steps, run.events)):
            raise ConfigError(f"{path} holds a run already: give another --run-dir or remove it")
        try:
            for part in (run.bus, run.logs, run.steps):
                part.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be made: {error}") from None
        return run

    @property
    def bus(self) -> Path:
        """Folder of the embedded server."""
        return self.path / "bus"

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.path / "logs"

    @property
    def steps(self) -> Path:
        """Folder of the ranks' facts."""
        return self.path / "steps"

    @property
    def events(self) -> Path:
        """The exported event log."""
        return self.path / "events.tmlog"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.json"

    @property
    def timeline(self) -> Path:
        """The timeline in Chrome's trace format."""
        return self.path / "timeline.json"

    @property
    def picture(self) -> Path:
        """The loss curve."""
        return self.path / "loss.png"

    def write_secret(self, secret: str) -> None:
        """Keep the job's secret for machines that are added by hand."""
        descriptor = os.open(self.path / "secret", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secret + "\n")
