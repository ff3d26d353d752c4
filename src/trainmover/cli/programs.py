"""``trainmover service`` and ``trainmover machine``: the programs a cluster consists of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import socket
from enum import StrEnum
from typing import Annotated

import typer
import uvloop

from trainmover import logs
from trainmover.cli.access import Access, BusOption, JobOption, find

START_SECONDS = 30.0


class Service(StrEnum):
    """The four services."""

    HEALTH = "health"
    STANDBY = "standby"
    PLANNER = "planner"
    SWITCHER = "switcher"


def service(
    name: Annotated[Service, typer.Argument(help="Which one.", show_default=False)],
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Run one of the four services of a job until it is told to stop.

    A service may be killed at any moment and started again: it carries on from the log.
    """
    from trainmover.services import serve

    logs.start()
    access = find(bus, job)
    logs.bind(job=access.job, service=name.value)
    serve(name.value, access.bus, access.job)


def machine(
    bus: BusOption = None,
    slots: Annotated[int, typer.Option(min=1, max=64, metavar="K", help="Most ranks to run here.")] = 1,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Unique in the job. Default: from the host."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address at which other machines reach this one's ranks.")
    ] = "127.0.0.1",
    job: JobOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when declared dead, even if only the connection was lost.")
    ] = False,
) -> None:
    """Let this computer join a job as one machine: as a member or, once that is full, as a standby.

    A machine that could not be heard for a while is replaced.  When it is back it is told so, ends its
    ranks and joins again, as a standby.  So does one whose data-parallel replica pauses because another
    machine of it was lost, and one that was replaced because it and another did not reach each other, once
    it reaches the other.

    Exit codes: 0 the job completed or this machine was released; 1 the job failed; 3 this machine was
    declared dead, because a rank of it failed (or for any reason, with --once), and has ended its ranks.
    """
    logs.start()
    access = find(bus, job, secret=True)
    name = name or machine_name()
    logs.bind(job=access.job, machine=name)
    # Faults and the end of a run are for the whole process group, so it must be this machine's own.
    if os.getpgrp() != os.getpid():
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
    raise typer.Exit(uvloop.run(_machine(access, name, slots, host, once)))


async def _machine(access: Access, name: str, slots: int, host: str, once: bool) -> int:
    from trainmover.events.alive import shown_alive
    from trainmover.events.nats_bus import NatsBus
    from trainmover.machine.agent import Agent, MachineConfig
    from trainmover.machine.apart import Apart
    from trainmover.machine.children import come_forward
    from trainmover.machine.lives import EXITS

    apart, times = Apart(name, "", (), 1), 0
    while True:
        # Many programs may be starting at once on a small computer.
        bus = await NatsBus.connect(access.bus, access.job, f"machine/{name}", limit=START_SECONDS)
        try:
            config = MachineConfig(name, slots, host, access.secret, link_tls=access.link_tls, apart=apart)
            agent = Agent(bus, config)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, agent.stop)
            if "TRAINMOVER_STAND_BACK" in os.environ:
                # Started as a spare beside training, it stood back while it loaded; now it must beat.
                come_forward(os.getpid())
            async with shown_alive(bus):
                ending = await agent.run()
        finally:
            await bus.close()
        if once or not agent.joins_again:
            return EXITS[ending]
        times = times + 1 if agent.unreached else 0
        apart = Apart(name, agent.incarnation, agent.unreached, times)
        why = "the replica of machine %s pauses; it joins again as a standby"
        if agent.unreached:
            why = f"machine %s did not reach {', '.join(agent.unreached)}; it joins again once it does"
        elif agent.unheard:
            why = "machine %s was replaced while it could not be heard; it joins again as a standby"
        logging.getLogger("trainmover.machine").warning(why, name)


def machine_name() -> str:
    """A name for this computer that is unique in any job."""
    host = re.sub(r"[^A-Za-z0-9_\-]", "-", socket.gethostname().split(".")[0])[:40] or "machine"
    return f"{host}-{secrets.token_hex(2)}"
