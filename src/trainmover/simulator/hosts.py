"""Hosts: each service's real shell and core, on the simulated bus, killed and started again.

What lives here: the life of the four service programs.  What never lives here: what a shell or a core
does; both are the ones of ``services``, as they are.

Each service has a clock of its own, which can be set wrong.  A service that dies is started again
after a moment, and has nothing but the log to begin with.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainmover.errors import BusError
from trainmover.events.envelope import Envelope
from trainmover.services import SERVICES
from trainmover.services.core import Core, Output
from trainmover.services.leases import LeaseDriver
from trainmover.services.shell import Driver, Shell
from trainmover.simulator.bus import Exchange
from trainmover.simulator.clock import Process, VirtualLoop
from trainmover.simulator.port import SimulatedBus
from trainmover.simulator.setup import BEGIN


class Observer(Protocol):
    """Somebody who watches the services."""

    def reborn(self, service: str) -> None:
        """A service begins with a fresh core."""
        ...

    def silenced(self, service: str) -> None:
        """A service died, and took with it what it had said and the log does not have."""
        ...

    def fed(self, service: str, envelope: Envelope, outputs: list[Output]) -> None:
        """A core was fed an input, live or out of the log, and answered."""
        ...

    def raised(self, service: str, envelope: Envelope, error: Exception) -> None:
        """A core raised."""
        ...


AGAIN_SECONDS = 0.5
"""A service that could not start, because the bus was away, tries again after this."""


class Watched:
    """A core, and somebody who is told of everything that it hears and says."""

    def __init__(self, core: Core, observer: Observer) -> None:
        self.core = core
        self._observer = observer

    @property
    def name(self) -> str:
        """See :class:`Core`."""
        return self.core.name

    @property
    def areas(self) -> tuple[str, ...]:
        """See :class:`Core`."""
        return self.core.areas

    @property
    def hears(self) -> frozenset[str]:
        """See :class:`Core`."""
        return self.core.hears

    @property
    def says(self) -> frozenset[str]:
        """See :class:`Core`."""
        return self.core.says

    def handle(self, envelope: Envelope, now: float) -> list[Output]:
        """See :class:`Core`."""
        try:
            outputs = self.core.handle(envelope, now)
        except Exception as error:
            self._observer.raised(self.name, envelope, error)
            raise
        self._observer.fed(self.name, envelope, outputs)
        return outputs


class Host:
    """One service on one host.

    Attributes:
        offset: seconds by which its host's clock is wrong.
        starts: how often it was started.
        core: the core of its present life.
    """

    def __init__(
        self, name: str, make: Callable[[], Core], loop: VirtualLoop, exchange: Exchange, observer: Observer
    ) -> None:
        self.name = name
        self.offset = 0.0
        self.starts = 0
        self.core = make()
        self.process = Process(name)
        self.make, self._loop, self._exchange, self._observer = make, loop, exchange, observer
        self._bus: SimulatedBus | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event = asyncio.Event()
        self._pause = AGAIN_SECONDS
        self._over = False

    @property
    def up(self) -> bool:
        """It runs."""
        return self._bus is not None and not self.process.frozen

    def start(self) -> None:
        """A new life."""
        if self._over:
            return
        self.starts += 1
        self.process = Process(f"{self.name} ({self.starts})")
        self.core = self.make()
        self._observer.reborn(self.name)
        self._bus = SimulatedBus(self._exchange, self.process)
        self._stop = asyncio.Event()
        life = f"{self.name}-{self.starts}"
        count = iter(range(1 << 62))
        drivers: list[Driver] = []
        if any(driver is LeaseDriver for driver in SERVICES[self.name].drivers):
            drivers.append(LeaseDriver(clock=self._loop.time))
        shell = Shell(
            Watched(self.core, self._observer),
            self._bus,
            drivers=drivers,
            clock=self._clock,
            fresh=lambda: f"{life}-{next(count)}",
        )
        context = self._loop.within(self.process)
        self._task = self._loop.create_task(self._live(shell, self._stop), name=life, context=context)
        self._task.add_done_callback(self._ended)

    async def _live(self, shell: Shell, stop: asyncio.Event) -> None:
        with contextlib.suppress(BusError):
            await shell.run(stop)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._bus is not None:
            self._bus.die()
            if self._bus.outlet.unstored:
                self._observer.silenced(self.name)
            self._bus = None
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"exception": task.exception(), "message": self.name})
        self._loop.later(self._pause, self.start)
        self._pause = AGAIN_SECONDS

    def crash(self, publishes: int, pause: float) -> None:
        """Die in the place of a publish (the next is 1; 0: at once); start again after a pause (seconds)."""
        if self._bus is None or self._over:
            return
        self._pause = pause
        if self.process.frozen:
            self._loop.thaw(self.process)
        if publishes > 0:
            self._bus.lives = publishes
            return
        self._bus.die()
        if self._task is not None:
            self._task.cancel()

    def freeze(self) -> None:
        """It stops (SIGSTOP)."""
        self.process.frozen = True

    def thaw(self) -> None:
        """It goes on."""
        if self.process.frozen:
            self._loop.thaw(self.process)

    def end(self) -> asyncio.Task[None] | None:
        """The run is over: end in good order, for good."""
        self._over = True
        self.thaw()
        self._stop.set()
        return self._task

    def _clock(self) -> float:
        return BEGIN + self._loop.time() + self.offset


def hosts(
    loop: VirtualLoop, exchange: Exchange, observer: Observer, cores: Mapping[str, Callable[[], Core]] | None
) -> dict[str, Host]:
    """A host for each service.

    Args:
        cores: other cores than those of this release, by service.
    """
    made: dict[str, Any] = {name: service.core for name, service in SERVICES.items()}
    made.update(cores or {})
    return {name: Host(name, make, loop, exchange, observer) for name, make in made.items()}
