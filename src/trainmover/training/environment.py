"""What a rank process is told by its machine, read once from the environment.

Names with ``TRAINMOVER_`` are ours; the others are torchrun's, so that a script finds what it
expects.  Without ``TRAINMOVER_SOCKET`` the script runs without TrainMover (torchrun, plain
python) and :func:`read` returns None.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmover.errors import ConfigError
from trainmover.faults import FaultSpec

RECORDING_LIMIT = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Environment:
    """A rank's place in the job.

    Attributes:
        mode: ``live``, or ``sandbox`` on a standby that warms up.
        generation: counts the job's starts from nothing.
        record: whether this rank records its collective results for standbys.
        recordings: folder or URL for recordings; empty: in the run's folder.
        recording_limit: most bytes of results that this rank keeps for its recording.
        recording: folder or URL of the recording that a sandbox plays.
        role: machine role that a sandbox is warmed for; empty on a live rank.
        park: what a sandbox that is warm does with the memory of its tensors, ``resident`` or ``released``.
        secret: the job's secret for the links' handshake.
        checkpoint_every: committed steps from one checkpoint to the next; 0: none are made.
        checkpoints: folder or URL of the checkpoints; empty: none are made or looked for.
        checkpoint_keep: how many whole ones stay.
        resume: a checkpoint of another job counts, and there must be one.
        state: what becomes of state that no other machine has: ``mirror``, ``checkpoint`` or ``none``.
    """

    socket: str
    job: str
    machine: str
    incarnation: str
    slot: int
    rank: int
    world_size: int
    ranks_per_machine: int
    mode: str
    generation: int
    run_dir: Path
    secret: bytes
    host: str
    record: bool
    recording: str
    warmup_steps: int
    faults: tuple[FaultSpec, ...]
    recordings: str = ""
    recording_limit: int = RECORDING_LIMIT
    role: str = ""
    park: str = "resident"
    checkpoint_every: int = 0
    checkpoints: str = ""
    checkpoint_keep: int = 2
    resume: bool = False
    link_tls: str = ""
    state: str = "mirror"


def read(environ: Mapping[str, str] | None = None) -> Environment | None:
    """The environment of a rank under TrainMover, or None outside it.

    Raises:
        ConfigError: a variable is missing or malformed.
    """
    env = os.environ if environ is None else environ
    if "TRAINMOVER_SOCKET" not in env:
        return None
    try:
        park = env.get("TRAINMOVER_PARK") or "resident"
        if park not in ("resident", "released"):
            raise ValueError(f"TRAINMOVER_PARK is {park!r}; it can be resident or released")
        specs = [text for text in env.get("TRAINMOVER_FAULTS", "").split(";") if text]
        return Environment(
            socket=env["TRAINMOVER_SOCKET"],
            job=env["TRAINMOVER_JOB"],
            machine=env["TRAINMOVER_MACHINE"],
            incarnation=env["TRAINMOVER_INCARNATION"],
            slot=int(env["LOCAL_RANK"]),
            rank=int(env["RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            ranks_per_machine=int(env["TRAINMOVER_RANKS_PER_MACHINE"]),
            mode=env["TRAINMOVER_MODE"],
            generation=int(env["TRAINMOVER_GENERATION"]),
            run_dir=Path(env["TRAINMOVER_RUN_DIR"]),
            secret=bytes.fromhex(env["TRAINMOVER_SECRET"]),
            host=env.get("TRAINMOVER_HOST", "127.0.0.1"),
            record=env.get("TRAINMOVER_RECORD", "0") == "1",
            recording=env.get("TRAINMOVER_RECORDING", ""),
            warmup_steps=int(env.get("TRAINMOVER_WARMUP_STEPS", "2")),
            faults=tuple(FaultSpec.parse(text) for text in specs),
            recordings=env.get("TRAINMOVER_RECORDINGS", ""),
            recording_limit=int(env.get("TRAINMOVER_RECORDING_LIMIT") or RECORDING_LIMIT),
            role=env.get("TRAINMOVER_ROLE", ""),
            park=park,
            checkpoint_every=int(env.get("TRAINMOVER_CHECKPOINT_EVERY") or 0),
            checkpoints=env.get("TRAINMOVER_CHECKPOINTS", ""),
            checkpoint_keep=int(env.get("TRAINMOVER_CHECKPOINT_KEEP") or 2),
            resume=env.get("TRAINMOVER_RESUME", "0") == "1",
            link_tls=env.get("TRAINMOVER_LINK_TLS", ""),
            state=env.get("TRAINMOVER_STATE") or "mirror",
        )
    except KeyError as error:
        raise ConfigError(
            f"the environment of a rank lacks {error}; start scripts with `trainmover run`"
        ) from None
    except ValueError as error:
        raise ConfigError(f"the environment of a rank is malformed: {error}") from error
