"""A world: the plant and the four cores in virtual time, each hearing with its own delays and doubles.

The seed decides every delay, so a world that goes wrong goes wrong again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from tests.services.plant import Plant
from tests.services.words import JOB, brief, submitted
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
