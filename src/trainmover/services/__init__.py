"""The services: who decides.

Four independent programs, each a pure core (``health``, ``standby``, ``planner``, ``switcher``) in
the one shared shell (``shell``).  :data:`SERVICES` says what each is made of and
:func:`run_service` runs one on a bus until it is told to end; :func:`replay` runs a recorded log
through fresh cores.  No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass

from trainmover.errors import ConfigError
from trainmover.events.envelope import SUBJECT_ROOT
from trainmover.events.micro import Endpoint
from trainmover.services.core import Core
from trainmover.services.health import HealthCore
from trainmover.services.leases import LeaseDriver
from trainmover.services.planner import PlannerCore
from trainmover.services.replay import Difference, Replayed, replay
from trainmover.services.shell import Driver, Shell
from trainmover.services.standby import StandbyCore
from trainmover.services.switcher import SwitcherCore

__all__ = [
    "SERVICES",
    "Core",
    "Difference",
    "HealthCore",
    "PlannerCore",
    "Replayed",
    "Service",
    "Shell",
    "StandbyCore",
    "SwitcherCore",
    "replay",
    "run_service",
    "serve",
]


@dataclass(frozen=True, slots=True)
class Service:
    """What a service is made of."""

    core: Callable[[], Core]
    drivers: tuple[Callable[[], Driver], ...] = ()


SERVICES: dict[str, Service] = {
    "health": Service(HealthCore, (LeaseDriver,)),
    "standby": Service(StandbyCore),
    "planner": Service(PlannerCore),
    "switcher": Service(SwitcherCore),
}
"""The services by name."""


async def run_service(name: str, bus_url: str, job: str, *, token: str | None = None) -> None:
    """Run a service until SIGTERM or SIGINT.

    Args:
        name: a key of :data:`SERVICES`.
        bus_url: address of the NATS server.
        job: the job to serve.
        token: what the server wants to see.

    Raises:
        ConfigError: there is no such service.
        BusError: no connection, or the log could not be read.
    """
    if name not in SERVICES:
        raise ConfigError(f"no service {name!r}; there are {', '.join(SERVICES)}")
    from trainmover.events.alive import shown_alive
    from trainmover.events.nats_bus import NatsBus

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    service = SERVICES[name]
    bus = await NatsBus.connect(bus_url, job, name, token=token)
    try:
        shell = Shell(service.core(), bus, drivers=[make() for make in service.drivers])
        endpoint = Endpoint("events", f"{SUBJECT_ROOT}.{job}.>", shell.tally)
        await bus.serve_micro(name, f"The {name} service of job {job}", endpoint)
        async with shown_alive(bus):
            await shell.run(stop)
    finally:
        await bus.close()


def serve(name: str, bus_url: str, job: str, *, token: str | None = None) -> None:
    """:func:`run_service` on uvloop where there is one: the whole program of a service."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # uvloop is not made for every platform
        from uvloop import new_event_loop

        factory = new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run_service(name, bus_url, job, token=token))
