"""What a job is, as options: the same words and limits in every command that describes one.

What lives here: the options that ``run``, ``demo`` and ``submit`` share, and reading their values.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainmover.errors import ConfigError

RECORDING_LIMIT = "2GiB"


class OnExhausted(StrEnum):
    """What to do when a machine is lost and no standby is left."""

    HOLD = "hold"
    FAIL = "fail"
    SHRINK = "shrink"


class State(StrEnum):
    """What becomes of state that no other machine has."""

    MIRROR = "mirror"
    CHECKPOINT = "checkpoint"
    NONE = "none"


class StandbyMemory(StrEnum):
    """What a standby keeps in memory once it is warm."""

    RESIDENT = "resident"
    SEQUENTIAL = "sequential"


ArgsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", show_default=False, help="Its own arguments.")
]
MachinesOption = Annotated[int, typer.Option(min=1, metavar="N", help="Machines that train.")]
RanksOption = Annotated[int, typer.Option(min=1, max=64, metavar="K", help="Ranks on each machine.")]
StandbysOption = Annotated[int, typer.Option(min=0, metavar="S", help="Warm spare machines to keep.")]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Seed of everything random in the job.")]
OnExhaustedOption = Annotated[
    OnExhausted,
    typer.Option(
        help="When a machine is lost and no standby is left: wait for one, fail, or go on without its "
        "data-parallel replica until there is one (the script must use step.shares())."
    ),
]
StandbyMemoryOption = Annotated[
    StandbyMemory,
    typer.Option(
        help="Tensors that a standby keeps: of all roles that it is warm in, or of the first one only."
    ),
]
WarmLimitOption = Annotated[
    float,
    typer.Option(min=1, metavar="SECONDS", help="Longest that a standby may take to be warm in a role."),
]
RecordingsOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="Folder or fsspec URL for what standbys are warmed with. Default: in the run folder.",
    ),
]
RecordingLimitOption = Annotated[
    str, typer.Option(metavar="SIZE", help="Most that one rank records, for example 512MiB.")
]
WarmupStepsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=16,
        metavar="W",
        help="First steps that are recorded, and that a standby warms up with.",
    ),
]
CheckpointEveryOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Steps from one checkpoint to the next; 0: none.")
]
CheckpointsOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="Folder or fsspec URL of the checkpoints. Default: in the run folder.",
    ),
]
KeepOption = Annotated[int, typer.Option(min=1, metavar="K", help="Checkpoints that stay.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on from the newest whole checkpoint in --checkpoints.")
]
StateOption = Annotated[
    State,
    typer.Option(
        help="State that no other machine has (sharded parameters, optimizers): keep a mirror of it on "
        "another machine, so that a loss costs no step; go back to the last checkpoint; or end the job."
    ),
]

UNITS = {"": 1} | {
    f"{prefix}{suffix}".lower(): base ** (power + 1)
    for power, prefix in enumerate("kmgt")
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}


def bytes_of(text: str) -> int:
    """A size as people write it: a number and perhaps a unit (``512MiB``, ``1.5 GB``, ``4096``).

    Raises:
        ConfigError: it is none.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in UNITS:
        raise ConfigError(f"{text!r} is no size; give a number and a unit, for example 512MiB or 4GB")
    return int(float(found[1]) * UNITS[found[2]])


def place_of(place: str | None) -> str:
    """A URL as it is, a folder as an absolute path; empty for the default place."""
    if not place or "://" in place:
        return place or ""
    return str(Path(place).absolute())
