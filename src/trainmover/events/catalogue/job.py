"""Events about the job as a whole: what it is, and how it ends."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainmover.events.catalogue.base import MAX_MACHINES, Count, Event, Name, Seconds, Text


class JobSubmitted(Event):
    """The job's description, said once by whoever starts it (``trainmover run``)."""

    type: ClassVar[str] = "job.submitted"

    script: Text
    """Path of the training script on the machines."""
    args: tuple[str, ...] = ()
    """The script's own arguments."""
    cwd: Text
    """Folder in which ranks are started."""
    python: Text
    """Interpreter that runs the script."""
    machines: Annotated[int, Field(ge=1, le=MAX_MACHINES)]
    """Machines that train."""
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)] = 1
    standbys: Annotated[int, Field(ge=0, le=4096)] = 0
    """Warm spare machines to keep."""
    seed: int = 0
    """Seed of everything random in the job."""
    run_dir: Text
    """The run's folder, the same path on all machines."""
    on_exhausted: Literal["hold", "fail", "shrink"] = "hold"
    """What becomes of a job that has lost a machine and has no spare for it: it waits, it fails, or the
    data-parallel replica pauses and the others compute its share."""
    warmup_steps: Annotated[int, Field(ge=1, le=16)] = 2
    """First steps that are recorded, and that a standby warms up with."""
    faults: tuple[str, ...] = ()
    """Faults on purpose, as ``--fault`` takes them."""
    standby_memory: Literal["resident", "sequential"] = "resident"
    """``resident``: a spare keeps the tensors of all roles; ``sequential``: those of one."""
    recordings: Text = ""
    """Folder or fsspec URL of the recordings; empty: in the run's folder."""
    recording_limit_bytes: Count = 2 * 1024**3
    """Most that one rank keeps of its recording, in bytes."""
    checkpoint_every: Count = 0
    """Committed steps from one checkpoint to the next; 0: none are made."""
    checkpoints: Text = ""
    """Folder or fsspec URL of the checkpoints; empty: in the run's folder."""
    checkpoint_keep: Annotated[int, Field(ge=1, le=1024)] = 2
    """How many whole checkpoints stay."""
    state: Literal["mirror", "checkpoint", "none"] = "checkpoint"
    """What becomes of state that no other machine has: it has a mirror on another machine, so that a loss
    costs no step; the job goes back to the newest checkpoint (as where the mirror is lost as well); or it
    ends."""
    warm_limit_seconds: Seconds = 1800.0
    """Longest that a spare may take to be warm in one role."""
    resume: bool = False
    """Go on from the newest checkpoint there, whoever made it."""


class JobHeld(Event):
    """No standby is left: training waits at its boundary until a machine joins (standby)."""

    type: ClassVar[str] = "job.held"

    incident: Name
    reason: Text
    generation: Count = 0
    lost: bool = False
    """No machine has the state any more: with a checkpoint the job goes back to it, in a new generation."""


class JobCompleted(Event):
    """Every rank finished all its steps (switcher)."""

    type: ClassVar[str] = "job.completed"

    steps: Count
    """Committed steps."""
    digest: Text
    """SHA-256 (hex) over parameters and optimizer state: of every rank where all are the same, else over
    the digests of all ranks, by rank."""
    identical: bool
    """True when ranks that had the same state in the first steps ended with the same digest."""


class JobFailed(Event):
    """The job cannot go on; machines end their ranks (any service)."""

    type: ClassVar[str] = "job.failed"

    reason: Text
