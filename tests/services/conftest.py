"""A cluster that is not there: scripted machines for the cores to decide about.

:class:`Plant` is everything that a service does not decide: machines, their ranks, and a training
that steps while all its members are well.  It knows no clock and no bus; it is given ``later`` and
``publish``.  :class:`World` drives it and four cores in virtual time with a seed, each service
hearing with its own delays and doubles; :class:`Bench` drives one core by hand.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trainmover.events import catalogue as say
from trainmover.events.codec import decode_message, encode_message
from trainmover.events.envelope import Envelope
from trainmover.services import SERVICES
from trainmover.services.core import (
    CancelTimer,
    Core,
    Output,
    Probe,
    Say,
    SetTimer,
    entry_id,
    envelopes_of,
    probe_id,
    timer_id,
)
from trainmover.services.described import Described
from trainmover.services.roles import find_roles

JOB = "job"


def submitted(machines: int = 3, slots: int = 1, standbys: int = 1, **more: Any) -> say.JobSubmitted:
    """A job's description."""
    return say.JobSubmitted(
        script="train.py",
        cwd="/",
        python="python",
        machines=machines,
        ranks_per_machine=slots,
        standbys=standbys,
        run_dir="/run",
        **more,
    )


def joined(machine: str, life: str = "a", slots: int = 1) -> say.MachineJoined:
    """A machine's arrival."""
    return say.MachineJoined(machine=machine, incarnation=life, host="127.0.0.1", slots=slots, pid=1)


def launch(
    machine: str, position: int, life: str = "a", generation: int = 1, n: int = 3
) -> say.MachineLaunch:
    """A machine's seat."""
    return say.MachineLaunch(
        machine=machine,
        incarnation=life,
        position=position,
        world_size=n,
        ranks_per_machine=1,
        generation=generation,
        record=True,
    )


def failed(machine: str, life: str = "a") -> say.MachineFailed:
    """A verdict."""
    return say.MachineFailed(machine=machine, incarnation=life, reason="test")


def left(machine: str, life: str = "a", reason: str = "stopped") -> say.MachineLeft:
    """A machine's departure."""
    return say.MachineLeft(machine=machine, incarnation=life, reason=reason)


def endpoint(machine: str, slot: int = 0, life: str = "a", role: str = "") -> say.Endpoint:
    """Where a rank listens."""
    return say.Endpoint(host="127.0.0.1", port=1000 + slot, life=f"{machine}-{life}-{slot}{role}")


def up(
    machine: str,
    slot: int = 0,
    life: str = "a",
    mode: Any = "live",
    generation: int = 1,
    role: str | None = None,
) -> say.RankStarted:
    """A rank's process is up; one in the sandbox in some role."""
    role = ("all" if mode == "sandbox" else "") if role is None else role
    return say.RankStarted(
        machine=machine,
        incarnation=life,
        slot=slot,
        mode=mode,
        generation=generation,
        pid=1,
        endpoint=endpoint(machine, slot, life, role),
        role=role,
    )


def described(
    machine: str,
    rank: int,
    *,
    slots: int = 1,
    generation: int = 1,
    kind: str = "x",
    state: str | None = None,
    stage: tuple[int, int] | None = None,
    groups: Iterable[say.GroupRow] = (),
    shares: bool = False,
) -> say.RankDescribed:
    """A rank says what it is: one of a kind, with the state of the others of its kind in its slot."""
    return say.RankDescribed(
        machine=machine,
        incarnation="a",
        slot=rank % slots,
        rank=rank,
        generation=generation,
        signature=f"{kind}-{rank % slots}",
        state=state or f"{kind}-{rank % slots}",
        stage=stage,
        groups=tuple(groups),
        shares=shares,
    )


