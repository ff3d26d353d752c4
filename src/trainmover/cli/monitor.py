"""``trainmover monitor``: a job in the browser, as it goes or when it is over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from trainmover import logs
from trainmover.cli.access import BusOption, JobOption, find
from trainmover.errors import ConfigError
from trainmover.machine import registry
from trainmover.machine.rundir import RunDir

if TYPE_CHECKING:
    from trainmover.monitor.program import Source

PORT = 8478
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def monitor(
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE", show_default=False, help="A run by its folder, or an exported event log."
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any that is free.")
    ] = PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="A further name that it may be asked by, for example behind a proxy; *: any.",
        ),
    ] = None,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Serve a dashboard, /metrics for Prometheus, and traces of incidents (OTEL_* variables).

    It only reads: it may be started, killed and started again at any time. Whoever can reach its address
    can read it, so it listens on this computer only unless --host says otherwise.
    """
    try:
        from trainmover.monitor.program import Place, serve
    except ImportError as error:
        raise ConfigError(f"the monitor needs {error.name}: pip install 'trainmover[monitor]'") from None

    logs.start()
    source = source_of(run, bus, job)
    logs.bind(service="monitor", **({"job": source.job} if source.job else {}))
    if host not in LOOPBACK:
        logs.get("trainmover.monitor").warning(
            "everybody who reaches this address can read the job", host=host
        )

    def started(url: str) -> None:
        print(f"the monitor is at {url} (Ctrl-C ends it)", flush=True)

    uvloop.run(serve(source, Place(host, port, tuple(allow_host or ())), started))


def source_of(run: Path | None, bus: str | None, job: str | None) -> Source:
    """What is meant: a finished run, a run that goes on in a folder, or a job on a bus.

    Raises:
        ConfigError: there is no such thing.
    """
    from trainmover.monitor.program import Source

    if run is None:
        access = find(bus, job)
        return Source(bus=access.bus, job=access.job, steps=_steps_of(access.job))
    if run.is_file():
        steps = RunDir(run.absolute().parent).steps
        return Source(log=run, steps=steps if steps.is_dir() else None)
    folder = RunDir(run.absolute())
    if folder.events.is_file():
        return Source(log=folder.events, steps=folder.steps)
    for entry in registry.runs():
        if Path(entry.run_dir) == folder.path:
            return Source(bus=entry.bus, job=entry.job, steps=folder.steps)
    raise ConfigError(f"{run} is no run: it has no {folder.events.name}, and none goes on in it")


def _steps_of(job: str) -> Path | None:
    """Where the ranks of a run on this computer write their steps down."""
    try:
        return RunDir(Path(registry.find(job).run_dir)).steps
    except ConfigError:
        return None
