"""The shell on a bus in memory: rebuilt after any crash, undisturbed by a bad bus, replayable."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import until
from trainmover.errors import BusError
from trainmover.events import MemoryBroker, MemoryBus
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services import SERVICES, HealthCore, PlannerCore, Shell, replay
from trainmover.services.core import Decider, Probe, SetTimer, probe_id
from trainmover.services.journal import feeding_order, journal_of
from trainmover.services.leases import LeaseBook, LeaseDriver


@asynccontextmanager
async def running(shell: Shell) -> AsyncIterator[asyncio.Task[None]]:
    """A shell that runs and is ready."""
    stop = asyncio.Event()
    task = asyncio.create_task(shell.run(stop))
    try:
        await asyncio.wait_for(shell.ready.wait(), 10)
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


class MortalBus:
    """A bus whose program dies right before its ``lives``-th publish: nothing more gets out."""

    def __init__(self, bus: MemoryBus, lives: int) -> None:
        self._bus = bus
        self.lives = lives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, envelope: Envelope) -> None:
        """Publish, or die."""
        if self.lives <= 0:
            raise BusError("killed")
        self.lives -= 1
        await self._bus.publish(envelope)


def script_of(world: Any, name: str) -> tuple[list[Envelope], dict[str, say.Event]]:
    """A service's inputs in the world's order, and what it said there by id."""
    core = SERVICES[name].core()
    made = (say.TimerFired, say.MachineProbed)
    inputs = [e for e in world.log if e.type in core.hears and not isinstance(e.event, made)]
    return inputs, said_by(name, world.log)


def said_by(name: str, log: list[Envelope]) -> dict[str, say.Event]:
    """What a service's core has said, by id."""
    # How much evidence there is when a probe is answered is a matter of milliseconds.
    return {
        e.id: e.event.model_copy(update={"evidence": ()})
        if isinstance(e.event, say.MachineFailed)
        else e.event
        for e in log
        if e.id.startswith(f"{name}-") and e.type != "lease.expired"
    }


def heard(broker: MemoryBroker, name: str) -> dict[str, say.Event]:
    """What a service's core has said on a broker."""
    return said_by(name, broker.log)


def has_said(broker: MemoryBroker, name: str, expected: dict[str, say.Event]) -> bool:
    """A service has said all of this."""
    return heard(broker, name).keys() >= expected.keys()


def story(kit: SimpleNamespace) -> Any:
    """A job in which one machine is killed and another is moved."""
    world = kit.World(standbys=2, steps=40)
    world.at(10, lambda: world.plant.kill("m1"))
    world.at(25, lambda: world.plant.publish(say.MoveRequested(machine="m2"), "cli"))
    return world.run()


@pytest.mark.parametrize("name", list(SERVICES))
async def test_killed_before_any_publish(kit: SimpleNamespace, name: str) -> None:
    """Wherever a service dies, after its restart the log holds what it would have said alone."""
    inputs, expected = script_of(story(kit), name)
    assert expected
    deaths = 0
    for lives in range(len(expected) * 2 + 3):
        broker = MemoryBroker(kit.JOB)
        outside = broker.connect("outside")
        remaining = lives
        waiting = list(inputs)
        for attempt in range(2):
            mortal: Any = MortalBus(broker.connect(name), remaining if attempt == 0 else 10**9)
            shell = Shell(SERVICES[name].core(), mortal)
            stop = asyncio.Event()
            task = asyncio.create_task(shell.run(stop))
            while waiting and not task.done():
                await outside.publish(waiting.pop(0))
                for _ in range(4):
                    await asyncio.sleep(0)
            if attempt == 0 and not task.done():
                await asyncio.wait({task}, timeout=0.01)
            if task.done():
                assert isinstance(task.exception(), BusError)
                deaths += 1
                continue
            await until(partial(has_said, broker, name, expected))
            stop.set()
            await task
            break
        assert heard(broker, name) == expected, f"died before publish {lives}"
    assert deaths > len(expected)


