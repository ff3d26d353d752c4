"""The environment of a rank: torchrun's names, and TrainMover's own.

What lives here: pure functions from the job's description and a launch (or warm-up) to the
variables each rank process gets.  A training script reads torchrun's names (see "Environment
Variables" of ``torchrun`` in the PyTorch documentation); everything that starts with
``TRAINMOVER_`` is for the training side of this package.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmover.events.catalogue import JobSubmitted, MachineLaunch, StandbyWarm
from trainmover.faults import faults_of


@dataclass(frozen=True, slots=True)
class Seat:
    """What a rank process needs to know of the machine that starts it.

    Attributes:
        job: name of the job.
        machine: name of the machine.
        incarnation: this life of the machine program.
        host: address on which ranks listen for links.
        socket: path of the unix socket on which ranks talk to the machine program.
        secret: the job's secret, hex; authenticates links.
        port: a free port, for scripts that insist on MASTER_PORT; nothing of ours uses it.
        pid: process id of the machine program, the leader of its process group.
        link_tls: folder with the certificate for links; empty: links are not encrypted.
    """

    job: str
    machine: str
    incarnation: str
    host: str
    socket: str
    secret: str
    port: int
    pid: int
    link_tls: str = ""


def live(seat: Seat, job: JobSubmitted, launch: MachineLaunch) -> list[dict[str, str]]:
    """Variables of the live ranks of a launch, by slot."""
    return [
        _common(seat, job, launch.position, slot, launch.world_size, launch.ranks_per_machine)
        | {
            "TRAINMOVER_MODE": "live",
            "TRAINMOVER_GENERATION": str(launch.generation),
            "TRAINMOVER_RECORD": "1" if launch.record else "0",
        }
        for slot in range(launch.ranks_per_machine)
    ]


def sandbox(seat: Seat, job: JobSubmitted, warm: StandbyWarm) -> list[dict[str, str]]:
    """Variables of the sandbox ranks of a warm-up, by slot; each takes the role of its recording."""
    return [
        _common(seat, job, position, slot, warm.world_size, warm.ranks_per_machine)
        | {
            "TRAINMOVER_MODE": "sandbox",
            "TRAINMOVER_GENERATION": str(warm.generation),
            "TRAINMOVER_RECORD": "0",
            "TRAINMOVER_RECORDING": recording,
            "TRAINMOVER_ROLE": warm.role,
            "TRAINMOVER_PARK": warm.memory,
        }
        for slot, (recording, position) in enumerate(zip(warm.recordings, warm.positions, strict=True))
    ]


def complete(own: Mapping[str, str], inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a rank: what the machine program has, then the rank's own variables."""
    inherited = os.environ if inherited is None else inherited
    # Ranks share a machine's cores; one thread each unless the user says otherwise, as torchrun does.
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return defaults | dict(inherited) | dict(own)


def free_port(host: str) -> int:
    """A port that nobody has now, for MASTER_PORT."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            # The address is that of a gateway in front of this computer.
            probe.bind(("", 0))
        return int(probe.getsockname()[1])


def checkpoints_of(job: JobSubmitted) -> str:
    """Where a job's checkpoints are; empty when it neither makes nor needs any."""
    if not job.checkpoint_every and not job.resume:
        return ""
    return job.checkpoints or str(Path(job.run_dir) / "checkpoints")


def _common(
    seat: Seat, job: JobSubmitted, position: int, slot: int, world_size: int, ranks_per_machine: int
) -> dict[str, str]:
    rank = position * ranks_per_machine + slot
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(slot),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(ranks_per_machine),
        "GROUP_RANK": str(position),
        "GROUP_WORLD_SIZE": str(world_size // ranks_per_machine),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": seat.host,
        "MASTER_PORT": str(seat.port),
        "TRAINMOVER_SOCKET": seat.socket,
        "TRAINMOVER_JOB": seat.job,
        "TRAINMOVER_MACHINE": seat.machine,
        "TRAINMOVER_INCARNATION": seat.incarnation,
        "TRAINMOVER_MACHINE_PID": str(seat.pid),
        "TRAINMOVER_HOST": seat.host,
        "TRAINMOVER_SECRET": seat.secret,
        "TRAINMOVER_LINK_TLS": seat.link_tls,
        "TRAINMOVER_SEED": str(job.seed),
        "TRAINMOVER_RUN_DIR": job.run_dir,
        "TRAINMOVER_RANKS_PER_MACHINE": str(ranks_per_machine),
        "TRAINMOVER_WARMUP_STEPS": str(job.warmup_steps),
        "TRAINMOVER_RECORDINGS": job.recordings or str(Path(job.run_dir) / "recordings"),
        "TRAINMOVER_RECORDING_LIMIT": str(job.recording_limit_bytes),
        "TRAINMOVER_CHECKPOINT_EVERY": str(job.checkpoint_every),
        "TRAINMOVER_CHECKPOINTS": checkpoints_of(job),
        "TRAINMOVER_CHECKPOINT_KEEP": str(job.checkpoint_keep),
        "TRAINMOVER_STATE": job.state,
        "TRAINMOVER_RESUME": "1" if job.resume else "0",
        "TRAINMOVER_FAULTS": ";".join(str(spec) for spec in faults_of(seat.machine, job.faults)),
    }
