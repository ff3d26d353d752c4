"""A bench: one core, fed by hand, for tests that decide what it hears and when."""

from __future__ import annotations

import itertools
from typing import Any

from tests.services.words import JOB, adopted, committed, joined, launch, plan, ready, submitted, up
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services.core import CancelTimer, Output, Say, SetTimer


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


def training(core: Any, spares: int = 1, **job: Any) -> Bench:
    """A core in a job of three machines, in training on epoch 1 with recordings."""
    bench = Bench(core)
    bench.hear(submitted(standbys=spares, **job))
    bench.hear(*(joined(f"m{i}") for i in range(3 + spares)))
    launches = [launch(f"m{i}", i) for i in range(3)]
    ups = [up(f"m{i}") for i in range(3)]
    begun = [plan(1, ("m0", "m1", "m2"), kind="start", base=0)]
    begun += [adopted(1, i, f"m{i}") for i in range(3)]
    bench.hear(*launches, *ups, *begun, committed(1, ("m0", "m1", "m2"), kind="start"), *ready())
    bench.said.clear()
    return bench
