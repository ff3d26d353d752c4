"""What simulations have found, each as the story that the core or shell has to get right."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services.core import Decider, Output, Say, SetTimer, noted
from trainmover.services.health import Health, HealthCore
from trainmover.services.planner import PlannerCore
from trainmover.services.roster import Roster
from trainmover.services.shell import Shell
from trainmover.services.standby import StandbyCore
from trainmover.simulator.bus import JOB, Exchange
from trainmover.simulator.clock import Process, VirtualLoop
from trainmover.simulator.port import SimulatedBus
from trainmover.simulator.setup import BEGIN, draw

numbers = itertools.count()


def envelope(event: say.Event, *, name: str | None = None, time: float = BEGIN) -> Envelope:
    """An event as it travels."""
    return Envelope(id=name or f"e{next(numbers)}", source="test", time=time, job=JOB, event=event)


def told(core: Any, *events: say.Event) -> list[say.Event]:
    """What a core says to these events."""
    outputs: list[Output] = []
    for event in events:
        outputs += core.handle(envelope(event), BEGIN)
    return [output.event for output in outputs if isinstance(output, Say)]


def submitted(machines: int, standbys: int) -> say.JobSubmitted:
    """A job."""
    return say.JobSubmitted(
        script="t.py", cwd="/", python="python", machines=machines, standbys=standbys, run_dir="/r"
    )


def joined(machine: str, life: str = "a") -> say.MachineJoined:
    """An arrival."""
    return say.MachineJoined(machine=machine, incarnation=life, host="10.0.0.1", slots=1, pid=1)


def launch(machine: str, position: int) -> say.MachineLaunch:
    """A seat."""
    return say.MachineLaunch(
        machine=machine,
        incarnation="a",
        position=position,
        world_size=2,
        ranks_per_machine=1,
        generation=1,
        record=True,
    )


def failed(machine: str, life: str = "a") -> say.MachineFailed:
    """A verdict."""
    return say.MachineFailed(machine=machine, incarnation=life, reason="test")


def described(machine: str, rank: int) -> say.RankDescribed:
    """What a rank is."""
    return say.RankDescribed(
        machine=machine,
        incarnation="a",
        slot=0,
        rank=rank,
        generation=1,
        signature="x",
        state="x",
        groups=(say.GroupRow(name="default", count=2),),
    )


def test_a_launch_that_is_heard_last_does_not_keep_spares_cold() -> None:
    """The launch tells who records: when it comes after the recording, spares are warmed at once."""
    core = StandbyCore()
    before = told(
        core,
        submitted(2, 1),
        *map(joined, ("m0", "m1", "m2")),
        launch("m0", 0),
        say.SwitchCommitted(
            epoch=1,
            kind="start",
            incidents=(),
            machines=("m0", "m1"),
            leavers=(),
            joiners=(),
            step=0,
            generation=1,
        ),
        say.TrainingStarted(generation=1, epoch=1, step=1, groups={}),
        described("m0", 0),
        described("m1", 1),
        say.RecordingReady(machine="m1", slot=0, generation=1, path="/r/1", steps=2, bytes=1),
    )
    assert [event.type for event in before] == ["roles.found"]
    assert [event.type for event in told(core, launch("m1", 1))] == ["standby.warm"]


def test_the_arrival_of_an_earlier_life_may_be_heard_last() -> None:
    """A machine that came back counts, also when its first arrival is heard after its second."""
    roster = Roster()
    for event in (submitted(2, 1), joined("m0", "second"), joined("m0", "first"), failed("m0", "first")):
        roster.note(event)
    assert [machine.incarnation for machine in roster.idle()] == ["second"]
    assert roster.life("m0") == "second"
    assert not roster.dead("m0")


def test_the_earlier_of_two_lives_is_the_one_that_was_replaced() -> None:
    """Whichever arrival is heard first, it is the older life that is declared dead."""
    for order in ((0, 1), (1, 0)):
        core = HealthCore()
        arrivals = [
            envelope(joined("m0", "first"), time=BEGIN),
            envelope(joined("m0", "second"), time=BEGIN + 5.0),
        ]
        said = [
            output.event
            for place in order
            for output in core.handle(arrivals[place], BEGIN + 6.0)
            if isinstance(output, Say)
        ]
        assert [(event.type, event.incarnation) for event in said] == [("machine.failed", "first")]  # type: ignore[attr-defined]


def test_a_machine_may_come_back_with_a_clock_that_was_set_back() -> None:
    """An hour before its first life by its own clock, and again: what is over has no say in who is there."""
    core = HealthCore()
    core.handle(envelope(joined("m0", "first"), time=BEGIN + 3600.0), BEGIN)
    silent = say.LeaseExpired(machine="m0", incarnation="first", silent_seconds=1.4, limit_seconds=1.2)
    absent = say.MachineProbed(machine="m0", incarnation="first", answer="absent")
    assert [event.type for event in told(core, silent, absent)] == ["machine.failed"]
    assert told(core, joined("m0", "second")) == []
    assert told(core, say.MachineLeft(machine="m0", incarnation="second", reason="released")) == []
    assert core.handle(envelope(joined("m0", "third"), time=BEGIN - 3600.0), BEGIN) == []
    assert core.state("m0") is Health.WELL


def test_a_machine_that_is_lost_before_the_launch_is_asked_for_again() -> None:
    """Too few machines to begin with is a reason to ask for one, also in a job without standbys."""
    core = StandbyCore()
    assert not told(core, submitted(3, 0), *map(joined, ("m0", "m1", "m2")))
    assert [event.type for event in told(core, failed("m1"))] == ["standby.replenish"]
    assert not told(core, joined("m3"))


def test_a_job_that_cannot_begin_says_so() -> None:
    """When machines are lost before the launch and too few are left, the job is held, and says so once."""
    core = PlannerCore()
    assert not told(core, submitted(3, 0), *map(joined, ("m0", "m1")))
    (held,) = told(core, failed("m1"), failed("m0"))
    assert isinstance(held, say.JobHeld)
    assert "m1 was lost before the first launch" in held.reason
    assert "trainmover machine" in held.reason


def up(machine: str, role: str = "") -> say.RankStarted:
    """A rank's process is there."""
    return say.RankStarted(
        machine=machine,
        incarnation="a",
        slot=0,
        mode="sandbox" if role else "live",
        generation=1,
        pid=1,
        endpoint=say.Endpoint(host="10.0.0.1", port=1, life=machine),
        role=role,
    )