async def test_a_restarted_service_is_in_the_same_state(kit: SimpleNamespace) -> None:
    """A fresh shell on the same log has fed the same inputs in the same order, and says nothing new."""
    inputs, _ = script_of(story(kit), "planner")
    broker = MemoryBroker(kit.JOB)
    outside = broker.connect("outside")
    first = PlannerCore()
    async with running(Shell(first, broker.connect("planner"))):
        for envelope in inputs:
            await outside.publish(envelope)
        await until(lambda: first.roster.over)
    said = heard(broker, "planner")
    order = [cause for _, cause, _ in feeding_order(journal_of("planner", broker.log))]
    assert order == [envelope.id for envelope in inputs]
    second = PlannerCore()
    async with running(Shell(second, broker.connect("planner"))):
        assert (second.phase, second.last_epoch, second.roster.members) == (
            first.phase,
            first.last_epoch,
            first.roster.members,
        )
    assert heard(broker, "planner") == said


class Alarm(Decider):
    """Sets a timer when a machine joins, and says so when it fires."""

    name = "planner"
    SAYS = (say.LinkRepair,)

    def _joined(self, event: say.MachineJoined) -> None:
        self.do(SetTimer("alarm", self.now + 0.05))

    def _fired(self, event: say.TimerFired) -> None:
        self.say(say.LinkRepair(epoch=1, reason=event.name))

    HEARS = {say.MachineJoined: _joined, say.TimerFired: _fired}


async def test_a_timer_survives_its_service(kit: SimpleNamespace) -> None:
    """A timer that was set before a crash fires after the restart, once."""
    broker = MemoryBroker(kit.JOB)
    outside = broker.connect("outside")
    event = kit.joined("m0")
    async with running(Shell(Alarm(), broker.connect("planner"))):
        await outside.publish(Envelope(id="x", source="m0", time=1.0, job=kit.JOB, event=event))
        await until(lambda: any(isinstance(e.event, say.MachineJoined) for e in broker.log))
    async with running(Shell(Alarm(), broker.connect("planner"))):
        await until(lambda: bool(heard(broker, "planner")))
    async with running(Shell(Alarm(), broker.connect("planner"))):
        pass
    assert [e.type for e in broker.log if e.type != "journal.entry"] == [
        "machine.joined",
        "timer.fired",
        "link.repair",
    ]


class Asker(Decider):
    """Asks a machine that joins, and says what it answers."""

    name = "health"
    SAYS = (say.LinkRepair,)

    def _joined(self, event: say.MachineJoined) -> None:
        self.do(Probe(event.machine, event.incarnation))

    def _probed(self, event: say.MachineProbed) -> None:
        self.say(say.LinkRepair(epoch=1, reason=event.answer))

    HEARS = {say.MachineJoined: _joined, say.MachineProbed: _probed}


async def test_an_answer_that_the_log_has_before_its_question(kit: SimpleNamespace) -> None:
    """A life that died without a journal was answered; the next one, which asks now, is answered, too."""
    broker = MemoryBroker(kit.JOB)
    outside = broker.connect("outside")
    await outside.answer_probes("m0")
    joined = kit.joined("m0")
    answered = say.MachineProbed(machine="m0", incarnation=joined.incarnation, answer="silent")
    answer = probe_id("health", "x", 0)
    for name, source, event in ((answer, "health", answered), ("x", "m0", joined)):
        await outside.publish(Envelope(id=name, source=source, time=1.0, job=kit.JOB, event=event))
    async with running(Shell(Asker(), broker.connect("health"))):
        await until(lambda: len([e for e in broker.log if isinstance(e.event, say.LinkRepair)]) == 2)
    assert [e.event.reason for e in broker.log if isinstance(e.event, say.LinkRepair)] == ["silent", "alive"]
    assert [e.id for e in broker.log if isinstance(e.event, say.MachineProbed)] == [answer, f"{answer}-again"]
    async with running(Shell(Asker(), broker.connect("health"))):
        pass
    assert len([e for e in broker.log if isinstance(e.event, say.MachineProbed)]) == 2


