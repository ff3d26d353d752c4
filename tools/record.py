"""Record the incidents in ``events/recordings``: real runs, each with one kind of incident, as event logs.

    python tools/record.py             # those that are missing (a minute each)
    python tools/record.py kill move   # these, anew

A recording is the log of a real ``trainmover run`` of the small example.  What says where it was made
(folders, host names, the interpreter) is replaced by plain words, everywhere and in the same way, so that
it still replays: the services pass such texts on and decide nothing by them.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmover.events.log import Record, read_log, write_log
from trainmover.services import replay

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "events" / "recordings"
LIMIT = 240.0

SCRIPT = (
    *("train_gpt.py", "--layers", "2", "--width", "64", "--context", "32"),
    *("--data-limit", "200000", "--steps"),
)

STEPS = {"move": "600", "shrink": "400"}
"""Steps of a run; 40 unless training must go on until a spare is warm."""

SCRIPTS = {
    "mirror": (
        *("train_gpt_3d.py", "--optimizer", "sharded", "--data-limit", "200000"),
        *("--data-ranks", "3", "--pipe-ranks", "1", "--tensor-ranks", "1", "--steps"),
    )
}
"""Scripts other than the small example, by name of the recording."""

RUNS: dict[str, tuple[str, ...]] = {
    "kill": ("--standbys", "1", "--fault", "kill:machine=1,step=20"),
    "move": ("--standbys", "1", "--fault", "move:machine=2,step=20"),
    "aborted": (
        *("--standbys", "2", "--fault", "kill:machine=1,step=20"),
        *(word for spare in (3, 4) for word in ("--fault", f"kill:machine={spare},step=1,at=prepare")),
    ),
    "held": ("--standbys", "0", "--fault", "kill:machine=1,step=20", "--on-exhausted", "fail"),
    "frozen": ("--standbys", "1", "--fault", "stop:machine=1,step=20"),
    "checkpoint": (
        *("--standbys", "3", "--checkpoint-every", "5"),
        *(word for number in range(3) for word in ("--fault", f"kill:machine={number},step=17")),
    ),
    "shrink": (
        *("--standbys", "1", "--on-exhausted", "shrink"),
        *("--fault", "kill:machine=1,step=20", "--fault", "kill:machine=2,step=21"),
    ),
    "mirror": ("--standbys", "1", "--fault", "kill:machine=1,step=20"),
}
"""What ``trainmover run`` is told, by name of the recording."""


def record(name: str) -> int:
    """Make one recording; the number of its events.

    Raises:
        SystemExit: the run left no log, or one that does not replay.
    """
    with tempfile.TemporaryDirectory(prefix="tm-") as made:
        folder = Path(made) / "run"
        command = [sys.executable, "-m", "trainmover.cli", "run", "--machines", "3", "--seed", "11"]
        script, *told = SCRIPTS.get(name, SCRIPT)
        command += ["--run-dir", str(folder), *RUNS[name], str(ROOT / "examples" / script), *told]
        command += [STEPS.get(name, "40")]
        ended = subprocess.run(
            command, cwd=made, timeout=LIMIT, check=False, capture_output=True, encoding="utf-8"
        )
        log = folder / "events.tmlog"
        if not log.is_file():
            raise SystemExit(f"{name}: the run left no log:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        words = {
            str(folder): "/run",
            made: "/job",
            str(ROOT): "/trainmover",
            sys.executable: "python",
            sys.prefix: "/python",
            socket.gethostname(): "host",
        }
        records = list(plainly(read_log(log), words))
    result = replay([item.envelope for item in records])
    if not result.same:
        raise SystemExit(f"{name} does not replay:\n{result}")
    return write_log(FOLDER / f"{name}.tmlog", records)


def plainly(records: Iterable[Record], words: dict[str, str]) -> Iterable[Record]:
    """The same records with these words replaced in all their texts."""
    for record in records:
        event = record.envelope.event
        told = type(event).model_validate(_replaced(event.model_dump(), words))
        yield Record(record.sequence, replace(record.envelope, event=told))


def _replaced(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in words.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {key: _replaced(inner, words) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(inner, words) for inner in value)
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Record incidents of real runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(RUNS)}")
    names = parser.parse_args(arguments).names
    unknown = sorted(set(names) - set(RUNS))
    if unknown:
        parser.error(f"no recording {', '.join(unknown)}; there are {', '.join(RUNS)}")
    for name in names or [name for name in RUNS if not (FOLDER / f"{name}.tmlog").exists()]:
        print(f"{name}: {record(name)} events", flush=True)


if __name__ == "__main__":
    main()
