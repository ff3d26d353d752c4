"""``trainmover status`` and ``trainmover move``: look at a running job, and ask something of it."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Annotated

import typer
from rich.console import Console

from trainmover.cli.access import Access, BusOption, JobOption, find
from trainmover.cli.tables import incident_lines, machines_table, progress_line, role_lines, state_lines
from trainmover.errors import BusError, ConfigError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.nats_bus import NatsBus
from trainmover.monitor.snapshot import view_as_json
from trainmover.monitor.view import ClusterView

PAST_SECONDS = 20.0
SAMPLE_SECONDS = 0.6
"""How long ``status`` listens for heartbeats, which come every quarter of a second."""
ANSWER_SECONDS = 10.0


def status(
    bus: BusOption = None,
    job: JobOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a job's machines, its step and its incidents."""
    view = asyncio.run(_look(find(bus, job)))
    if as_json:
        print(json.dumps(view_as_json(view), indent=2))
        return
    console = Console()
    console.print(f"job {view.job}", highlight=False)
    console.print(progress_line(view))
    console.print(machines_table(view))
    for line in (*role_lines(view), *state_lines(view), *incident_lines(view, time.time())):
        console.print(line)


def move(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", show_default=False, help="Who shall go.")],
    to: Annotated[
        str | None,
        typer.Option(metavar="MACHINE", show_default=False, help="Who shall come. Default: any standby."),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="Why, for the log.")
    ] = "asked for on the command line",
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Replace a machine while it works, at the next step: planned maintenance.

    Exit codes: 0 a standby takes over; 1 the move is refused or nobody answered.
    """
    raise typer.Exit(asyncio.run(_move(find(bus, job), machine, to, reason)))


async def _look(access: Access) -> ClusterView:
    bus = await NatsBus.connect(access.bus, access.job, "status", create=False)
    view = ClusterView()
    try:
        feed = await bus.feed(None, history=True)
        for envelope in await feed.past(PAST_SECONDS):
            view.apply(envelope)
        if view.phase not in ("completed", "failed"):
            await bus.listen([say.Heartbeat.type, say.StepSample.type], view.apply)
            await asyncio.sleep(SAMPLE_SECONDS)
    finally:
        await bus.close()
    return view


async def _move(access: Access, machine: str, to: str | None, reason: str) -> int:
    try:
        event = say.MoveRequested(machine=machine, to=to, reason=reason)
    except ValueError:
        raise ConfigError(f"{machine!r} or {to!r} is not the name of a machine") from None
    bus = await NatsBus.connect(access.bus, access.job, "operator", create=False)
    try:
        feed = await bus.feed(("standby", "move", "job"), history=False)
        identity = f"operator-{secrets.token_hex(8)}"
        await bus.publish(
            Envelope(id=identity, source="operator", time=time.time(), job=access.job, event=event)
        )
        await bus.flush(ANSWER_SECONDS)
        async with asyncio.timeout(ANSWER_SECONDS):
            async for envelope in feed:
                match envelope.event:
                    case say.StandbyAssigned(leaver=leaver, joiner=joiner) if leaver == machine:
                        print(f"{joiner} takes the place of {machine} (incident {envelope.event.incident})")
                        return 0
                    case say.MoveRefused(machine=name, reason=why) if name == machine:
                        print(f"{machine} does not move: {why}")
                        return 1
                    case say.JobCompleted() | say.JobFailed():
                        print("the job has ended")
                        return 1
                    case _:
                        pass
        raise BusError("the feed of the bus ended")
    except TimeoutError:
        print(
            f"asked, but nobody answered within {ANSWER_SECONDS:g} s: the move waits in the log;"
            " look with trainmover status"
        )
        return 1
    finally:
        await bus.close()
