"""``trainmover submit`` and ``trainmover wait``: a job on machines that something else has started.

``trainmover run`` starts machines and says what the job is.  Where a scheduler starts the machines
(containers, Slurm), saying it is all that is left to do: ``submit`` does it, once, however often it
is called; ``wait`` stays until the job has ended and keeps its log and report.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trainmover.cli.access import BusOption, JobOption, find
from trainmover.cli.options import (
    RECORDING_LIMIT,
    ArgsArgument,
    CheckpointEveryOption,
    CheckpointsOption,
    KeepOption,
    MachinesOption,
    OnExhausted,
    OnExhaustedOption,
    RanksOption,
    RecordingLimitOption,
    RecordingsOption,
    ResumeOption,
    SeedOption,
    StandbyMemory,
    StandbyMemoryOption,
    StandbysOption,
    State,
    StateOption,
    WarmLimitOption,
    WarmupStepsOption,
    bytes_of,
    place_of,
)
from trainmover.cli.run import write_results
from trainmover.errors import BusError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import Record, read_stream, write_log
from trainmover.events.nats_bus import NatsBus
from trainmover.machine.runconfig import check_job
from trainmover.machine.rundir import RunDir

START_SECONDS = 30.0
FLUSH_SECONDS = 10.0


def submit(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", show_default=False, help="Path on the machines.")
    ],
    args: ArgsArgument = None,
    machines: MachinesOption = 1,
    ranks_per_machine: RanksOption = 1,
    standbys: StandbysOption = 0,
    run_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A folder that all machines share, under the same path on each."),
    ] = Path("runs"),
    seed: SeedOption = 0,
    cwd: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="Default: this folder.")
    ] = None,
    python: Annotated[
        str, typer.Option(metavar="PATH", show_default=False, help="Interpreter. Default: this one.")
    ] = sys.executable,
    on_exhausted: OnExhaustedOption = OnExhausted.HOLD,
    standby_memory: StandbyMemoryOption = StandbyMemory.RESIDENT,
    warm_limit: WarmLimitOption = 1800.0,
    recordings: RecordingsOption = None,
    recording_limit: RecordingLimitOption = RECORDING_LIMIT,
    warmup_steps: WarmupStepsOption = 2,
    checkpoint_every: CheckpointEveryOption = 0,
    checkpoints: CheckpointsOption = None,
    keep: KeepOption = 2,
    resume: ResumeOption = False,
    state: StateOption = State.MIRROR,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Say what a job is, on a bus where services and machines wait for it.

    A second time is nothing: the job goes on.  Exit codes: 0 submitted, or it was before; 1 not.
    """
    access = find(bus, job)
    description = say.JobSubmitted(
        script=str(script),
        args=tuple(args or ()),
        cwd=str(cwd or Path.cwd()),
        python=python,
        machines=machines,
        ranks_per_machine=ranks_per_machine,
        standbys=standbys,
        seed=seed,
        run_dir=str(run_dir.absolute()),
        on_exhausted=on_exhausted.value,
        standby_memory=standby_memory.value,
        warm_limit_seconds=warm_limit,
        recordings=place_of(recordings),
        recording_limit_bytes=bytes_of(recording_limit),
        warmup_steps=warmup_steps,
        checkpoint_every=checkpoint_every,
        checkpoints=place_of(checkpoints),
        checkpoint_keep=keep,
        resume=resume,
        state=state.value,
    )
    check_job(description)
    print(asyncio.run(_submit(access.bus, access.job, description)))


def wait(
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default=False, help="The job's run folder: keep log and report there."
        ),
    ] = None,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Wait until a job has ended.

    Exit codes: 0 it completed; 1 it failed.
    """
    access = find(bus, job)
    raise typer.Exit(asyncio.run(_wait(access.bus, access.job, run_dir)))


async def _submit(url: str, job: str, description: say.JobSubmitted) -> str:
    bus = await NatsBus.connect(url, job, "submit", limit=START_SECONDS)
    try:
        past = await (await bus.feed(("job",), history=True)).past(START_SECONDS)
        for envelope in past:
            if isinstance(envelope.event, say.JobCompleted | say.JobFailed):
                return (
                    f"job {job} has ended before ({envelope.event.type}); for a new one take another name"
                    " (TRAINMOVER_JOB) or an empty log"
                )
        for envelope in past:
            if isinstance(envelope.event, say.JobSubmitted):
                same = envelope.event == description
                return f"job {job} goes on" + ("" if same else ", as it was described the first time")
        # The same words of two callers are one: the log keeps the first of an id.
        identity = f"submit-{hashlib.sha256(description.model_dump_json().encode()).hexdigest()[:20]}"
        await bus.publish(
            Envelope(id=identity, source="submit", time=time.time(), job=job, event=description)
        )
        await bus.flush(FLUSH_SECONDS)
        return f"job {job} is submitted: {description.machines} machines, {description.standbys} standbys"
    finally:
        await bus.close()


async def _wait(url: str, job: str, run_dir: Path | None) -> int:
    bus = await NatsBus.connect(url, job, "wait", create=False, limit=START_SECONDS)
    try:
        async for envelope in await bus.feed(("job",), history=True):
            match envelope.event:
                case say.JobCompleted(steps=steps, digest=digest):
                    print(f"job {job} completed {steps} steps, digest {digest}")
                    _keep(await _log_with(bus, envelope.id), run_dir)
                    return 0
                case say.JobFailed(reason=reason):
                    print(f"trainmover: job {job} failed: {reason}", file=sys.stderr)
                    _keep(await _log_with(bus, envelope.id), run_dir)
                    return 1
                case _:
                    pass
        raise BusError("the feed of the bus ended")
    finally:
        await bus.close()


async def _log_with(bus: NatsBus, identity: str) -> list[Record]:
    """The log, once it has this event: one is heard before it is kept."""
    deadline = asyncio.get_running_loop().time() + FLUSH_SECONDS
    while True:
        records = await read_stream(bus)
        there = any(record.envelope.id == identity for record in records)
        if there or asyncio.get_running_loop().time() > deadline:
            return records
        await asyncio.sleep(0.1)


def _keep(records: list[Record], run_dir: Path | None) -> None:
    """The log and what is made of it; a folder that cannot be written is told and no failure of the job."""
    if run_dir is None:
        return
    try:
        os.makedirs(run_dir, exist_ok=True)
        run = RunDir(run_dir.absolute())
        write_log(run.events, records)
        write_results(run, None, picture=False)
    except OSError as error:
        print(f"trainmover: log and report were not written: {error}", file=sys.stderr)
