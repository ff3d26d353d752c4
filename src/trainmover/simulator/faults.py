"""Faults: what goes wrong in a run, when, and to whom, drawn from the seed.

What lives here: the kinds of faults and how they are carried out on a cluster.  What never lives
here: whether the cluster survives them.

Half of the faults have a time.  The others lie in wait for an event of an incident (the assignment, the
plan, the request to prepare, ...) and hit a part that the event names, a moment after it is said:
that is where the interleavings are.  A fault that finds nobody to hit does nothing.  Whatever can come
back (a frozen or cut off machine, a frozen service, an outage, a wrong clock) does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services import SERVICES

if TYPE_CHECKING:
    from trainmover.simulator.cluster import Cluster
    from trainmover.simulator.machines import SimulatedMachine

AMBUSHES: tuple[type[say.Event], ...] = (
    say.MachineLaunch,
    say.RankStarted,
    say.TrainingStarted,
    say.RankDescribed,
    say.RolesFound,
    say.StandbyWarm,
    say.StandbyParked,
    say.MachineFailed,
    say.MoveRequested,
    say.StandbyAssigned,
    say.PlanReady,
    say.SwitchPrepare,
    say.SwitchPrepared,
    say.SwitchAdopted,
    say.SwitchCommitted,
    say.SwitchAborted,
    say.RankFinished,
)
"""Events that faults lie in wait for."""


STEPS: tuple[float, ...] = (-3600.0, -30.0, -2.0, 2.0, 30.0, 3600.0)
"""Seconds by which a clock steps."""

Act = Callable[[say.Event], str]
"""Does something because of an event, and says what it did."""


class Faults:
    """All faults of one run; see the module.

    Attributes:
        log: what was done, with its time, for the report.
        last: when the last fault was begun, or what it did was undone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.log: list[tuple[float, str]] = []
        self.last = 0.0
        self._cluster = cluster
        self._chance = cluster.setup.random("faults")
        self._still_chance = cluster.setup.random("standing still")
        self._clock_chance = cluster.setup.random("clocks of machines")
        self._part_chance = cluster.setup.random("partitions")
        self._narrow_chance = cluster.setup.random("narrow")
        self._ambushes: list[tuple[type[say.Event], int]] = []
        self._laid: list[tuple[type[say.Event], int, Act]] = []
        kinds: dict[Callable[[str, SimulatedMachine | None], str], int] = {
            self._kill: 6,
            self._power: 2,
            self._freeze: 4,
            self._cut: 4,
            self._rank_dies: 3,
            self._rank_stops: 2,
            self._link: 3,
            self._move: 5,
            self._several: 2,
            self._crash: 8,
            self._freeze_service: 2,
            self._stall: 3,
            self._outage: 3,
            self._slow: 2,
            self._clock: 2,
            self._reboot: 2,
            self._join: 1,
            self._unrecorded: 1,
            self._raise: 1,
        }
        self._kinds, self._weights = list(kinds), list(kinds.values())
        self._plan()

    def _plan(self) -> None:
        setup, chance = self._cluster.setup, self._chance
        for _ in range(setup.faults):
            if chance.random() < 0.5:
                self._cluster.later(chance.uniform(0.0, setup.fault_seconds), self._strike, "", None)
            else:
                wait = chance.uniform(0.0, setup.fault_seconds)
                kind = chance.choice(AMBUSHES)
                self._cluster.later(wait, self._lie_in_wait, kind, chance.randint(0, 3))

    def _lie_in_wait(self, kind: type[say.Event], skip: int) -> None:
        self._ambushes.append((kind, skip))

    def ambush(self, kind: type[say.Event], act: Act, *, skip: int = 0) -> None:
        """Do something at the next event of a kind, or after some more of them; nothing is drawn."""
        self._laid.append((kind, skip, act))

    def said(self, envelope: Envelope) -> None:
        """An event is said; perhaps a fault waits for it."""
        event = envelope.event
        laid, self._laid = self._laid, []
        for kind, skip, act in laid:
            if not isinstance(event, kind):
                self._laid.append((kind, skip, act))
            elif skip:
                self._laid.append((kind, skip - 1, act))
            else:
                self._cluster.later(0.0, self._spring, act, event)
        for place, (kind, skip) in enumerate(self._ambushes):
            if not isinstance(event, kind):
                continue
            if skip:
                self._ambushes[place] = (kind, skip - 1)
                continue
            del self._ambushes[place]
            if self._cluster.now < self._cluster.setup.fault_seconds:
                delay = self._chance.choice([0.0, 0.001, 0.01, 0.1, 1.0]) * self._chance.random()
                self._cluster.later(delay, self._strike, f" at {event.type}", self._named(event))
            return

    def _spring(self, act: Act, event: say.Event) -> None:
        if not self._cluster.over and (what := act(event)):
            self._note(f"{what} at {event.type}")

    def _named(self, event: say.Event) -> str | None:
        """A machine that the event is about."""
        names: list[str] = []
        for attribute in ("machine", "joiner", "leaver"):
            value = getattr(event, attribute, None)
            names += [value] if isinstance(value, str) else []
        for attribute in ("joiners", "leavers", "machines"):
            value = getattr(event, attribute, ())
            names += [self._chance.choice(value)] if value else []
        return self._chance.choice(names) if names else None

    def _strike(self, why: str, name: str | None) -> None:
        cluster = self._cluster
        if cluster.over:
            return
        (kind,) = self._chance.choices(self._kinds, self._weights)
        machine = cluster.machines.get(name) if name is not None else None
        if machine is None or not machine.alive:
            alive = cluster.living()
            machine = self._chance.choice(alive) if alive else None
        what = kind(why, machine)
        if what:
            self._note(f"{what}{why}")

    def _note(self, what: str) -> None:
        self.last = self._cluster.now
        self.log.append((self._cluster.now, what))

    def _undo(self, delay: float, what: str, act: Callable[[], None]) -> None:
        """What a fault did is undone after a while, also after the time of faults."""

        def undo() -> None:
            act()
            self._note(what)

        self._cluster.later(delay, undo)

    def _seconds(self) -> float:
        return self._chance.choice([0.3, 1.5, 2.5, 4.0, 8.0, 20.0]) * self._chance.uniform(0.7, 1.3)

    # -- machines ----------------------------------------------------------------------------------

    def _kill(self, why: str, machine: SimulatedMachine | None) -> str:
        if machine is None:
            return ""
        machine.kill()
        return f"{machine} is killed"

    def _power(self, why: str, machine: SimulatedMachine | None) -> str:
        if machine is None:
            return ""
        machine.kill(hanging=True)
        return f"{machine} loses its power"

    def _freeze(self, why: str, machine: SimulatedMachine | None) -> str:
        if machine is None or machine.process.frozen:
            return ""
        machine.freeze()
        seconds = self._seconds()
        self._undo(seconds, f"{machine} goes on", machine.thaw)
        return f"{machine} is frozen for {seconds:.1f} s"

    def _cut(self, why: str, machine: SimulatedMachine | None) -> str:
        if machine is None or machine.outlet.cut or machine.apart:
            return ""
        bus, peers = self._chance.choice([(True, False), (False, True), (True, True)])
        machine.cut(bus=bus, peers=peers)
        seconds = self._seconds()
        self._undo(seconds, f"{machine} is reached again", machine.heal)
        what = "everything" if bus and peers else "the bus" if bus else "its peers"
        return f"{machine} is cut off from {what} for {seconds:.1f} s"

    def _rank_dies(self, why: str, machine: SimulatedMachine | None) -> str:
        ranks = [rank for rank in machine.ranks.all if rank.runs] if machine is not None else []
        if machine is None or not ranks:
            return ""
        rank = self._chance.choice(ranks)
        machine.rank_dies(rank)
        return f"rank process {rank} is killed"

    def _raise(self, why: str, machine: SimulatedMachine | None) -> str:
        ranks = [rank for rank in machine.ranks.all if rank.runs] if machine is not None else []
        if machine is None or not ranks:
            return ""
        rank = self._chance.choice(ranks)
        machine.rank_dies(rank, error="ValueError: a sample that cannot be read")
        return f"rank {rank} raises"

    def _rank_stops(self, why: str, machine: SimulatedMachine | None) -> str:
        ranks = [rank for rank in machine.ranks.all if rank.runs] if machine is not None else []
        if not ranks:
            return ""
        rank = self._chance.choice(ranks)
        rank.stopped = True
        seconds = self._seconds()

        def go_on() -> None:
            rank.stopped = False
            self._cluster.training.look_again()

        self._undo(seconds, f"rank process {rank} goes on", go_on)
        return f"rank process {rank} is stopped for {seconds:.1f} s"

    def _link(self, why: str, machine: SimulatedMachine | None) -> str:
        live = [rank for other in self._cluster.living() for rank in other.ranks.all if rank.assembly]
        if len({rank.machine.name for rank in live}) < 2:
            return ""
        one = self._chance.choice(live)
        other = self._chance.choice([rank for rank in live if rank.machine is not one.machine])
        if self._part_chance.random() < 0.5:
            return self._part(one.machine.name, other.machine.name)
        self._cluster.training.break_link(one, other)
        return f"the link {one.place}-{other.place} breaks"

    def _part(self, one: str, other: str) -> str:
        """Two machines do not reach each other, for a while or for good; everybody else reaches both.

        Or what they send each other must be small.
        """
        pair, chance, training = frozenset({one, other}), self._part_chance, self._cluster.training
        if pair in training.reach.parted | training.reach.narrow:
            return ""
        narrow = self._narrow_chance.random() < 1 / 3
        pairs = training.reach.narrow if narrow else training.reach.parted
        what = "let only small packets pass" if narrow else "do not reach each other"
        pairs.add(pair)
        seconds = chance.choice([3.0, 16.0, 34.0, 36.0, 80.0, 0.0]) * chance.uniform(0.7, 1.3)
        if not seconds:
            return f"{one} and {other} {what} from now on"

        def heal() -> None:
            pairs.discard(pair)
            training.look_again()

        self._undo(seconds, f"{one} and {other} reach each other again", heal)
        return f"{one} and {other} {what} for {seconds:.1f} s"

    def _several(self, why: str, machine: SimulatedMachine | None) -> str:
        alive = self._cluster.living()
        count = min(len(alive), self._chance.randint(2, 3))
        chosen = self._chance.sample(alive, count)
        for other in chosen:
            other.kill()
        return f"{', '.join(map(str, chosen))} are killed"

    def _reboot(self, why: str, machine: SimulatedMachine | None) -> str:
        """A machine is killed, and its name comes back as another life."""
        if machine is None:
            return ""
        machine.kill(hanging=self._chance.random() < 0.5)
        seconds = self._seconds()
        name = machine.name

        def come_back() -> None:
            if name in self._cluster.machines and not self._cluster.machines[name].alive:
                self._cluster.join(name)

        self._undo(seconds, f"{name} is started again", come_back)
        return f"{machine} reboots for {seconds:.1f} s"

    # -- operators ---------------------------------------------------------------------------------

    def _move(self, why: str, machine: SimulatedMachine | None) -> str:
        cluster = self._cluster
        names = [other.name for other in cluster.living()]
        if not names:
            return ""
        name = self._chance.choice([*cluster.watch.members] or names)
        to = self._chance.choice(names) if self._chance.random() < 0.3 else None
        cluster.operator(say.MoveRequested(machine=name, to=to))
        return f"an operator asks to move {name}{f' to {to}' if to else ''}"

    def _unrecorded(self, why: str, machine: SimulatedMachine | None) -> str:
        """Recordings of one role fail from now on: its disk is full."""
        names = ["all"] if self._cluster.setup.roles == 1 else ["first", "middle", "last"]
        role = self._chance.choice(names)
        self._cluster.training.describing.unrecorded.add(role)
        return f"the role {role} can no more be recorded"

    def _join(self, why: str, machine: SimulatedMachine | None) -> str:
        return f"{self._cluster.join()} is added"

    # -- services ----------------------------------------------------------------------------------

    def _crash(self, why: str, machine: SimulatedMachine | None) -> str:
        name = self._chance.choice(list(SERVICES))
        publishes = self._chance.choice([0, 1, 1, 2, 3, 4])
        pause = self._chance.choice([0.1, 0.5, 1.0, 5.0])
        self._cluster.hosts[name].crash(publishes, pause)
        when = f"before its {publishes}. publish" if publishes else "now"
        return f"service {name} dies {when}, for {pause:.1f} s"

    def _freeze_service(self, why: str, machine: SimulatedMachine | None) -> str:
        host = self._cluster.hosts[self._chance.choice(list(SERVICES))]
        if not host.up:
            return ""
        host.freeze()
        seconds = self._seconds()
        self._undo(seconds, f"service {host.name} goes on", host.thaw)
        return f"service {host.name} is frozen for {seconds:.1f} s"

    def _clock(self, why: str, machine: SimulatedMachine | None) -> str:
        host = self._cluster.hosts[self._chance.choice(list(SERVICES))]
        step = self._chance.choice(STEPS)
        host.offset += step
        what = f"the clock of service {host.name} steps by {step:+.0f} s"
        if machine is None:
            return what
        clocks, step = self._cluster.exchange.clocks, self._clock_chance.choice(STEPS)
        clocks[machine.name] = clocks.get(machine.name, 0.0) + step
        return f"{what}, that of {machine.name} by {step:+.0f} s"

    # -- the bus -----------------------------------------------------------------------------------

    def _stall(self, why: str, machine: SimulatedMachine | None) -> str:
        exchange = self._cluster.exchange
        if exchange.stalled or exchange.out or exchange.still_since is not None:
            return ""
        seconds = self._chance.uniform(4.0, 9.0)
        if self._still_chance.random() < 0.5:
            return self._stand_still()
        exchange.stalled = True

        def end() -> None:
            exchange.stalled = False

        self._undo(seconds, "the log takes events again", end)
        return f"the log stalls for {seconds:.1f} s"

    def _stand_still(self) -> str:
        """The whole server stops, not its log alone."""
        chance = self._still_chance
        seconds = chance.choice([0.6, 1.5, 2.5, 3.0, 4.0, 9.0]) * chance.uniform(0.7, 1.3)
        self._cluster.exchange.stand_still()
        self._undo(seconds, "the bus goes on", self._cluster.exchange.go_on)
        return f"the bus stands still for {seconds:.1f} s"

    def _outage(self, why: str, machine: SimulatedMachine | None) -> str:
        exchange = self._cluster.exchange
        if exchange.stalled or exchange.out or exchange.still_since is not None:
            return ""
        exchange.go_out()
        seconds = self._chance.uniform(0.2, 6.0)
        self._undo(seconds, "the bus is back", exchange.come_back)
        return f"the bus is away for {seconds:.1f} s"

    def _slow(self, why: str, machine: SimulatedMachine | None) -> str:
        exchange = self._cluster.exchange
        factor = self._chance.choice([3.0, 10.0, 50.0])
        exchange.slow = factor
        seconds = self._seconds()

        def end() -> None:
            exchange.slow = 1.0

        self._undo(seconds, "the bus has its pace again", end)
        return f"the bus is {factor:.0f} times slower for {seconds:.1f} s"
