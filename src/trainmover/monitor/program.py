"""The monitor as a program: from a bus, or a finished run, to a web server.

What lives here: how the parts are put together and in which order they start and end.

A live monitor reads the log from its beginning, so it may be started at any time and killed at any
time.  Steps are not in the log; those from before it started come from the run's folder where that
is on this computer, and are missing from the curve where it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from trainmover import logs
from trainmover.errors import BusError, ConfigError, DecodeError
from trainmover.events import catalogue as say
from trainmover.events.copies import opened
from trainmover.events.envelope import SUBJECT_ROOT, Envelope
from trainmover.events.log import read_log
from trainmover.events.micro import Endpoint, Tally
from trainmover.events.nats_bus import NatsBus
from trainmover.monitor.broadcast import Broadcast
from trainmover.monitor.chronicle import Chronicle, Fact
from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.metrics import make_registry
from trainmover.monitor.series import points_of
from trainmover.monitor.server import LOOPBACK, Site
from trainmover.monitor.steps import read_steps
from trainmover.monitor.traces import IncidentTracer, tracer_from_environment

BREATH = 256
"""Events between two moments in which other tasks may run, while the log is read."""

log = logs.get("trainmover.monitor")


@dataclass(frozen=True, slots=True)
class Source:
    """What is watched.

    Attributes:
        log: a finished run's log; None: a live job.
        steps: folder with what the ranks wrote down, where it is on this computer.
        bus, job: where a live job is.
    """

    log: Path | None = None
    steps: Path | None = None
    bus: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the web server listens; port 0: any that is free."""

    host: str = "127.0.0.1"
    port: int = 0
    allow_hosts: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that it may be asked by."""
        own = () if self.host in ("0.0.0.0", "::", "") else (self.host,)
        return (*LOOPBACK, *own, *self.allow_hosts)


class Monitor:
    """One monitor; :meth:`run` runs it until it is told to stop."""

    def __init__(self, source: Source, tracer: IncidentTracer | None = None) -> None:
        self.source = source
        self.chronicle = Chronicle()
        self.stop = asyncio.Event()
        self._bus: NatsBus | None = None
        self._caught_up: Callable[[], bool] = lambda: False
        self._tally = Tally()
        self._held: list[Envelope] | None = []
        """Samples that wait until older steps are known; None: no more."""
        self.broadcast = Broadcast(self.chronicle, live=source.log is None, connected=self.connected)
        registry = make_registry(self.chronicle, self.connected)
        self.site = Site(self.chronicle, self.broadcast, registry, self.missing)
        self._tracer = tracer
        if tracer is not None:
            self.chronicle.on_end.append(self._trace)

    def connected(self) -> bool:
        """Whether more can come now."""
        return self.source.log is not None or (self._bus is not None and self._bus.connected_for > 0)

    def missing(self) -> Sequence[str]:
        """What is not there yet."""
        found = []
        if not self.connected():
            found.append("the bus is away")
        if not self._caught_up():
            found.append(f"the log of job {self.source.job} is not there yet, or still being read")
        return found

    async def run(self, place: Place, started: Callable[[str], None] = lambda url: None) -> None:
        """Serve until ``stop`` is set or the process is told to end.

        Args:
            place: where to listen.
            started: called with the page's address once it can be opened.

        Raises:
            ConfigError: the address is taken, or the run cannot be read.
            BusError: the bus does not answer, or was closed.
        """
        listener = _listen(place)
        try:
            feeding = asyncio.create_task(self._read_run() if self.source.log is not None else self._follow())
            ticking = asyncio.create_task(self.broadcast.run())
            server = _Server(
                uvicorn.Config(
                    self.site.app(place.hosts),
                    log_config=None,
                    access_log=False,
                    lifespan="off",
                    server_header=False,
                    timeout_graceful_shutdown=2,
                    timeout_keep_alive=30,
                )
            )
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            started(_url(listener))
            stopping = asyncio.create_task(self.stop.wait())
            try:
                waits = {serving, stopping, ticking, feeding}
                while serving in waits and stopping in waits:
                    done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            finally:
                self.broadcast.close()
                server.should_exit = True
                for task in (feeding, ticking, stopping):
                    task.cancel()
                await asyncio.gather(serving, feeding, ticking, stopping, return_exceptions=True)
        finally:
            listener.close()
            if self._bus is not None:
                await self._bus.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    def _trace(self, incident: IncidentView, facts: list[Fact]) -> None:
        assert self._tracer is not None
        self._tracer.end(self.chronicle.view.job, incident, facts)

    # -- what is watched

    async def _read_run(self) -> None:
        assert self.source.log is not None
        try:
            records = await asyncio.to_thread(read_log, self.source.log)
        except DecodeError as error:
            raise ConfigError(str(error)) from None
        for number, envelope in enumerate(opened(record.envelope for record in records)):
            self.chronicle.apply(envelope)
            if number % BREATH == 0:
                await asyncio.sleep(0)
        await self._recall()
        self._caught_up = lambda: True

    async def _recall(self) -> None:
        """The steps that the ranks wrote down, where they can be read."""
        if self.source.steps is not None and self.source.steps.is_dir():
            facts = await asyncio.to_thread(read_steps, self.source.steps)
            self.chronicle.recall(list(points_of(facts)))

    async def _follow(self) -> None:
        job = self.source.job
        self._bus = bus = await NatsBus.connect(self.source.bus, job, "monitor", create=False)
        await bus.serve_micro(
            "monitor", f"The monitor of job {job}", Endpoint("events", f"{SUBJECT_ROOT}.{job}.>", self._tally)
        )
        await bus.listen([say.StepSample.type, say.Heartbeat.type], self._sample)
        await self._recall()
        feed = await bus.feed(None, history=True)
        self._caught_up = lambda: feed.caught_up
        async for envelope in feed:
            self._take(envelope)
            self._release()
            if self._tally.heard % BREATH == 0:
                await asyncio.sleep(0)
        raise BusError("the feed of the monitor ended: the bus was closed")

    def _sample(self, envelope: Envelope) -> None:
        if self._held is None:
            self._take(envelope)
        else:
            self._held.append(envelope)
            del self._held[: -10 * BREATH]
            self._release()

    def _release(self) -> None:
        """Samples that waited are taken in once the log is read."""
        if self._held is not None and self._caught_up():
            held, self._held = self._held, None
            for sample in held:
                self._take(sample)

    def _take(self, envelope: Envelope) -> None:
        self._tally.heard += 1
        try:
            self.chronicle.apply(envelope)
        except Exception as error:
            # One strange event must not end the watch.
            self._tally.failed += 1
            self._tally.last_error = f"{envelope.type}: {type(error).__name__} {error}"[:300]
            log.exception("an event could not be shown", **logs.facts_of(envelope))


async def serve(source: Source, place: Place, started: Callable[[str], None] = lambda url: None) -> None:
    """The whole program: a monitor with traces as the environment asks for, until a signal."""
    monitor = Monitor(source, tracer_from_environment())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, monitor.stop.set)
    await monitor.run(place, started)


class _Server(uvicorn.Server):
    """Leaves signals to us; uvicorn would take them over and raise them again at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _listen(place: Place) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((place.host, place.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the monitor cannot listen on {place.host} port {place.port} ({error.strerror}):"
            " give another --host or --port (0: any that is free)"
        ) from None
    listener.setblocking(False)
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