def all_described(
    machines: Iterable[str] | int = 3,
    kinds: Iterable[str] = (),
    *,
    slots: int = 1,
    generation: int = 1,
    groups: Callable[[int], Iterable[say.GroupRow]] | None = None,
) -> list[say.RankDescribed]:
    """All ranks say what they are; ``kinds`` by seat, all of one without."""
    names = [f"m{seat}" for seat in range(machines)] if isinstance(machines, int) else list(machines)
    of = list(kinds) or ["x"] * len(names)
    world = say.GroupRow(name="default", first=0, count=len(names) * slots)
    return [
        described(
            name,
            seat * slots + slot,
            slots=slots,
            generation=generation,
            kind=of[seat],
            groups=(world,) if groups is None else groups(seat * slots + slot),
        )
        for seat, name in enumerate(names)
        for slot in range(slots)
    ]


def found(
    machines: int = 3, kinds: Iterable[str] = (), *, generation: int = 1, slots: int = 1
) -> say.RolesFound:
    """The roles that follow from the kinds of seats."""
    told = Described()
    for event in all_described(machines, kinds, slots=slots, generation=generation):
        told.note(event)
    return find_roles(told, machines, slots, generation)


def ready(machines: int = 3, *, slots: int = 1, generation: int = 1, epoch: int = 1) -> list[say.Event]:
    """Everything that must be known before a machine can be replaced: one role, recorded by m1."""
    return [
        started(generation, epoch),
        *all_described(machines, slots=slots, generation=generation),
        found(machines, generation=generation, slots=slots),
        *(recorded("m1", slot, generation) for slot in range(slots)),
    ]


def exited(
    machine: str,
    life: str = "a",
    *,
    mode: Any = "live",
    generation: int = 1,
    code: int | None = None,
    signal: int | None = None,
    error: str = "",
    slot: int = 0,
    role: str = "",
) -> say.RankExited:
    """A rank's process ended."""
    return say.RankExited(
        machine=machine,
        incarnation=life,
        slot=slot,
        mode=mode,
        generation=generation,
        pid=7,
        code=code,
        signal=signal,
        error=error,
        role=role,
    )


def broken(machine: str, peer: str, epoch: int = 1) -> say.LinkBroken:
    """A lost link."""
    return say.LinkBroken(
        epoch=epoch, rank=0, machine=machine, peer=1, peer_machine=peer, reason="connection reset"
    )


def started(generation: int = 1, epoch: int = 1) -> say.TrainingStarted:
    """The first committed step."""
    return say.TrainingStarted(generation=generation, epoch=epoch, step=1, groups={"default": (0, 1, 2)})


def recorded(machine: str, slot: int = 0, generation: int = 1) -> say.RecordingReady:
    """A recording is on disk."""
    return say.RecordingReady(
        machine=machine, slot=slot, generation=generation, path=f"/r/{machine}-{slot}", steps=2, bytes=1
    )


def parked(
    machine: str, slot: int = 0, life: str = "a", generation: int = 1, role: str = "all"
) -> say.StandbyParked:
    """A slot of a spare is warm in a role."""
    return say.StandbyParked(
        machine=machine,
        incarnation=life,
        slot=slot,
        generation=generation,
        shadow_steps=2,
        seconds={},
        role=role,
    )


def unrecorded(machine: str, slot: int = 0, generation: int = 1) -> say.RecordingFailed:
    """A recording will never be on disk."""
    return say.RecordingFailed(machine=machine, slot=slot, generation=generation, reason="too large")


def assigned(
    leaver: str,
    joiner: str,
    incident: str = "inc-1",
    kind: Any = "failure",
    generation: int = 1,
    role: str = "all",
) -> say.StandbyAssigned:
    """A spare takes a seat."""
    return say.StandbyAssigned(
        incident=incident,
        kind=kind,
        leaver=leaver,
        joiner=joiner,
        joiner_incarnation="a",
        generation=generation,
        role=role,
    )


