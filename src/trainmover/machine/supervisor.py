"""The local driver: everything that ``trainmover run`` starts, kept up and brought down.

What lives here: which processes a local run consists of and what happens when one of them ends.
What never lives here: how a program is started (``programs``), and decisions about the job.  Those are the
services'; the driver only starts machines that they ask for.

* The embedded server and the four services are restarted at once, whatever ended them; their state
  is in the log.  Something that ends over and over is given up, and the job with it.
* A machine is never restarted: that it is gone is a fact of the job.  Only one that could not even
  join is tried again; a job that trains already is not given up for it.
* Everything started here hangs on a leash (see ``children``): when the driver dies, however it
  dies, nothing outlives it.  Each child has a process group of its own, so Ctrl-C in a terminal
  reaches the driver alone and things end in order: machines, services, server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from trainmover.access.embedded import DRIVER, EmbeddedAccess
from trainmover.errors import BusError, TrainMoverError
from trainmover.events import catalogue as say
from trainmover.events.bus import Bus
from trainmover.events.envelope import Envelope
from trainmover.events.log import read_stream, write_log
from trainmover.events.nats_bus import NatsBus
from trainmover.events.server import NatsServer
from trainmover.machine import registry
from trainmover.machine.agent import FINISH_PATIENCE
from trainmover.machine.children import Child, Exit, until_dead
from trainmover.machine.hosts import Hosts
from trainmover.machine.programs import Programs
from trainmover.machine.runconfig import RunConfig
from trainmover.machine.rundir import RunDir

SERVICES: Final = ("health", "standby", "planner", "switcher")
RESTARTS: Final = 8
RESTART_SECONDS: Final = 20.0
"""A service or the server that ends more than RESTARTS times in this time is given up."""
FALSE_STARTS: Final = 3
"""Machines in a row that may end before they have joined: then a job that does not train yet is given up."""
FALSE_START_SECONDS: Final = 2.0
FALSE_START_MOST: Final = 60.0
"""Pauses between starts of a machine that cannot join a job that trains (it lives without): ever longer."""
MACHINE_PATIENCE: Final = 20.0
"""How long machines may take to leave when the job did not complete."""
SERVICE_PATIENCE: Final = 3.0
LOG_PATIENCE: Final = 17.0
"""How long services may take to end when the job completed: their last events belong into its log."""
LOG_LOOK_SECONDS: Final = 0.5
ROOM_BYTES: Final = 1 << 20
"""With less room than this on its disk a server that cannot write is not started again."""
ROOM_LOOK_SECONDS: Final = 0.2
STARTS: Final = 3
"""How often a server is tried to be started again, with room on the disk, before the job is given up."""
QUIET_SECONDS: Final = 2.0
"""After a switch no program is started for so long: the first steps have the computer to themselves."""

__all__ = ["LocalRun", "RunConfig"]

Observer = Callable[[Envelope], None]
Notice = Callable[[str], None]

log = logging.getLogger("trainmover.driver")


class LocalRun:
    """One job on this computer; :meth:`run` drives it from start to end.

    Args:
        config: what to run.
        run_dir: its folder.
        observe: called with every event of the job, samples included.
        notice: called with one-line facts about the driver's own processes.
        hosts: where the programs are.

    Attributes:
        server: the embedded server; None before the start, and with a bus that somebody else runs.
        services: the latest process of each service.
        machines: the latest process of each machine.
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        observe: Observer,
        notice: Notice,
        hosts: Hosts | None = None,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self._hosts = hosts if hosts is not None else Hosts()
        self.job = f"job-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.failure = ""
        self._observe = observe
        self._notice = notice
        self._secret = secrets.token_hex(32)
        self.server: NatsServer | None = None
        self._bus: NatsBus | None = None
        self._programs: Programs
        self.services: dict[str, Child] = {}
        self.machines: dict[str, Child] = {}
        self._joined: set[str] = set()
        self._false_starts = 0
        self._trains = False
        self._next = 0
        self._over = asyncio.Event()
        self._ending = False
        self._code: int | None = None
        self._keepers: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Run the job to its end.

        Returns:
            0: completed; 1: the job failed (``failure`` says why); 128 + n: ended by signal n.

        Raises:
            TrainMoverError: it could not be started.
        """
        self.run_dir.write_secret(self._secret)
        self._catch_signals()
        try:
            await self._start()
            await self._over.wait()
        finally:
            await self._end()
        assert self._code is not None
        return self._code

    def interrupt(self, number: signal.Signals) -> None:
        """End everything in order; a second time: at once."""
        if self._ending or self._code is not None:
            for child in (*self.machines.values(), *self.services.values()):
                child.kill()
            return
        self._finish(128 + number, f"ended by {number.name}")

    # -- start

    async def _start(self) -> None:
        url, link_tls = self._start_bus()
        self._programs = Programs(
            job=self.job,
            secret=self._secret,
            slots=self.config.ranks_per_machine,
            hosts=self._hosts,
            logs=self.run_dir.logs,
            address=url,
            link_tls=link_tls,
        )
        # Before anything else is started: an address that is wrong is told at once.
        self._bus = await NatsBus.connect(url(DRIVER), self.job, "driver")
        registry.sweep()
        registry.register(self.job, url(DRIVER), self.run_dir.path)
        for name in SERVICES:
            self._keep(self._keep_service(name))
        for _ in range(self.config.machines + self.config.standbys):
            self._start_machine()
        await self._bus.listen([say.StepSample.type, say.Heartbeat.type], self._observe)
        self._keep(self._follow(self._bus))
        await self._say(self.config.description(self.run_dir.path))
        if any(spec.kind == "stop" and spec.seconds for spec in self.config.faults):
            self._keep(self._wake_the_stopped())

    def _start_bus(self) -> tuple[Callable[[str], str], Path | None]:
        """The bus as each role reaches it, and the certificates for links, if there are any."""
        if (given := self.config.bus) is not None:
            return (lambda _: given), None
        access = (
            EmbeddedAccess.encrypted(self.run_dir.path / "tls", self._hosts.bus_address)
            if self.config.tls
            else EmbeddedAccess.plain(self._secret)
        )
        server = self.server = access.server(self.run_dir.bus, self.job, self._hosts.bus_address)
        server.start()
        self._keep(self._keep_server(server))
        self._keep(self._keep_log(server))
        return (lambda role: access.address(server.url, role)), access.tls

    def _start_machine(self, name: str | None = None, *, spare: bool = False) -> None:
        if name is None:
            name = f"m{self._next}"
            self._next += 1
        child = self.machines[name] = self._programs.machine(name, spare=spare)
        self._keep(self._keep_machine(name, child))

    # -- keep up

    def _keep(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # any coroutine
        self._keepers.add(task)
        task.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[None]) -> None:
        self._keepers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the driver failed", exc_info=error)
            self._finish(1, f"the driver failed: {error}")

    async def _keep_server(self, server: NatsServer) -> None:
        ends: deque[float] = deque(maxlen=RESTARTS)
        while True:
            assert server.pid is not None
            await until_dead(server.pid)
            if self._ending and self._code != 0:
                return
            if _too_often(ends):
                self._finish(1, f"the bus ended {RESTARTS} times; see {server.log_file}")
                return
            self._notice("the bus ended; it is started again")
            await self._start_again(server)

    async def _start_again(self, server: NatsServer) -> None:
        """Start a server when there is room: on a full disk it cannot, or takes the disk for that small."""
        tries = 0
        while True:
            while shutil.disk_usage(server.folder).free < ROOM_BYTES:  # noqa: ASYNC110 - nobody tells of room
                await asyncio.sleep(ROOM_LOOK_SECONDS)
            try:
                server.start()
                return
            except (BusError, OSError) as error:
                tries += 1
                if tries >= STARTS:
                    raise
                self._notice(f"the bus did not start ({error}); it is tried again")

    async def _keep_log(self, server: NatsServer) -> None:
        """Start a server again that could not write its log, once there is room: it does not by itself."""
        while True:
            await asyncio.sleep(LOG_LOOK_SECONDS)
            if server.cannot_write and shutil.disk_usage(server.folder).free >= ROOM_BYTES:
                self._notice("the bus could not write its log and there is room again; it is started again")
                server.kill()
                await asyncio.sleep(RESTART_SECONDS / RESTARTS)

    async def _keep_service(self, name: str) -> None:
        ends: deque[float] = deque(maxlen=RESTARTS)
        while not self._ending:
            child = self.services[name] = self._programs.service(name)
            ended = await child.exited()
            if self._ending:
                return
            if _too_often(ends):
                words = child.last_words() or str(ended)
                self._finish(1, f"service {name} ended {RESTARTS} times, the last time with: {words}")
                return
            self._notice(f"service {name} ended ({ended}); it is started again")

    async def _keep_machine(self, name: str, child: Child) -> None:
        ended: Exit = await child.exited()
        if self._ending:
            return
        if name in self._joined:
            self._notice(f"machine {name} ended ({ended})")
            return
        self._false_starts += 1
        if self._false_starts >= FALSE_STARTS and not self._trains:
            words = child.last_words() or str(ended)
            self._finish(1, f"machine {name} could not join the job: {words}")
            return
        self._notice(f"machine {name} ended before it joined ({ended}); it is started again")
        if self._trains:
            await asyncio.sleep(
                min(FALSE_START_MOST, FALSE_START_SECONDS * 2.0 ** min(self._false_starts - 1, 9))
            )
        if not self._ending:
            self._start_machine(name, spare=self._trains)

    async def _follow(self, bus: Bus) -> None:
        quiet_until = 0.0
        async for envelope in await bus.feed(None, history=True):
            self._observe(envelope)
            match envelope.event:
                case say.MachineJoined(machine=name):
                    self._joined.add(name)
                    self._false_starts = 0
                case say.TrainingStarted():
                    self._trains = True
                case say.SwitchCommitted():
                    quiet_until = time.monotonic() + QUIET_SECONDS
                case say.StandbyReplenish() if not self._ending:
                    self._keep(self._start_spare(quiet_until - time.monotonic()))
                case say.JobCompleted():
                    self._finish(0)
                case say.JobFailed(reason=reason):
                    self._finish(1, reason)
                case _:
                    pass

    async def _start_spare(self, wait: float) -> None:
        """One more machine; right after a switch, not before training has found its pace again."""
        await asyncio.sleep(max(0.0, wait))
        if not self._ending:
            self._start_machine(spare=True)

    async def _wake_the_stopped(self) -> None:
        """SIGCONT for machines that a ``stop`` fault with ``seconds`` has frozen."""
        stops = [spec for spec in self.config.faults if spec.kind == "stop"]
        waits = {spec.machine: spec.seconds for spec in stops if spec.seconds is not None}
        while waits:
            for name, seconds in tuple(waits.items()):
                child = self.machines.get(name)
                if child is not None and child.exit is None and _is_stopped(child.pid):
                    del waits[name]
                    loop = asyncio.get_running_loop()
                    loop.call_later(seconds, child.send, signal.SIGCONT)
                    self._notice(f"machine {name} is frozen; it goes on in {seconds:g} s")
            await asyncio.sleep(0.05)

    # -- end

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.interrupt, number)

    def _finish(self, code: int, failure: str = "") -> None:
        if self._code is None:
            self._code, self.failure = code, failure
            self._over.set()

    async def _end(self) -> None:
        self._ending = True
        if self._code is None:
            self._code = 1
        try:
            if self._bus is not None and self._code != 0:
                # Machines end their ranks on it; if the services said it already, it is one more.
                with contextlib.suppress(BusError):
                    await self._say(say.JobFailed(reason=self.failure or "the driver gave up"))
            await self._end_machines()
            patience = LOG_PATIENCE if self._code == 0 else SERVICE_PATIENCE
            services = [child.end(patience) for child in self.services.values()]
            await asyncio.gather(*services)
            if self._bus is not None:
                await self._export(self._bus)
                await self._bus.close()
        finally:
            for task in tuple(self._keepers):
                task.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
            for child in (*self.machines.values(), *self.services.values()):
                child.kill()
            if self.server is not None:
                self.server.stop()
            registry.unregister(self.job)
            registry.sweep()

    async def _export(self, bus: NatsBus) -> None:
        """Keep the log of the job as a file: the server's store is only for the server."""
        try:
            await bus.flush(2.0)
            write_log(self.run_dir.events, await read_stream(bus))
        except (BusError, OSError) as error:
            self._notice(f"the event log could not be written: {error}")

    async def _end_machines(self) -> None:
        """Machines leave by themselves when the job is over; who does not is made to."""
        patience = 0.0
        if self._bus is not None and self._joined:
            # A script may have work of its own after its last step, and machines wait for it.
            patience = MACHINE_PATIENCE + (FINISH_PATIENCE if self._code == 0 else 0.0)
        deadline = time.monotonic() + patience
        while True:
            there = [child for child in self.machines.values() if child.exit is None]
            for child in there:
                if _is_stopped(child.pid):
                    child.kill()
            if not there or time.monotonic() > deadline:
                break
            waits = [asyncio.ensure_future(child.exited()) for child in there]
            await asyncio.wait(waits, timeout=0.2, return_when=asyncio.ALL_COMPLETED)
        await asyncio.gather(*(child.end(2.0) for child in self.machines.values()))

    async def _say(self, event: say.Event) -> None:
        if self._bus is None:
            raise TrainMoverError(f"there is no bus to say {event.type} on")
        identity = f"driver-{secrets.token_hex(8)}"
        await self._bus.publish(
            Envelope(id=identity, source="driver", time=time.time(), job=self.job, event=event)
        )


def _too_often(ends: deque[float]) -> bool:
    now = time.monotonic()
    ends.append(now)
    return len(ends) == ends.maxlen and now - ends[0] < RESTART_SECONDS


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
