"""A recording on disk: the results of one rank's collective calls, phase by phase.

A folder with one safetensors file per phase (phase 0 is everything before the first step, phase k
the k-th step with what follows it up to the next boundary) and ``index.json``, written last, which
makes the recording whole: without it the folder does not count.  Nothing in it is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainmover.errors import JobError

INDEX = "index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One call: which group, which collective, what had to match, how many result tensors."""

    group: str
    name: str
    detail: str
    outputs: int


@dataclass(frozen=True, slots=True)
class Phase:
    """The calls of one phase, in order, with their results flattened in the same order."""

    entries: tuple[Entry, ...]
    tensors: tuple[torch.Tensor, ...]


def write_phase(folder: Path, number: int, phase: Phase) -> dict[str, object]:
    """Write one phase; returns its index record."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"phase-{number}.safetensors"
    aside = path.with_suffix(".part")
    save_file({f"{i:06d}": tensor for i, tensor in enumerate(phase.tensors)}, aside)
    digest = hashlib.sha256(aside.read_bytes()).hexdigest()
    os.replace(aside, path)
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": digest,
        "entries": [asdict(entry) for entry in phase.entries],
    }


def write_index(folder: Path, records: Sequence[dict[str, object]]) -> int:
    """Make the recording whole; returns its size in bytes."""
    aside = folder / (INDEX + ".part")
    aside.write_text(json.dumps({"format": FORMAT, "phases": list(records)}), encoding="utf-8")
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, folder / INDEX)
    return sum(path.stat().st_size for path in folder.iterdir())


def read(folder: Path) -> list[Phase]:
    """Load a whole recording.

    Raises:
        JobError: it is missing, not whole, or a file is not what its checksum says.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"no whole recording in {folder}: {error}") from error
    found = index.get("format") if isinstance(index, dict) else None
    if found != FORMAT:
        raise JobError(f"the recording in {folder} has format {found}, this version reads {FORMAT}")
    try:
        return [_read_phase(folder, record) for record in index["phases"]]
    except OSError as error:
        raise JobError(f"no whole recording in {folder}: {error}") from error
    except (KeyError, TypeError) as error:
        raise JobError(f"{folder / INDEX} is damaged: {error!r}") from error


def _read_phase(folder: Path, record: dict[str, Any]) -> Phase:
    path = folder / Path(record["file"]).name
    if hashlib.sha256(path.read_bytes()).hexdigest() != record["sha256"]:
        raise JobError(f"{path} is damaged: its checksum is not the index's")
    tensors = load_file(path)
    entries = tuple(Entry(**entry) for entry in record["entries"])
    if sum(entry.outputs for entry in entries) != len(tensors):
        raise JobError(f"{path} is damaged: it has {len(tensors)} tensors, not those of the index's entries")
    return Phase(entries, tuple(tensors[key] for key in sorted(tensors)))
