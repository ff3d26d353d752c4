"""``trainmover events``: follow, export and replay the log of a job; ``trainmover decode``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmover.cli.access import Access, BusOption, JobOption, find
from trainmover.errors import ConfigError, DecodeError
from trainmover.events.catalogue import AREAS
from trainmover.events.envelope import Envelope, format_time
from trainmover.monitor.facts import line

INNER = frozenset({"journal", "timer"})
"""Areas that only services need."""

events = typer.Typer(no_args_is_help=True, help="Follow, export and replay the event log of a job.")


@events.command()
def tail(
    area: Annotated[
        list[str] | None,
        typer.Argument(metavar="AREA", show_default=False, help=f"Some of: {', '.join(AREAS)}."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The services' own events (journal, timer), too.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Only what is said from now on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Print the events of a job, the past first, then as they are said. Ends with the job."""
    unknown = sorted(set(area or ()) - set(AREAS))
    if unknown:
        raise ConfigError(f"no area {', '.join(unknown)}; there are {', '.join(AREAS)}")
    areas = area or [name for name in AREAS if everything or name not in INNER]
    asyncio.run(_tail(find(bus, job), areas, new=new, as_json=as_json))


@events.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="Where to write it.")],
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="A run that has ended, by its folder."),
    ] = None,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Write the log of a job into one file that needs no server to read."""
    from trainmover.events.log import read_log, write_log

    if run_dir is not None:
        count = write_log(file, read_log(log_of(run_dir)))
    else:
        count = asyncio.run(_export(find(bus, job), file))
    print(f"{count} events in {file}")


@events.command()
def replay(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_DIR|FILE", show_default=False, help="A run's folder or a log file.")
    ],
    until: Annotated[
        str | None,
        typer.Option(metavar="ID|TIME", show_default=False, help="Stop after this event or unix time."),
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default=False, help="Only this service; may be given many times."),
    ] = None,
    incident: Annotated[
        str | None,
        typer.Option(metavar="ID", show_default=False, help="Only differences of this incident."),
    ] = None,
) -> None:
    """Run a recorded log through fresh services and show what they would decide differently.

    Exit codes: 0 the same decisions; 1 differences.
    """
    from trainmover.events.log import read_log
    from trainmover.services import replay as replay_log

    try:
        records = read_log(log_of(source))
    except DecodeError as error:
        raise ConfigError(str(error)) from None
    result = replay_log(
        [record.envelope for record in records],
        service=service or None,
        until=_moment(until),
        incident=incident,
    )
    print(result)
    raise typer.Exit(0 if result.same else 1)


def decode() -> None:
    """Turn one msgpack message on stdin into JSON, for nats sub --translate "trainmover decode"."""
    from trainmover.events.codec import MAX_BODY, unpack

    body = sys.stdin.buffer.read(MAX_BODY + 1)
    try:
        value = unpack(body, "the message on stdin", MAX_BODY)
    except DecodeError as error:
        print(f"trainmover: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(json.dumps(value, default=_plain, ensure_ascii=False))


def log_of(source: Path) -> Path:
    """The log file that a path means.

    Raises:
        ConfigError: there is none.
    """
    path = source / "events.tmlog" if source.is_dir() else source
    if not path.is_file():
        raise ConfigError(f"there is no event log at {path}")
    return path


def as_json_line(envelope: Envelope) -> str:
    """An envelope as one line of JSON."""
    return json.dumps(
        {
            "id": envelope.id,
            "type": envelope.type,
            "source": envelope.source,
            "time": format_time(envelope.time),
            "job": envelope.job,
            "incident": envelope.incident,
            "cause": envelope.cause,
            "data": envelope.event.model_dump(mode="json"),
        }
    )


async def _tail(access: Access, areas: Sequence[str], *, new: bool, as_json: bool) -> None:
    from trainmover.events.nats_bus import NatsBus

    bus = await NatsBus.connect(access.bus, access.job, "tail", create=False)
    try:
        # The end of the job is listened for even when its area is not asked for.
        feed = await bus.feed(sorted({*areas, "job"}), history=not new)
        async for envelope in feed:
            if envelope.type.split(".")[0] in areas:
                print(as_json_line(envelope) if as_json else line(envelope), flush=True)
            if envelope.type in ("job.completed", "job.failed"):
                return
    except asyncio.CancelledError:
        return  # Ctrl-C is how one stops to look
    finally:
        await bus.close()


async def _export(access: Access, file: Path) -> int:
    from trainmover.events.log import read_stream, write_log
    from trainmover.events.nats_bus import NatsBus

    bus = await NatsBus.connect(access.bus, access.job, "export", create=False)
    try:
        return write_log(file, await read_stream(bus))
    finally:
        await bus.close()


def _moment(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
