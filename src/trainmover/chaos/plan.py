"""Plans: what goes wrong in one run, drawn from a seed.

What lives here: the kinds of troubles, what a plan consists of, and how a seed becomes one.  What never
lives here: carrying it out (``hands``), the faults that ranks carry out themselves (``trainmover.faults``).

What is drawn is what TrainMover promises to survive.  A machine and the next one, which keeps its private
state, may not be lost together, unless there are checkpoints: so without them machines are lost in steps
of their own, and one that is cut off (for which there is no telling in which step it is noticed) is the only
one.  Everything else may come together.

What a lost machine costs is a policy of the job, and so is what may be drawn.  Where only checkpoints have a
lost state, nothing is lost before there is one, and the disk is never full.  Where a job shrinks, one of two
neighbours in the bracketing of sums is never lost, so that the sums have the bits of full strength; with no
spare at all, nothing is lost before it is known which ranks are replicas.

Every plan replaces some machine.  A trouble begins when a rank is at a point (it *pauses* there meanwhile),
or a moment after an event.  Not every moment comes in every run (a standby that is never assigned, a fourth
switch); a trouble whose moment has not come begins at a late step instead, so none is drawn in vain.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from trainmover.faults import STEP_POINTS, SWITCH_POINTS, FaultSpec

TroubleKind = Literal["service", "bus", "stall", "disk", "clock", "cut", "part", "narrow"]
NetworkKind = Literal["cut", "part", "narrow"]
NETWORK: Final[tuple[NetworkKind, ...]] = get_args(NetworkKind)
"""What takes networks of the machines' own."""

WHAT: Final[dict[TroubleKind, str]] = {
    "service": "SIGKILL to a service",
    "bus": "SIGKILL to the bus, which is started again",
    "stall": "SIGSTOP to the bus, SIGCONT some seconds later",
    "disk": "the disk of the run folder is full for some seconds",
    "clock": "the clock of a service or a machine steps",
    "cut": "a machine loses its network for some seconds",
    "part": "two machines do not reach each other for some seconds",
    "narrow": "large packets between two machines are lost for some seconds",
}

UNDISTURBED: Final = -1
"""In the place of a seed: the run in which nothing goes wrong."""

SERVICES: Final = ("health", "standby", "planner", "switcher")

MOMENTS: Final[dict[str, tuple[int, int]]] = {
    "training.started": (1, 1),
    "roles.found": (1, 1),
    "recording.ready": (1, 1),
    "standby.parked": (1, 2),
    "standby.assigned": (1, 2),
    "plan.ready": (1, 3),
    "switch.prepare": (1, 3),
    "switch.prepared": (1, 9),
    "switch.adopted": (1, 9),
    "switch.committed": (1, 3),
    "standby.replenish": (1, 1),
    "training.resumed": (1, 2),
}
"""Events after which a trouble may begin, and at the first and last of how many: a start is a switch, too."""

PAUSE_SECONDS: Final = 0.5
FIRST_STEP: Final = 3
"""Faults before this step index make a job start from nothing; few are drawn there."""
ROLES_STEP: Final = 12
"""By this step index it is known, in runs of chaos, which ranks are replicas."""
STATE_EVERY: Final = 5
"""Steps between checkpoints where they are all that has a lost state, and none were drawn."""

