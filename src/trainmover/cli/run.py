"""``trainmover run`` and ``trainmover demo``: a job on this computer, from start to report.

What lives here: the commands, and what is written when the run is over.  The work is done by
``machine.supervisor``; the figures come from ``monitor.report``.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainmover import logs
from trainmover.cli.display import display_for
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
from trainmover.cli.tables import report_group
from trainmover.errors import ConfigError, DecodeError
from trainmover.faults import POINTS, FaultSpec
from trainmover.machine.rundir import RunDir
from trainmover.monitor.report import Report, build_report
from trainmover.monitor.steps import read_steps
from trainmover.monitor.timeline import build_timeline

EXAMPLE = "train_gpt.py"
DEMO_STEPS, FAST_STEPS = 100, 160
"""So many that a standby is warm when it is needed; the fast model's steps are much shorter."""


RunDirOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", show_default=False, help="Folder of the run. Default: a new one in runs/."),
]


def run(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", show_default=False, help="The training script.")
    ],
    args: ArgsArgument = None,
    machines: MachinesOption = 1,
    ranks_per_machine: RanksOption = 1,
    standbys: StandbysOption = 0,
    run_dir: RunDirOption = None,
    bus: Annotated[
        str | None,
        typer.Option(
            metavar="URL", show_default=False, help="A running NATS server. Default: an embedded one."
        ),
    ] = None,
    seed: SeedOption = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            show_default=False,
            help="Something that goes wrong at an exact step; may be given many times. "
            "kill:machine=1,step=20  move:machine=2,step=40  stop:machine=0,step=30[,seconds=8]  "
            "slow:machine=1,step=30,factor=3  kill:machine=1,step=20,at=POINT[,nth=2][,slot=1]: "
            f"kill and stop may hit at any point of a step or a switch: {', '.join(POINTS)} "
            "(docs/how-to/faults.md).",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write report.json here as well."),
    ] = None,
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
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt bus and links, with an account for every program.")
    ] = False,
    state: StateOption = State.MIRROR,
) -> None:
    """Run a training script on machines of this computer, with standbys that take over.

    Options come before SCRIPT; what follows it is the script's. Exit codes: 0 completed, 1 the job
    failed, 2 it could not be started as asked, 130 Ctrl-C.
    """
    from trainmover.machine.supervisor import RunConfig

    config = RunConfig(
        script=script,
        args=tuple(args or ()),
        machines=machines,
        ranks_per_machine=ranks_per_machine,
        standbys=standbys,
        seed=seed,
        faults=tuple(FaultSpec.parse(text) for text in fault or ()),
        on_exhausted=on_exhausted.value,
        bus=bus,
        standby_memory=standby_memory.value,
        recordings=place_of(recordings),
        recording_limit_bytes=bytes_of(recording_limit),
        warmup_steps=warmup_steps,
        checkpoint_every=checkpoint_every,
        checkpoints=place_of(checkpoints),
        checkpoint_keep=keep,
        warm_limit_seconds=warm_limit,
        resume=resume,
        tls=tls,
        state=state.value,
    )
    raise typer.Exit(_drive(config, run_dir, report, picture=False))


def demo(
    steps: Annotated[
        int | None,
        typer.Option(min=12, metavar="N", show_default=False, help=f"Training steps. Default: {DEMO_STEPS}."),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A much smaller model: well under a minute.")] = False,
    machines: MachinesOption = 3,
    ranks_per_machine: RanksOption = 1,
    standbys: StandbysOption = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            show_default=False,
            help="Text to train on, a file or a folder. Default: Python's standard library.",
        ),
    ] = None,
    run_dir: RunDirOption = None,
    seed: SeedOption = 0,
) -> None:
    """Train a small GPT; kill one machine in the middle, move another away, and report.

    Writes a folder with report.json, loss.png, timeline.json (open it in https://ui.perfetto.dev),
    events.tmlog and one log file per process.
    """
    from trainmover.machine.supervisor import RunConfig

    if machines < 2:
        raise ConfigError("the demo kills one machine and moves another: give --machines 2 or more")
    steps = steps or (FAST_STEPS if fast else DEMO_STEPS)
    script_args = ["--steps", str(steps)]
    if fast:
        script_args += ["--layers", "2", "--width", "128"]
    if data is not None:
        script_args += ["--data", str(data.absolute())]
    # Late enough for the first standby to be warm, and the second one to be warm again.
    faults = (
        FaultSpec("kill", "m1", steps * 2 // 5),
        FaultSpec("move", "m2" if machines > 2 else "m0", steps * 3 // 4),
    )
    config = RunConfig(
        script=example_script(),
        args=tuple(script_args),
        machines=machines,
        ranks_per_machine=ranks_per_machine,
        standbys=standbys,
        seed=seed,
        faults=faults,
    )
    raise typer.Exit(_drive(config, run_dir, None, picture=True))


def example_script() -> Path:
    """The demo's script: packaged with an installed TrainMover, else that of the source tree.

    Raises:
        ConfigError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "examples" / EXAMPLE, package.parents[1] / "examples" / EXAMPLE)
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(f"the example {EXAMPLE} is in none of {', '.join(map(str, places))}")


def _drive(config: object, folder: Path | None, report_file: Path | None, *, picture: bool) -> int:
    from trainmover.machine.supervisor import LocalRun, RunConfig

    assert isinstance(config, RunConfig)
    config.check()
    logs.start()
    run_dir = RunDir.create(folder)
    console = Console(stderr=False)
    errors = Console(stderr=True)
    console.print(f"run folder {_shown(run_dir.path)}", highlight=False, soft_wrap=True)
    with display_for(console) as display:

        async def live() -> tuple[int, str]:
            local = LocalRun(config, run_dir, display.observe, display.notice)
            return await local.run(), local.failure

        code, failure = asyncio.run(live())
    if run_dir.events.is_file():
        report = write_results(run_dir, report_file, picture=picture, console=console)
        if code == 0 or report.losses:
            console.print(report_group(report), soft_wrap=True)
    if code != 0:
        errors.print(f"trainmover: {failure}", style="bold red", markup=False, highlight=False)
        errors.print(f"logs are in {_shown(run_dir.logs)}", highlight=False, soft_wrap=True)
    return code


def write_results(
    run_dir: RunDir, report_file: Path | None, *, picture: bool, console: Console | None = None
) -> Report:
    """Make report, timeline and picture from what a run left behind."""
    from trainmover.events.copies import opened
    from trainmover.events.log import read_log

    try:
        envelopes = opened(record.envelope for record in read_log(run_dir.events))
    except DecodeError as error:
        raise ConfigError(f"no report: {error}") from None
    facts = read_steps(run_dir.steps)
    report = build_report(envelopes, facts)
    text = json.dumps(report.as_json(), indent=2) + "\n"
    run_dir.report.write_text(text, encoding="utf-8")
    run_dir.timeline.write_text(json.dumps(build_timeline(envelopes, facts)), encoding="utf-8")
    if report_file is not None:
        report_file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run_dir.report, report_file)
    if picture:
        from trainmover.monitor.plot import draw_losses

        try:
            draw_losses(report, run_dir.picture)
        except ConfigError as error:
            if console is not None:
                console.print(f"no picture: {error}", style="yellow", markup=False)
    if console is not None:
        written = [path.name for path in (run_dir.report, run_dir.timeline, run_dir.events, run_dir.picture)]
        there = [name for name in written if (run_dir.path / name).is_file()]
        console.print(f"{', '.join(there)} and logs/ are in {_shown(run_dir.path)}", soft_wrap=True)
    return report


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