def plan(
    epoch: int,
    machines: Iterable[str],
    *,
    kind: Any = "failure",
    base: int = 1,
    generation: int = 1,
    leavers: Iterable[str] = (),
    joiners: Iterable[str] = (),
    slots: int = 1,
) -> say.PlanReady:
    """A next layout."""
    machines = tuple(machines)
    return say.PlanReady(
        epoch=epoch,
        base_epoch=base,
        kind=kind,
        generation=generation,
        incidents=("inc-1",),
        machines=machines,
        ranks_per_machine=slots,
        leavers=tuple(leavers),
        joiners=tuple(joiners),
        endpoints=tuple(endpoint(m, s) for m in machines for s in range(slots)),
        links_added=(),
        links_dropped=(),
        links_total=3,
    )


def committed(
    epoch: int,
    machines: Iterable[str],
    *,
    kind: Any = "failure",
    leavers: Iterable[str] = (),
    joiners: Iterable[str] = (),
    generation: int = 1,
) -> say.SwitchCommitted:
    """An epoch came about."""
    return say.SwitchCommitted(
        epoch=epoch,
        kind=kind,
        incidents=("inc-1",),
        machines=tuple(machines),
        leavers=tuple(leavers),
        joiners=tuple(joiners),
        step=3,
        generation=generation,
    )


def prepared(epoch: int, rank: int, machine: str) -> say.SwitchPrepared:
    """A rank has its links."""
    return say.SwitchPrepared(
        epoch=epoch, rank=rank, machine=machine, seconds=0.1, links_made=1, links_kept=1
    )


def adopted(epoch: int, rank: int, machine: str, step: int = 3) -> say.SwitchAdopted:
    """A rank works in the epoch."""
    return say.SwitchAdopted(
        epoch=epoch,
        rank=rank,
        machine=machine,
        step=step,
        switch_seconds=0.1,
        copy_seconds=0.1,
        verify_seconds=0.1,
        bytes_received=1,
        bytes_sent=1,
    )


def finished(rank: int, machine: str, digest: str = "d") -> say.RankFinished:
    """A rank is done."""
    return say.RankFinished(machine=machine, slot=0, rank=rank, step=10, digest=digest)


class Bench:
    """One core, fed by hand; keeps what it said."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.now = 1000.0
        self.numbers = itertools.count()
        self.said: list[say.Event] = []
        self.timers: dict[str, float] = {}

    def hear(self, *events: say.Event, incident: str | None = None) -> list[Output]:
        """Feed events, one after the other; returns everything that came of them."""
        outputs: list[Output] = []
        for event in events:
            envelope = Envelope(
                id=f"t-{next(self.numbers)}",
                source="test",
                time=self.now,
                job=JOB,
                event=event,
                incident=incident,
            )
            outputs += self.take(envelope)
        return outputs

    def take(self, envelope: Envelope) -> list[Output]:
        """Feed one envelope."""
        outputs: list[Output] = self.core.handle(envelope, self.now)
        for output in outputs:
            match output:
                case Say(event=event):
                    self.said.append(event)
                case SetTimer(name=name, due=due):
                    self.timers[name] = due
                case CancelTimer(name=name):
                    self.timers.pop(name, None)
                case _:
                    pass
        return outputs

    def fire(self, name: str) -> list[Output]:
        """Let a timer's time come."""
        self.now = self.timers.pop(name)
        return self.hear(say.TimerFired(service=self.core.name, name=name, due=self.now))


def brief(outputs: Iterable[Output]) -> list[str]:
    """Outputs as short readable lines."""
    lines = []
    for output in outputs:
        match output:
            case Say(event=event):
                words = [event.type]
                for name in ("machine", "epoch", "leaver", "joiner", "machines"):
                    value = getattr(event, name, None)
                    if value is not None:
                        words.append(f"{name}={','.join(value) if isinstance(value, tuple) else value}")
                lines.append(" ".join(words))
            case SetTimer(name=name):
                lines.append(f"timer {name}")
            case CancelTimer(name=name):
                lines.append(f"no timer {name}")
            case Probe(machine=machine):
                lines.append(f"probe {machine}")
    return lines


# -- the plant -----------------------------------------------------------------------------------

Later = Callable[[float, Callable[[], None]], None]
Publish = Callable[[say.Event, str], None]