class Fragile(Alarm):
    """Raises on one input."""

    def _joined(self, event: say.MachineJoined) -> None:
        if event.machine == "bad":
            raise KeyError(event.machine)
        self.say(say.LinkRepair(epoch=1, reason=event.machine))

    HEARS = {say.MachineJoined: _joined}


async def test_a_core_that_raises_is_passed_over(
    kit: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """An input that a core does not survive is logged and passed over; the next one is served."""
    broker = MemoryBroker(kit.JOB)
    outside = broker.connect("outside")
    async with running(Shell(Fragile(), broker.connect("planner"))):
        for name in ("bad", "m1"):
            event = kit.joined(name)
            await outside.publish(Envelope(id=f"x-{name}", source="m", time=1.0, job=kit.JOB, event=event))
        await until(lambda: bool(heard(broker, "planner")))
    assert "the core did not survive" in caplog.text


async def test_the_shell_ends_with_its_bus(kit: SimpleNamespace) -> None:
    """A shell whose bus is closed under it ends with an error instead of idling."""
    broker = MemoryBroker(kit.JOB)
    bus = broker.connect("planner")
    shell = Shell(PlannerCore(), bus)
    task = asyncio.create_task(shell.run(asyncio.Event()))
    await asyncio.wait_for(shell.ready.wait(), 5)
    await bus.close()
    with pytest.raises(BusError, match="closed"):
        await asyncio.wait_for(task, 10)


async def test_heartbeats_become_leases(kit: SimpleNamespace) -> None:
    """The health service on a bus fails a machine whose heartbeats stop, and no other."""
    broker = MemoryBroker(kit.JOB)
    bus = broker.connect("machines")
    driver = LeaseDriver(LeaseBook(shortest=0.3, longest=0.5))
    beating = {"m0", "m1"}

    async def beat() -> None:
        for sequence in range(10**6):
            for name in sorted(beating):
                event = say.Heartbeat(
                    machine=name,
                    incarnation="a",
                    sequence=sequence,
                    ranks=("running",),
                    step=1,
                    cpu_percent=1.0,
                    rss_bytes=1,
                )
                await bus.publish(
                    Envelope(id=f"b-{name}-{sequence}", source=name, time=1.0, job=kit.JOB, event=event)
                )
            await asyncio.sleep(0.02)

    broker.since = asyncio.get_running_loop().time() - 100.0
    async with running(Shell(HealthCore(), broker.connect("health"), drivers=[driver])):
        for name in sorted(beating):
            await bus.publish(
                Envelope(id=f"j-{name}", source=name, time=1.0, job=kit.JOB, event=kit.joined(name))
            )
        task = asyncio.create_task(beat())
        await until(lambda: "m0" in driver.book and driver.book.lease("m0").sequence > 3)
        beating.discard("m0")
        await until(lambda: any(isinstance(e.event, say.MachineFailed) for e in broker.log))
        task.cancel()
    failed = [e.event for e in broker.log if isinstance(e.event, say.MachineFailed)]
    assert [event.machine for event in failed] == ["m0"]
    assert "no heartbeat" in failed[0].reason
    assert replay(broker.log).same


class Cluster:
    """The plant and four shells on a broker that may misbehave."""

    def __init__(self, kit: SimpleNamespace, seed: int, steps: int = 60) -> None:
        self.kit = kit
        self.random = random.Random(seed)
        self.broker = MemoryBroker(kit.JOB, self.disturb)
        self.bus = self.broker.connect("plant")
        self.buses: dict[str, MemoryBus] = {}
        loop = asyncio.get_running_loop()
        self.plant = kit.Plant(
            lambda delay, act: loop.call_later(delay, act) and None,
            self.publish,
            step_seconds=0.02,
            start_seconds=0.03,
            lease_seconds=0.4,
            steps=steps,
        )
        self.numbers = 0
        self.deaths = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    def disturb(self, reader: str, envelope: Envelope) -> Sequence[float]:
        """Every tenth delivery to a service is lost, every tenth doubled, all are late."""
        if reader == "plant":
            return (0.0,)
        chance = self.random.random()
        if chance < 0.1:
            return ()
        delays = [self.random.random() * 0.01 for _ in range(2 if chance < 0.2 else 1)]
        return tuple(delays)

    def publish(self, event: say.Event, source: str) -> None:
        """What the plant says."""
        self.numbers += 1
        envelope = Envelope(
            id=f"{source}-plant-{self.numbers}",
            source=source,
            time=time.time(),
            job=self.kit.JOB,
            event=event,
        )
        self.spawn(self.bus.publish(envelope))

    def spawn(self, work: Any) -> None:
        """Run something beside."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def join(self, name: str) -> None:
        """A machine joins and answers probes."""
        bus = self.buses[name] = self.broker.connect(name)
        await bus.answer_probes(name)
        self.plant.join(name)

    def kill(self, name: str) -> None:
        """A machine is gone, its connection too."""
        self.spawn(self.buses[name].close())
        self.plant.kill(name)

    async def obey(self) -> None:
        """The plant hears everything."""
        joined = 100
        async for envelope in await self.bus.feed(None, history=True):
            self.plant.hear(envelope.event)
            if isinstance(envelope.event, say.StandbyReplenish):
                joined += 1
                await self.join(f"m{joined}")

    async def heal(self) -> None:
        """What was lost comes again."""
        while True:
            await asyncio.sleep(0.05)
            self.broker.heal()

    async def run(self, restarts: bool) -> None:
        """Run the job to its end; with ``restarts``, services are restarted all the time."""
        self.spawn(self.obey())
        self.spawn(self.heal())
        stop = asyncio.Event()
        for name in SERVICES:
            self.spawn(self.serve(name, stop, restarts))
        self.publish(self.kit.submitted(standbys=2), "driver")
        for index in range(5):
            await self.join(f"m{index}")
        self.plant.begin()
        await until(lambda: any(isinstance(e.event, say.JobCompleted) for e in self.broker.log))
        stop.set()
        await asyncio.sleep(0)
        services = [task for task in self.tasks if "serve" in repr(task.get_coro())]
        await asyncio.wait_for(asyncio.gather(*services), 10)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve(self, name: str, stop: asyncio.Event, restarts: bool) -> None:
        """Run a service, again and again when it ends before its time."""
        while not stop.is_set():
            core = HealthCore(grace=0.2) if name == "health" else SERVICES[name].core()
            bus: Any = self.broker.connect(name)
            if restarts:
                bus = MortalBus(bus, self.random.randint(1, 4))
            try:
                await Shell(core, bus).run(stop)
            except BusError:
                self.deaths += 1
            await bus.close()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_whole_cluster_on_a_bad_bus(kit: SimpleNamespace, seed: int, restarts: bool) -> None:
    """Lost, doubled and late deliveries, and services that die all the time, change no outcome."""
    cluster = Cluster(kit, seed)
    cluster.plant.at_step[15] = [lambda: cluster.kill("m1")]
    cluster.plant.at_step[35] = [lambda: cluster.publish(say.MoveRequested(machine="m2"), "cli")]
    await cluster.run(restarts)
    assert (cluster.deaths > 8) is restarts
    assert not [e for e in cluster.broker.log if isinstance(e.event, say.JobFailed)]
    assert {"m1", "m2"}.isdisjoint(cluster.plant.layout)
    kinds = [e.event.kind for e in cluster.broker.log if isinstance(e.event, say.SwitchCommitted)]
    assert kinds == ["start", "failure", "move"]
    result = replay(cluster.broker.log)
    assert result.same, str(result)
    assert set(result.inputs) == set(SERVICES)