Exhausted = Literal["hold", "shrink"]
State = Literal["mirror", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong round the ranks.

    Attributes:
        kind: what.
        target: the service or machine; for ``part`` and ``narrow`` two machines, joined by ``+``.
        seconds: how long it lasts; for ``clock`` by how much it steps.
        moment: the event after which it begins, or the pause (a fault spec) in which it does.
        nth: at which of the events.
        delay: how long after it, in seconds.
        latest: index of the step with which it begins where that has not come.
    """

    kind: TroubleKind
    target: str = ""
    seconds: float = 0.0
    moment: str = "training.started"
    nth: int = 1
    delay: float = 0.0
    latest: int | None = None

    def __str__(self) -> str:
        what = f"{self.kind}:{self.target}" if self.target else self.kind
        if self.kind == "clock":
            what += f" by {self.seconds:+g} s"
        elif self.seconds:
            what += f" for {self.seconds:g} s"
        count = f" {self.nth}" if self.nth > 1 else ""
        latest = "" if self.latest is None else f" or at step {self.latest}"
        return f"{what} {self.delay:g} s after {self.moment}{count}{latest}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes wrong in one run.

    Attributes:
        seed: what it was drawn from.
        faults: what ranks carry out; the pauses among them are moments of troubles.
        troubles: what is done from outside.
        checkpoint_every: steps between checkpoints; 0: none are made.
    """

    seed: int
    faults: tuple[FaultSpec, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    checkpoint_every: int = 0

    def __str__(self) -> str:
        wrong = [str(fault) for fault in self.faults if fault.kind != "pause"]
        wrong += [str(trouble) for trouble in self.troubles]
        if self.checkpoint_every:
            wrong.append(f"a checkpoint every {self.checkpoint_every} steps")
        return "; ".join(wrong)


@dataclass(frozen=True, slots=True)
class Setting:
    """What plans are drawn for.

    Attributes:
        machines: members.
        ranks_per_machine: ranks on each.
        standbys: spares.
        steps: steps of the job.
        kinds: troubles that can be made here.
        checkpoints: the script can go on from checkpoints.
        on_exhausted, state: policies of the job, as in ``trainmover run``.
    """

    machines: int
    ranks_per_machine: int
    standbys: int
    steps: int
    kinds: tuple[TroubleKind, ...] = get_args(TroubleKind)
    checkpoints: bool = True
    on_exhausted: Exhausted = "hold"
    state: State = "mirror"


def undisturbed(state: State) -> Plan:
    """The plan in which nothing goes wrong; where only checkpoints have a lost state, there are some."""
    return Plan(UNDISTURBED, checkpoint_every=STATE_EVERY if state == "checkpoint" else 0)


def draw(seed: int, setting: Setting) -> Plan:
    """The plan of a seed."""
    return _Drawing(seed, setting).plan()


@dataclass
class _Drawing:
    seed: int
    setting: Setting
    faults: list[FaultSpec] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"chaos/{self.seed}")
        self.first = 0
        """Index of the first step in which a machine may be lost."""

    def plan(self) -> Plan:
        chance, setting = self.chance, self.setting
        every = chance.choice([0, 0, 3, 7]) if setting.checkpoints else 0
        if setting.state == "checkpoint":
            every = every or STATE_EVERY
            self.first = 2 * every + FIRST_STEP
        if setting.on_exhausted == "shrink" and not setting.standbys:
            self.first = max(self.first, ROLES_STEP)
        apart = 2 if setting.on_exhausted == "shrink" else 1
        members = [f"m{number}" for number in range(0, setting.machines, apart)]
        spares = [f"m{setting.machines + number}" for number in range(setting.standbys)]
        losses = chance.choice([0, 1, 1, 1, 2, 2, 3])
        away = [kind for kind in NETWORK if kind in setting.kinds]
        if away and chance.random() < 0.3:
            self._network(chance.choice(away), members)
            losses = losses if every else 0
        steps = self._steps(losses)
        for step in steps:
            self._loss(step, members)
        if not steps or self.chance.random() < 0.4:
            self.faults.append(FaultSpec("move", chance.choice(members), self._step()))
        if every and losses and chance.random() < 0.4:
            self._loss(steps[0], members)
        if spares and chance.random() < 0.4:
            point = chance.choice(list(SWITCH_POINTS))
            self._fault("kill", chance.choice(spares), 0, point)
        if chance.random() < 0.2:
            self.faults.append(FaultSpec("slow", chance.choice(members), self._step(), factor=3.0))
        around = [kind for kind in setting.kinds if kind not in NETWORK]
        if setting.state == "checkpoint" and "disk" in around:
            around.remove("disk")
        for _ in range(chance.randint(0, 3) if around else 0):
            self._around(chance.choice(around), members)
        return Plan(self.seed, tuple(self.faults), tuple(self.troubles), every)

    # -- what ranks do -----------------------------------------------------------------------------

    def _step(self) -> int:
        steps = self.setting.steps
        first = max(self.first, 0 if self.chance.random() < 0.15 else FIRST_STEP)
        last = steps - 1 if steps < 8 or self.chance.random() < 0.2 else steps * 3 // 4
        return self.chance.randrange(min(first, steps - 2), last)

    def _steps(self, count: int) -> list[int]:
        """Different steps, not one after the other."""
        found: list[int] = []
        for _ in range(100):
            step = self._step()
            if len(found) < count and all(abs(step - other) > 1 for other in found):
                found.append(step)
        return sorted(found)

    def _loss(self, step: int, machines: Sequence[str]) -> None:
        kind: Literal["kill", "stop"] = self.chance.choice(["kill", "kill", "stop"])
        self._fault(kind, self.chance.choice(list(machines)), step, self.chance.choice(list(STEP_POINTS)))

    def _fault(self, kind: Literal["kill", "stop"], machine: str, step: int, point: str) -> None:
        seconds = self.chance.choice([0.3, 1.5, 4.0, 8.0]) if kind == "stop" else None
        nth = self.chance.choice([1, 2]) if point == "voting" else 1
        slot = self.chance.randrange(self.setting.ranks_per_machine)
        self.faults.append(FaultSpec(kind, machine, step, seconds=seconds, at=point, nth=nth, slot=slot))

    # -- what is done from outside -----------------------------------------------------------------

    def _moment(self, members: Collection[str], *, paused: bool = False) -> tuple[str, int, float]:
        """When: in a pause of a rank at some point, or else a moment after an event."""
        chance = self.chance
        if chance.random() < 0.5 or paused:
            points = [*STEP_POINTS] if chance.random() < 0.6 else [*SWITCH_POINTS]
            pause = FaultSpec(
                "pause",
                chance.choice(list(members)),
                self._step(),
                seconds=PAUSE_SECONDS,
                at=chance.choice(points),
            )
            self.faults.append(pause)
            return str(pause), 1, 0.0
        moment = chance.choice(list(MOMENTS))
        delay = chance.choice([0.0, 0.0, 0.01, 0.1, 1.0])
        return moment, chance.randint(*MOMENTS[moment]), round(delay * chance.random(), 3)

    @property
    def _latest(self) -> int:
        return self.setting.steps * 3 // 4

    def _network(self, kind: NetworkKind, members: Sequence[str]) -> None:
        moment, nth, delay = self._moment(members, paused=bool(self.first))
        seconds = self.chance.choice([0.5, 2.5, 5.0, 9.0])
        names = self.chance.sample(list(members), 2 if kind != "cut" and len(members) > 1 else 1)
        target = "+".join(sorted(names))
        self.troubles.append(Trouble(kind, target, seconds, moment, nth, delay, self._latest))

    def _around(self, kind: TroubleKind, members: Sequence[str]) -> None:
        chance = self.chance
        moment, nth, delay = self._moment(members)
        match kind:
            case "service":
                target, seconds = chance.choice(SERVICES), 0.0
            case "clock":
                target = chance.choice([*SERVICES, *members])
                seconds = chance.choice([-3600.0, -30.0, -2.0, 2.0, 30.0, 3600.0])
            case "bus":
                target, seconds = "", 0.0
            case _:
                target, seconds = "", chance.choice([0.5, 2.0, 4.0, 7.0])
        self.troubles.append(Trouble(kind, target, seconds, moment, nth, delay, self._latest))
