"""A cluster: machines, services, bus and training, put together from a setup.

What lives here: the parts of one run and what joins them (heartbeats, machines that come because
they were asked for, an operator).  What never lives here: faults, invariants, the course of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services.apart import NOBODY_GOES
from trainmover.services.core import Core, Output
from trainmover.services.leases import PERIOD
from trainmover.services.reasons import is_silence
from trainmover.simulator.bus import JOB, Exchange
from trainmover.simulator.clock import Process, VirtualLoop
from trainmover.simulator.faults import Faults
from trainmover.simulator.hosts import hosts
from trainmover.simulator.machines import SimulatedMachine
from trainmover.simulator.setup import BEGIN, Setup
from trainmover.simulator.training import Training
from trainmover.simulator.watch import Violation, Watch

WELL_SECONDS = 5.0
"""Who has been well for this long is not silent."""

PATIENCE = 15.0
"""Seconds that an operator looks at a job that is held before adding a machine."""


class Cluster:
    """All parts of one run; see the module.

    Attributes:
        said: every event that a program published, in order, with its time.
        violation: what does not hold, once something does not.
    """

    def __init__(self, setup: Setup, cores: Mapping[str, Callable[[], Core]] | None = None) -> None:
        self.setup = setup
        self.loop = VirtualLoop()
        self.watch = Watch()
        self.violation: str | None = None
        self.said: list[tuple[float, Envelope]] = []
        self.exchange = Exchange(self.loop, setup)
        self.exchange.on_said = self._said
        self.training = Training(self.loop, setup)
        self.training.on_enter = self._guarded(self.watch.entered)
        self.training.on_step = self._guarded(self.watch.stepped)
        self.training.mirrors.on_taken = self._guarded(self.watch.taken)
        self.machines: dict[str, SimulatedMachine] = {}
        self.training.reach.machines = self.machines
        self.hosts = hosts(self.loop, self.exchange, self, cores)
        self.faults = Faults(self)
        self._chance = setup.random("cluster")
        self._driver = self.exchange.outlet(Process("driver"))
        self._numbers = 0
        self._lives = 0
        self._next = 0
        self._held: set[str] = set()

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.now

    @property
    def over(self) -> bool:
        """The job completed or failed, or something does not hold."""
        return self.watch.over is not None or self.violation is not None

    def begin(self) -> None:
        """Start everything."""
        setup = self.setup
        for host in self.hosts.values():
            self.loop.later(self._chance.random() * 0.5, host.start)
        self.operator(
            say.JobSubmitted(
                script="train.py",
                cwd="/",
                python="python",
                machines=setup.machines,
                ranks_per_machine=setup.slots,
                standbys=setup.standbys,
                run_dir="/run",
                on_exhausted=cast("Any", setup.on_exhausted),
                state=cast("Any", setup.state),
                standby_memory="sequential" if setup.memory == "sequential" else "resident",
            )
        )
        for _ in range(setup.machines + setup.standbys):
            self._next += 1
            name = f"m{self._next - 1}"
            self.loop.later(self._chance.random() * 0.8, self._join_once, name)
        self.loop.later(PERIOD, self._beat)

    def _join_once(self, name: str) -> None:
        if name not in self.machines:
            self.join(name)

    def join(self, name: str | None = None) -> SimulatedMachine:
        """A machine program starts, under this name or the next one."""
        if name is None:
            name = f"m{self._next}"
            self._next += 1
        self._lives += 1
        machine = SimulatedMachine(name, f"life{self._lives}", self.exchange, self.training, self.setup.slots)
        self.machines[name] = machine
        machine.on_unheard = self._join_again
        machine.was_heard = self.watch.was_heard
        machine.join()
        return machine

    def _join_again(self, name: str) -> None:
        """A machine that was only not heard joins as another life, as ``trainmover machine`` does."""
        machine = self.machines[name]
        if self.over or machine.alive:
            return
        # One that did not reach others comes back when it does, or when they have gone.
        there = [other for other in machine.unreached if self.machines[other].alive]
        if all(self.training.reach.between(name, other) for other in there):
            self.join(name)
        else:
            self.later(2.0, self._join_again, name)

    def living(self) -> list[SimulatedMachine]:
        """Machines whose program runs or is frozen, by name."""
        return [machine for machine in self.machines.values() if machine.alive]

    def operator(self, event: say.Event) -> None:
        """Somebody at a command line says something."""
        self._numbers += 1
        self._driver.publish(
            Envelope(
                id=f"driver-{self._numbers}", source="driver", time=BEGIN + self.now, job=JOB, event=event
            )
        )

    def later(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        """Do something later."""
        self.loop.later(delay, act, *arguments)

    # -- what goes on --------------------------------------------------------------------------------

    def _beat(self) -> None:
        self.loop.later(PERIOD, self._beat)
        if self.exchange.out:
            return
        beats: list[Envelope] = []
        chance = self._chance
        for machine in self.machines.values():
            if not machine.alive or machine.process.frozen:
                continue
            beat = machine.pulse.beat()
            if machine.outlet.cut or chance.random() < 0.01:
                continue
            if chance.random() < 0.01:
                late = replace(beat, event=beat.event.model_copy())
                self.later(chance.random() * 0.5, self.exchange.sample, [late])
            else:
                beats.append(beat)
        self.exchange.sample(beats)

    def _said(self, envelope: Envelope) -> None:
        self.said.append((self.now, envelope))
        self.watch.now = self.now
        self._guard(self.watch.said, envelope)
        self.faults.said(envelope)
        event = envelope.event
        if isinstance(event, say.MachineFailed):
            self._guard(self._check_silence, event)
        if isinstance(event, say.StandbyReplenish):
            if self._chance.random() < self.setup.supply:
                self.later(self._chance.uniform(0.2, 3.0), self._supply)
        elif isinstance(event, say.StandbyExhausted):
            if self._chance.random() < self.setup.supply:
                self.later(PATIENCE * self._chance.uniform(0.1, 1.0), self._supply)
        elif isinstance(event, say.LinkRepair) and event.reason.startswith(NOBODY_GOES):
            self.later(PATIENCE, self._mend)
        elif isinstance(event, say.JobHeld) and event.incident not in self._held:
            self._held.add(event.incident)
            self.later(PATIENCE * self._chance.uniform(0.5, 1.5), self._help, event.incident)

    def _check_silence(self, event: say.MachineFailed) -> None:
        """The bus's silence is not a machine's."""
        machine = self.machines.get(event.machine)
        if machine is None or machine.life != (event.machine, event.incarnation) or not machine.well:
            return
        seconds = self.now - machine.well_since
        if is_silence(event.reason) and seconds > WELL_SECONDS:
            raise Violation(
                f"{machine} is declared dead ({event.reason}), and has been well for {seconds:.1f} s"
            )

    def _mend(self) -> None:
        """An operator looks after the network, as the job asks for it."""
        self.training.reach.parted.clear()
        self.training.reach.narrow.clear()
        self.training.look_again()

    def _supply(self) -> None:
        if not self.over:
            self.join()

    def _help(self, incident: str) -> None:
        """An operator adds machines as long as the job is held."""
        if self.over or (incident not in self.watch.held and self.now - self.watch.last_step < PATIENCE):
            self._held.discard(incident)
            return
        if len(self.living()) < 2 * (self.setup.machines + self.setup.standbys) + 4:
            self.join()
        self.later(PATIENCE, self._help, incident)

    # -- what is watched (an ``hosts.Observer``) -----------------------------------------------------

    def reborn(self, service: str) -> None:
        """See :class:`trainmover.simulator.hosts.Observer`."""
        self.watch.reborn(service, self.exchange.has)

    def silenced(self, service: str) -> None:
        """See :class:`trainmover.simulator.hosts.Observer`."""
        self.watch.forgetful.add(service)

    def raised(self, service: str, envelope: Envelope, error: Exception) -> None:
        """See :class:`trainmover.simulator.hosts.Observer`."""
        what = f"the core of {service} raised {type(error).__name__} ({error}) on {envelope.type}"
        self.violation = self.violation or what

    def fed(self, service: str, envelope: Envelope, outputs: list[Output]) -> None:
        """See :class:`trainmover.simulator.hosts.Observer`."""
        self.watch.now = self.now
        self._guard(self.watch.fed, service, envelope, outputs)

    def _guarded(self, check: Callable[..., None]) -> Callable[..., None]:
        def guarded(*arguments: Any) -> None:
            self.watch.now = self.now
            self._guard(check, *arguments)

        return guarded

    def _guard(self, check: Callable[..., None], *arguments: Any) -> None:
        """Whoever is watched goes on: the run ends at the next event."""
        try:
            check(*arguments)
        except Violation as error:
            self.violation = self.violation or error.what
