"""Where a recorded log comes from: a run's folder, a file, or the stream of a job that runs.

What lives here: the argument that several commands share, and reading whatever it names into memory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from trainmover.cli.access import Access, find
from trainmover.errors import ConfigError, DecodeError
from trainmover.events.log import Record
from trainmover.machine.rundir import RunDir

SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="A run's folder, a log file, or the address of a bus (nats://host:4222, with --job)."
        " Default: the run going on here.",
    ),
]


def read_source(source: str | None, bus: str | None, job: str | None) -> list[Record]:
    """The log that a command is asked to look at.

    Raises:
        ConfigError: there is no such log, or it is damaged.
        BusError: the bus does not answer, or has no such job.
    """
    if source is not None and "://" in source:
        return asyncio.run(_stream(find(source, job)))
    if source is None:
        return asyncio.run(_stream(find(bus, job)))
    return _files(Path(source), job)


def log_file(source: str | None) -> Path | None:
    """The log file that a source means; None when it is none, or has to be read out of a server first."""
    if source is None or "://" in source:
        return None
    path = Path(source)
    file = RunDir(path).events if path.is_dir() else path
    return file if file.is_file() else None


def _files(path: Path, job: str | None) -> list[Record]:
    from trainmover.events.log import read_log, read_store

    run = RunDir(path)
    file = run.events if path.is_dir() else path
    try:
        if file.is_file():
            return read_log(file)
        if path.is_dir() and (jobs := _stored(run)):
            # The run was killed before it could write its log; the server's store is still there.
            if job is None and len(jobs) > 1:
                raise ConfigError(f"{path} holds the logs of {', '.join(jobs)}: say which with --job")
            return asyncio.run(read_store(run.bus / "store", job or jobs[0]))
    except DecodeError as error:
        raise ConfigError(str(error)) from None
    raise ConfigError(f"there is no event log at {file}")


def _stored(run: RunDir) -> list[str]:
    prefix = "TRAINMOVER_"
    names = (path.name for path in (run.bus / "store").glob(f"jetstream/*/streams/{prefix}*"))
    return sorted(name.removeprefix(prefix) for name in names)


async def _stream(access: Access) -> list[Record]:
    from trainmover.events.log import read_stream
    from trainmover.events.nats_bus import NatsBus

    bus = await NatsBus.connect(access.bus, access.job, "replay", create=False)
    try:
        return await read_stream(bus)
    finally:
        await bus.close()
