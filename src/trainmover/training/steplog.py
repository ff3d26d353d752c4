"""The step log: one JSON line per fact that this rank saw, written at once.

A run's report is made from these files: they survive what the bus may lose, and a rank that dies
has already written all it committed.  Where a line cannot be written (the disk is full), training does not
end for it: the line is kept, and written before the next one that can be.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import time
from pathlib import Path
from typing import Any

from trainmover import clock

log = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
AGAIN_SECONDS = 0.2
MOST_BYTES = 16 << 20
"""Lines that could not be written are kept up to this size; then the oldest are lost."""


class StepLog:
    """Append-only facts of one rank process, under ``RUN_DIR/steps``."""

    def __init__(self, run_dir: Path, machine: str, slot: int) -> None:
        self._path = run_dir / "steps" / f"{machine}-{slot}-{os.getpid()}.jsonl"
        self._file = -1
        self._unwritten = bytearray()
        self._failed = False

    def write(self, kind: str, **facts: Any) -> None:
        """Write one fact; ``time`` (unix seconds) is added when the fact has none of its own."""
        facts.setdefault("time", clock.now())
        self._unwritten += json.dumps({"kind": kind, **facts}).encode() + b"\n"
        self._try()

    def finish(self, limit: float = FINISH_SECONDS) -> None:
        """Wait until all is written, at most ``limit`` seconds; what could not be by then is lost."""
        until = time.monotonic() + limit
        while self._unwritten and time.monotonic() < until:
            time.sleep(AGAIN_SECONDS)
            self._try()
        if self._unwritten:
            log.error("%d bytes of facts could not be written into %s", len(self._unwritten), self._path)

    def _try(self) -> None:
        try:
            if self._file < 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            while self._unwritten:
                del self._unwritten[: os.write(self._file, self._unwritten)]
            self._failed = False
        except OSError as error:
            self._keep(error)

    def _keep(self, error: OSError) -> None:
        if not self._failed:
            log.warning("cannot write into %s, facts wait until it can be: %s", self._path, error)
        self._failed = True
        if len(self._unwritten) > MOST_BYTES:
            end = self._unwritten.index(b"\n", len(self._unwritten) - MOST_BYTES)
            del self._unwritten[: end + 1]

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def peak_rss_bytes() -> int:
    """The process's peak resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