def test_training_in_an_epoch_that_was_given_up_is_gone_on_with() -> None:
    """The first epoch was given up, as rank 0 could not be heard, and trained all the same."""
    core = PlannerCore()
    before = told(core, submitted(2, 0), *map(joined, ("m0", "m1")), up("m0"), up("m1"))
    assert [event.type for event in before] == ["machine.launch", "machine.launch", "plan.ready"]
    role = say.MachineRole(name="all", seats=(say.SeatRow(first=0, count=2),), representative=1)
    said = told(
        core,
        failed("m0"),
        say.SwitchAborted(epoch=1, incidents=(), reason="m0 failed"),
        say.TrainingStarted(generation=1, epoch=1, step=1, groups={}),
        described("m0", 0),
        described("m1", 1),
        say.RolesFound(generation=1, roles=(role,)),
        say.RecordingReady(machine="m1", slot=0, generation=1, path="/r/1", steps=2, bytes=1),
        joined("m2"),
        up("m2", "all"),
        say.StandbyAssigned(
            incident="inc-1",
            kind="failure",
            leaver="m0",
            joiner="m2",
            joiner_incarnation="a",
            generation=1,
            role="all",
        ),
    )
    plan = said[-1]
    assert isinstance(plan, say.PlanReady), said
    assert (plan.epoch, plan.base_epoch, plan.kind, plan.machines) == (2, 0, "failure", ("m2", "m1"))


class Listing(Decider):
    """Notes the order in which it is fed."""

    name: ClassVar[str] = "planner"
    SAYS: ClassVar[tuple[type[say.Event], ...]] = ()
    HEARS: ClassVar[Any] = {say.MachineJoined: noted}

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def handle(self, envelope: Envelope, now: float) -> list[Output]:
        """Note it."""
        self.order.append(envelope.id)
        return []


def test_a_start_waits_for_inputs_that_are_on_their_way_into_the_log() -> None:
    """A service that is born again while an input is stored late hears it in its place all the same."""
    loop = VirtualLoop()
    exchange = Exchange(loop, draw(0))
    sender = exchange.outlet(Process("sender"))
    second = envelope(joined("m2"), name="second")
    entry = say.JournalEntry(
        service="planner", number=2, input="second", now=BEGIN, outputs=(), quiet={"first": BEGIN}
    )
    for item in (second, envelope(entry, name="entry")):
        sender.publish(item)
    loop.run_until(lambda: False, 1.0)
    loop.later(3.0, sender.publish, envelope(joined("m1"), name="first"))
    core, process, stop = Listing(), Process("planner"), asyncio.Event()
    shell = Shell(core, SimulatedBus(exchange, process), clock=lambda: BEGIN + loop.time())
    task = loop.create_task(shell.run(stop), context=loop.within(process))
    loop.run_until(lambda: len(core.order) == 2, 30.0)
    assert core.order == ["first", "second"]
    stop.set()
    assert loop.run_until(task.done, 60.0)


class Alarm(Decider):
    """Asks to be woken a while after a machine joined."""

    name: ClassVar[str] = "planner"
    SAYS: ClassVar[tuple[type[say.Event], ...]] = (say.LinkRepair,)

    def _joined(self, event: say.MachineJoined) -> None:
        self.do(SetTimer("alarm", self.now + 5.0))

    def _fired(self, event: say.TimerFired) -> None:
        self.say(say.LinkRepair(epoch=1, reason="woken"))

    HEARS: ClassVar[Any] = {say.MachineJoined: _joined, say.TimerFired: _fired}


def test_a_clock_that_was_set_back_does_not_put_deadlines_off() -> None:
    """A service that is born again with a clock that is an hour slow keeps its deadlines."""
    loop = VirtualLoop()
    exchange = Exchange(loop, draw(0))
    sender = exchange.outlet(Process("sender"))
    sender.publish(envelope(joined("m1"), name="cause"))
    entry = say.JournalEntry(service="planner", number=1, input="cause", now=BEGIN, outputs=())
    sender.publish(envelope(entry, name="entry"))
    loop.run_until(lambda: False, 1.0)
    process, stop = Process("planner"), asyncio.Event()
    bus = SimulatedBus(exchange, process)
    shell = Shell(Alarm(), bus, clock=lambda: BEGIN + loop.time() - 3600.0)
    task = loop.create_task(shell.run(stop), context=loop.within(process))
    assert loop.run_until(lambda: any(item.type == "link.repair" for item in exchange.log), 60.0)
    assert loop.time() < 10.0
    stop.set()
    assert loop.run_until(task.done, 60.0)
