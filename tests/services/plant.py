"""A cluster that is not there: scripted machines for the cores to decide about.

:class:`Plant` is everything that a service does not decide: machines, their ranks, and a training
that steps while all its members are well.  It knows no clock and no bus; it is given ``later`` and
``publish``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.services.words import (
    adopted,
    broken,
    described,
    finished,
    joined,
    left,
    parked,
    prepared,
    recorded,
    started,
    unrecorded,
    up,
)
from trainmover.events import catalogue as say

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
    dial_seconds: float = 20.0
    parted: set[frozenset[str]] = field(default_factory=set)
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

    def part(self, name: str, other: str) -> None:
        """Two machines do not reach each other any more; both are well, and everybody else reaches both."""
        self.parted.add(frozenset({name, other}))
        if {name, other} <= set(self.layout):
            self.cut(name, other)

    def heal(self) -> None:
        """Everybody reaches everybody."""
        self.parted.clear()
        for event in list(self.prepares.values()):
            for rank in self._present(event.machines):
                self._rank_prepared(event, rank)

    def _unreached(self, event: say.SwitchPrepare, rank: int) -> list[int]:
        """Seats that this rank's machine does not reach."""
        name = event.machines[rank // self.slots]
        return [s for s, other in enumerate(event.machines) if frozenset({name, other}) in self.parted]

    def _complain(self, event: say.SwitchPrepare, rank: int) -> None:
        seat = rank // self.slots
        for other in self._unreached(event, rank):
            if event.epoch in self.prepares and seat < other:
                self.publish(
                    say.LinkUnreached(
                        epoch=event.epoch,
                        rank=rank,
                        machine=event.machines[seat],
                        peer=other * self.slots,
                        peer_machine=event.machines[other],
                        seconds=self.dial_seconds,
                        reason="timed out",
                    ),
                    event.machines[seat],
                )

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
        if self._unreached(event, rank):
            self.later(self.dial_seconds, lambda: self._complain(event, rank))
        elif self.machines[name].well and event.epoch in self.prepares:
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