@dataclass
class Machine:
    """A scripted machine program and its ranks."""

    name: str
    life: str
    alive: bool = True
    frozen: bool = False
    generation: int = 0
    roles: set[str] = field(default_factory=set)

    @property
    def well(self) -> bool:
        return self.alive and not self.frozen


@dataclass
class Plant:
    """Machines, ranks and a training without decisions of their own."""

    later: Later
    publish: Publish
    slots: int = 1
    steps: int = 60
    step_seconds: float = 0.1
    start_seconds: float = 0.3
    lease_seconds: float = 1.3
    warm_steps: int = 2
    stages: int = 1
    shares: bool = False
    unrecorded: set[str] = field(default_factory=set)
    machines: dict[str, Machine] = field(default_factory=dict)
    layout: tuple[str, ...] = ()
    epoch: int = 0
    generation: int = 0
    step: int = 0
    fresh: bool = False
    over: bool = False
    committed: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    prepares: dict[int, say.SwitchPrepare] = field(default_factory=dict)
    ready: dict[int, set[int]] = field(default_factory=dict)
    at_step: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    on_prepare: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    lives: Iterator[int] = field(default_factory=itertools.count)

    def begin(self) -> None:
        """Let time begin."""
        self.later(self.step_seconds, self._tick)

    def join(self, name: str) -> Machine:
        """A new machine program joins."""
        machine = self.machines[name] = Machine(name, f"life{next(self.lives)}")
        self.publish(joined(name, machine.life, self.slots), name)
        return machine

    # -- faults

    def kill(self, name: str) -> None:
        """The machine and its ranks are gone; its peers lose their links."""
        machine = self.machines[name]
        machine.alive = False
        self._expire(machine)
        for index, other in enumerate(self.layout):
            if name in self.layout and other not in ("", name) and self.machines[other].well:
                peer = self.layout.index(name) * self.slots
                event = say.LinkBroken(
                    epoch=self.epoch,
                    rank=index * self.slots,
                    machine=other,
                    peer=peer,
                    peer_machine=name,
                    reason="reset",
                )
                self.publish(event, other)

    def freeze(self, name: str) -> None:
        """The machine stops without a word."""
        self.machines[name].frozen = True
        self._expire(self.machines[name])

    def cut(self, name: str, other: str) -> None:
        """A link between two living machines breaks: the training waits for a new epoch."""
        self.fresh, self.broken_at = True, self.epoch
        for a, b in ((name, other), (other, name)):
            self.publish(broken(a, b, self.epoch), a)

    broken_at: int = -1

    def _expire(self, machine: Machine) -> None:
        def expire() -> None:
            event = say.LeaseExpired(
                machine=machine.name, incarnation=machine.life, silent_seconds=1.3, limit_seconds=1.2
            )
            self.publish(event, "health")

        self.later(self.lease_seconds, expire)

    def answer(self, name: str) -> str:
        """What a probe finds."""
        machine = self.machines.get(name)
        return "absent" if machine is None or not machine.alive else "silent" if machine.frozen else "alive"

    # -- what machines and ranks do

    def hear(self, event: say.Event) -> None:
        """Obey."""
        machine = self.machines.get(getattr(event, "machine", ""))
        mine = machine is not None and machine.life == getattr(event, "incarnation", None)
        match event:
            case say.MachineLaunch() if mine and machine is not None:
                self._launch(machine, event)
            case say.StandbyWarm() if mine and machine is not None:
                self._sandbox(machine, event)
            case say.RolesFound() if event.generation == self.generation:
                for role in event.roles:
                    self.later(0.05, lambda role=role: self._record(role, event.generation))  # type: ignore[misc]
            case say.MachineFailed() if mine and machine is not None and machine.alive:
                machine.alive = False
                self.publish(left(machine.name, machine.life, "fenced"), machine.name)
            case say.SwitchPrepare():
                self._prepare(event)
            case say.SwitchAborted():
                self.prepares.pop(event.epoch, None)
            case say.SwitchCommitted():
                self.committed.append((event.epoch, event.machines))
                for name in event.leavers:
                    leaver = self.machines[name]
                    if leaver.well and name not in event.machines:
                        leaver.alive = False
                        self.publish(left(name, leaver.life, "released"), name)
                        if event.kind == "shrink":
                            self.later(0.1, lambda name=name: self.join(name) and None)  # type: ignore[misc]
            case say.JobCompleted() | say.JobFailed():
                self.over = True

    def _launch(self, machine: Machine, event: say.MachineLaunch) -> None:
        if event.generation > self.generation:
            self.generation, self.layout, self.step = event.generation, (), 0
            self.prepares.clear()
        if machine.generation < event.generation:
            machine.generation = event.generation
            self.later(self.start_seconds, lambda: self._ranks_up(machine, event.generation, "live"))

    def _ranks_up(self, machine: Machine, generation: int, mode: str, role: str = "") -> bool:
        if not machine.well or machine.generation != generation:
            return False
        for slot in range(self.slots):
            self.publish(up(machine.name, slot, machine.life, mode, generation, role), machine.name)
        return True

    def _sandbox(self, machine: Machine, event: say.StandbyWarm) -> None:
        if machine.generation < event.generation:
            machine.generation, machine.roles = event.generation, set()
        if machine.generation == event.generation and event.role not in machine.roles:
            machine.roles.add(event.role)
            self.later(self.start_seconds, lambda: self._warm(machine, event.generation, event.role))

    def _warm(self, machine: Machine, generation: int, role: str) -> None:
        if self._ranks_up(machine, generation, "sandbox", role):
            for slot in range(self.slots):
                self.publish(parked(machine.name, slot, machine.life, generation, role), machine.name)

    def _describe(self) -> None:
        """Stages fill seats in blocks; in a stage the ranks in one slot are replicas."""
        count = len(self.layout)
        for seat, name in enumerate(self.layout):
            stage = seat * self.stages // count
            place = "first" if stage == 0 else "last" if stage == self.stages - 1 else "middle"
            seats = [other for other in range(count) if other * self.stages // count == stage]
            for slot in range(self.slots):
                rank = seat * self.slots + slot
                row = say.GroupRow(
                    name=f"data:{stage}:{slot}",
                    first=seats[0] * self.slots + slot,
                    stride=self.slots,
                    count=len(seats),
                )
                event = described(
                    name,
                    rank,
                    slots=self.slots,
                    generation=self.generation,
                    kind=place,
                    state=f"{stage}-{slot}",
                    stage=(stage, self.stages) if self.stages > 1 else None,
                    groups=(
                        say.GroupRow(name="default", first=0, count=count * self.slots),
                        row,
                        *self._tie(rank),
                    ),
                    shares=self.shares,
                )
                self.publish(event, name)

    def _tie(self, rank: int) -> list[say.GroupRow]:
        """The pipeline that a rank is in, which makes a replica of its stages."""
        if not self.shares or self.stages == 1:
            return []
        width = len(self.layout) // self.stages * self.slots
        place = rank % width
        return [say.GroupRow(name=f"pipe:{place}", first=place, stride=width, count=self.stages)]

    def _record(self, role: say.MachineRole, generation: int) -> None:
        if generation != self.generation or not self.layout:
            return
        machine = self.machines[self.layout[role.representative]]
        for slot in range(self.slots if machine.well else 0):
            say_it = unrecorded if role.name in self.unrecorded else recorded
            self.publish(say_it(machine.name, slot, generation), machine.name)

    def _prepare(self, event: say.SwitchPrepare) -> None:
        if event.epoch in self.ready or event.epoch <= self.epoch or event.generation != self.generation:
            return
        self.prepares[event.epoch] = event
        self.ready[event.epoch] = set()
        for act in self.on_prepare.pop(event.epoch, []):
            act()
        for rank in self._present(event.machines):
            self.later(0.02, lambda rank=rank: self._rank_prepared(event, rank))  # type: ignore[misc]

    def _present(self, machines: tuple[str, ...]) -> list[int]:
        """Ranks on seats that are taken."""
        return [rank for rank in range(len(machines) * self.slots) if machines[rank // self.slots]]

    def _well(self, machines: tuple[str, ...]) -> bool:
        return all(self.machines[name].well for name in machines if name)

    def _rank_prepared(self, event: say.SwitchPrepare, rank: int) -> None:
        name = event.machines[rank // self.slots]
        if self.machines[name].well and event.epoch in self.prepares:
            self.ready[event.epoch].add(rank)
            self.publish(prepared(event.epoch, rank, name), name)

    def _tick(self) -> None:
        if self.over:
            return
        self.later(self.step_seconds, self._tick)
        for epoch, prepare in sorted(self.prepares.items()):
            whole = len(self.ready[epoch]) == len(self._present(prepare.machines))
            if whole and epoch > self.epoch and self._well(prepare.machines):
                self._adopt(prepare)
                return
        well = self.layout and self._well(self.layout)
        if well and self.broken_at != self.epoch and self.step < self.steps:
            self._step()

    def _adopt(self, prepare: say.SwitchPrepare) -> None:
        self.epoch, self.layout, self.fresh = prepare.epoch, prepare.machines, True
        for epoch in [epoch for epoch in self.prepares if epoch <= prepare.epoch]:
            del self.prepares[epoch]
        for rank in self._present(self.layout):
            name = self.layout[rank // self.slots]
            self.publish(adopted(self.epoch, rank, name, self.step), name)

    def _step(self) -> None:
        self.step += 1
        zero = next(name for name in self.layout if name)
        if self.fresh and self.step == 1:
            self.publish(started(self.generation, self.epoch), zero)
        elif self.fresh:
            self.publish(say.TrainingResumed(epoch=self.epoch, step=self.step), zero)
        self.fresh = False
        if self.step == self.warm_steps:
            self._describe()
        if self.step == self.steps:
            for rank in self._present(self.layout):
                self.publish(finished(rank, self.layout[rank // self.slots]), self.layout[rank // self.slots])
        for act in self.at_step.pop(self.step, []):
            act()


# -- the world -----------------------------------------------------------------------------------


class World:
    """Four cores and a plant in virtual time; the seed decides every delay."""

    def __init__(
        self,
        *,
        machines: int = 3,
        slots: int = 1,
        standbys: int = 1,
        spares: int | None = None,
        seed: int = 0,
        jitter: float = 0.0,
        doubles: float = 0.0,
        steps: int = 60,
        replenish: bool = True,
        cores: dict[str, Callable[[], Core]] | None = None,
        stages: int = 1,
        shares: bool = False,
        **more: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.jitter, self.doubles, self.replenish = jitter, doubles, replenish
        self.now = 1_000_000.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.log: list[Envelope] = []
        self.ids: set[str] = set()
        self.fed: dict[str, set[str]] = {name: set() for name in SERVICES}
        self.numbers = dict.fromkeys(SERVICES, 0)
        self.timers: dict[tuple[str, str], float] = {}
        factories = cores or {name: service.core for name, service in SERVICES.items()}
        self.cores: dict[str, Core] = {name: factory() for name, factory in factories.items()}
        self.plant = Plant(self.later, self._said, slots=slots, steps=steps, stages=stages, shares=shares)
        self.next_name = machines + (standbys if spares is None else spares)
        self.publish(self.envelope(submitted(machines, slots, standbys, **more), "driver"))
        for index in range(self.next_name):
            self.plant.join(f"m{index}")
        self.plant.begin()

    # -- time and messages

    def later(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.order), act))

    def envelope(self, event: say.Event, source: str) -> Envelope:
        return Envelope(
            id=f"{source}-{len(self.log)}-{next(self.order)}",
            source=source,
            time=self.now,
            job=JOB,
            event=event,
        )

    def _said(self, event: say.Event, source: str) -> None:
        self.publish(self.envelope(event, source))

    def publish(self, envelope: Envelope) -> None:
        """Log it, and let everybody hear it in their own time."""
        if envelope.id in self.ids:
            return
        self.ids.add(envelope.id)
        envelope = decode_message(*encode_message(envelope))
        self.log.append(envelope)
        for name, core in self.cores.items():
            if envelope.type in core.hears:
                times = 2 if self.random.random() < self.doubles else 1
                for _ in range(times):
                    self.later(self._delay(), lambda name=name: self.feed(name, envelope))  # type: ignore[misc]
        self.later(self._delay(), lambda: self.plant.hear(envelope.event))
        if isinstance(envelope.event, say.StandbyReplenish) and self.replenish:
            name = f"m{self.next_name}"
            self.next_name += 1
            self.later(0.2, lambda: self.plant.join(name) and None)

    def _delay(self) -> float:
        return 0.001 + self.random.random() * self.jitter

    def feed(self, name: str, envelope: Envelope) -> None:
        """What a shell does with one input."""
        if envelope.id in self.fed[name]:
            return
        self.fed[name].add(envelope.id)
        now = round(self.now, 6)
        outputs = self.cores[name].handle(envelope, now)
        said = envelopes_of(name, envelope, now, outputs)
        self.numbers[name] += 1
        entry = say.JournalEntry(
            service=name,
            number=self.numbers[name],
            input=envelope.id,
            now=now,
            outputs=tuple(s.id for s in said),
        )
        self.publish(
            Envelope(
                id=entry_id(name, envelope.id), source=name, time=now, job=JOB, event=entry, cause=envelope.id
            )
        )
        for number, output in enumerate(outputs):
            self._command(name, envelope, number, output)
        for item in said:
            self.publish(item)

    def _command(self, name: str, cause: Envelope, number: int, output: Output) -> None:
        match output:
            case SetTimer(name=timer, due=due):
                self.timers[name, timer] = due

                def fire() -> None:
                    if self.timers.get((name, timer)) == due:
                        del self.timers[name, timer]
                        event = say.TimerFired(service=name, name=timer, due=due)
                        self._own(name, timer_id(name, timer, due), event)

                self.later(max(0.0, due - self.now), fire)
            case CancelTimer(name=timer):
                self.timers.pop((name, timer), None)
            case Probe(machine=machine, incarnation=incarnation):
                answer: Any = self.plant.answer(machine)

                def probed() -> None:
                    event = say.MachineProbed(machine=machine, incarnation=incarnation, answer=answer)
                    self._own(name, probe_id(name, cause.id, number), event)

                self.later(0.5 if answer == "silent" else 0.01, probed)
            case _:
                pass

    def _own(self, name: str, envelope_id: str, event: say.Event) -> None:
        envelope = Envelope(id=envelope_id, source=name, time=self.now, job=JOB, event=event)
        self.publish(envelope)
        self.feed(name, envelope)

    # -- running and asking

    def run(self, until: Callable[[], bool] | None = None, limit: float = 300.0) -> World:
        """Let time pass until a condition holds, or nothing is left to happen, or the limit."""
        end = self.now + limit
        while self.heap and self.heap[0][0] <= end:
            if until is not None and until():
                break
            self.now, _, act = heapq.heappop(self.heap)
            act()
        return self

    def at(self, step: int, act: Callable[[], None]) -> World:
        """Do something right after a step was committed for the first time."""
        self.plant.at_step.setdefault(step, []).append(act)
        return self

    def all(self, model: type[Any]) -> list[Any]:
        """All events of a type, in the order of the log."""
        return [envelope.event for envelope in self.log if isinstance(envelope.event, model)]

    def story(self, *models: type[Any]) -> list[str]:
        """Events of some types as readable lines."""
        return brief(Say(e.event) for e in self.log if isinstance(e.event, models))


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Makers of events and benches."""
    return SimpleNamespace(**globals())
