"""``trainmover events``: follow and export the log of a job; ``trainmover decode``.

What lives here: the group of commands, and those that read or write messages as they are; ``show`` and
``replay`` are in ``replay``, ``contract`` is in ``contract``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmover.cli import contract, replay
from trainmover.cli.access import Access, BusOption, JobOption, find
from trainmover.cli.chain import envelope_data
from trainmover.cli.replay import INNER
from trainmover.cli.source import SourceArgument, read_source
from trainmover.errors import ConfigError, DecodeError
from trainmover.events.catalogue import AREAS
from trainmover.monitor.facts import line

events = typer.Typer(no_args_is_help=True, help="Follow, export and replay the event log of a job.")


events.command()(replay.show)
events.command()(replay.replay)
events.command()(contract.contract)


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
    source: SourceArgument = None,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Write the log of a job into one file that needs no server to read."""
    from trainmover.events.log import write_log

    count = write_log(file, read_source(source, bus, job))
    print(f"{count} events in {file}")


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


async def _tail(access: Access, areas: Sequence[str], *, new: bool, as_json: bool) -> None:
    from trainmover.events.nats_bus import NatsBus

    bus = await NatsBus.connect(access.bus, access.job, "tail", create=False)
    try:
        # The end of the job is listened for even when its area is not asked for.
        feed = await bus.feed(sorted({*areas, "job"}), history=not new)
        async for envelope in feed:
            if envelope.type.split(".")[0] in areas:
                print(json.dumps(envelope_data(envelope)) if as_json else line(envelope), flush=True)
            if envelope.type in ("job.completed", "job.failed"):
                return
    except asyncio.CancelledError:
        return  # Ctrl-C is how one stops to look
    finally:
        await bus.close()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
