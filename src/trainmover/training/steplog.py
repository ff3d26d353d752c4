"""The step log: one JSON line per fact that this rank saw, flushed at once.

A run's report is made from these files: they survive what the bus may lose, and a rank that dies
has already written all it committed.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any, TextIO


class StepLog:
    """Append-only facts of one rank process, under ``RUN_DIR/steps``."""

    def __init__(self, run_dir: Path, machine: str, slot: int) -> None:
        folder = run_dir / "steps"
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"{machine}-{slot}-{os.getpid()}.jsonl").open("a", encoding="utf-8")

    def write(self, kind: str, **facts: Any) -> None:
        """Write one fact; ``time`` (unix seconds) is added when the fact has none of its own."""
        facts.setdefault("time", time.time())
        self._file.write(json.dumps({"kind": kind, **facts}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def peak_rss_bytes() -> int:
    """The process's peak resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
