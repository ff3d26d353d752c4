"""A small job told by hand, for the tests of everything that reads a log."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.steps import FaultFact, StepFact, StepFacts, VoidFact


class Story:
    """Collects envelopes and step facts; times are given as seconds since the start."""

    ORIGIN = 1_000_000.0

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.facts = StepFacts()
        self.generation = 0
        self._count = itertools.count()

    def tell(self, at: float, event: say.Event, incident: str | None = None) -> None:
        identity = f"e{next(self._count)}"
        source = event.type.split(".")[0]
        self.envelopes.append(
            Envelope(
                id=identity, source=source, time=self.ORIGIN + at, job="job", event=event, incident=incident
            )
        )

    def begin(self, machines: int = 2, spares: int = 1, generation: int = 0) -> None:
        """Submitted at 0, launched at 1, training in epoch 1 from 2 on."""
        self.tell(
            0.0,
            say.JobSubmitted(
                script="train.py",
                cwd="/",
                python="python",
                machines=machines,
                standbys=spares,
                run_dir="/run",
                seed=5,
            ),
        )
        for number in range(machines + spares):
            self.join(0.5, f"m{number}")
        for position in range(machines):
            self.launch(1.0, f"m{position}", position, generation)
        members = tuple(f"m{number}" for number in range(machines))
        self.prepare(1.5, 1, "start", members, (), members, ())
        self.commit(2.0, 1, "start", members, (), members, (), 0)

    def join(self, at: float, name: str) -> None:
        self.tell(at, say.MachineJoined(machine=name, incarnation="a", host="127.0.0.1", slots=1, pid=100))

    def launch(self, at: float, name: str, position: int, generation: int) -> None:
        self.generation = generation
        self.tell(
            at,
            say.MachineLaunch(
                machine=name,
                incarnation="a",
                position=position,
                world_size=2,
                ranks_per_machine=1,
                generation=generation,
                record=True,
            ),
        )

    def started(self, at: float, generation: int = 0, epoch: int = 1) -> None:
        self.tell(at, say.TrainingStarted(generation=generation, epoch=epoch, step=0, groups={}))

    def park(self, at: float, name: str) -> None:
        self.tell(
            at,
            say.StandbyWarm(
                machine=name,
                incarnation="a",
                generation=0,
                recordings=("/r",),
                world_size=2,
                ranks_per_machine=1,
                positions=(0,),
            ),
        )
        self.tell(
            at + 0.1,
            say.StandbyParked(
                machine=name, incarnation="a", slot=0, generation=0, shadow_steps=2, seconds={}
            ),
        )

    def assign(self, at: float, incident: str, kind: str, leaver: str, joiner: str) -> None:
        self.tell(
            at,
            say.StandbyAssigned(
                incident=incident,
                kind=kind,
                leaver=leaver,
                joiner=joiner,
                joiner_incarnation="a",
                generation=self.generation,
            ),
            incident,
        )

    def prepare(self, at, epoch, kind, machines, leavers, joiners, incidents) -> None:
        endpoints = tuple(say.Endpoint(host="h", port=1, life=f"{m}-1") for m in machines)
        self.tell(
            at,
            say.SwitchPrepare(
                epoch=epoch,
                kind=kind,
                generation=self.generation,
                incidents=incidents,
                machines=machines,
                ranks_per_machine=1,
                leavers=leavers,
                joiners=joiners,
                endpoints=endpoints,
                limit_seconds=10.0,
            ),
        )

    def plan(self, at, epoch, kind, machines, leavers, joiners, incidents) -> None:
        self.tell(
            at,
            say.PlanReady(
                epoch=epoch,
                base_epoch=epoch - 1,
                kind=kind,
                generation=self.generation,
                incidents=incidents,
                machines=machines,
                ranks_per_machine=1,
                leavers=leavers,
                joiners=joiners,
                endpoints=tuple(say.Endpoint(host="h", port=1, life=f"{m}-1") for m in machines),
                links_added=(),
                links_dropped=(),
                links_total=1,
            ),
        )

    def prepared(self, at: float, epoch: int, rank: int, machine: str) -> None:
        self.tell(
            at,
            say.SwitchPrepared(
                epoch=epoch, rank=rank, machine=machine, seconds=0.1, links_made=1, links_kept=0
            ),
        )

    def adopted(self, at: float, epoch: int, rank: int, machine: str, step: int) -> None:
        self.tell(
            at,
            say.SwitchAdopted(
                epoch=epoch,
                rank=rank,
                machine=machine,
                step=step,
                switch_seconds=0.02 + rank / 100,
                copy_seconds=0.3 + rank / 10,
                verify_seconds=0.0,
                bytes_received=1,
                bytes_sent=1,
            ),
        )

    def commit(self, at, epoch, kind, machines, leavers, joiners, incidents, step) -> None:
        self.tell(
            at,
            say.SwitchCommitted(
                epoch=epoch,
                kind=kind,
                incidents=incidents,
                machines=machines,
                leavers=leavers,
                joiners=joiners,
                step=step,
                generation=self.generation,
            ),
        )

    def steps(self, machine, rank, epoch, numbers: Iterable[int], first_end: float, rss: int = 1000) -> None:
        """Steps of half a second each, the first of them ending at ``first_end``."""
        for place, number in enumerate(numbers):
            end = self.ORIGIN + first_end + 0.5 * place
            self.facts.steps.append(
                StepFact(
                    machine=machine,
                    slot=0,
                    pid=sum(map(ord, machine)),
                    step=number,
                    epoch=epoch,
                    rank=rank,
                    start=end - 0.5,
                    end=end,
                    seconds=0.5,
                    loss=10.0 - number,
                    rss=rss,
                    first=place == 0,
                )
            )

    def kill(self) -> None:
        """A whole failure of m1 before step 4 at 4.6 s; training goes on with step 4 in epoch 2."""
        self.started(2.5)
        self.park(2.6, "m2")
        self.steps("m0", 0, 1, range(4), 2.5)
        self.steps("m1", 1, 1, range(4), 2.5)
        self.facts.faults.append(FaultFact("m1", 0, "kill:machine=m1,step=4", 4, self.ORIGIN + 4.6))
        self.facts.voids.append(VoidFact("m0", 0, 4, 2, self.ORIGIN + 5.55))
        self.tell(
            4.7,
            say.LinkBroken(epoch=1, rank=0, machine="m0", peer=1, peer_machine="m1", reason="reset"),
        )
        self.tell(4.8, say.MachineFailed(machine="m1", incarnation="a", reason="gone"), "inc-1")
        self.assign(4.9, "inc-1", "failure", "m1", "m2")
        new = ("m0", "m2")
        self.plan(4.95, 2, "failure", new, ("m1",), ("m2",), ("inc-1",))
        self.prepare(5.0, 2, "failure", new, ("m1",), ("m2",), ("inc-1",))
        for rank, name in enumerate(new):
            self.prepared(5.2 + rank / 10, 2, rank, name)
        for rank, name in enumerate(new):
            self.adopted(5.6 + rank / 10, 2, rank, name, 4)
        self.commit(5.8, 2, "failure", new, ("m1",), ("m2",), ("inc-1",), 4)
        self.tell(6.1, say.TrainingResumed(epoch=2, step=4))
        self.steps("m0", 0, 2, range(4, 6), 6.0, rss=1010)
        self.steps("m2", 1, 2, range(4, 6), 6.0)

    def complete(self, at: float = 9.0, steps: int = 6) -> None:
        self.tell(at, say.JobCompleted(steps=steps, digest="d" * 64, identical=True))


@pytest.fixture
def story() -> Story:
    """A job of two machines and a spare that has just committed its first epoch."""
    story = Story()
    story.begin()
    return story
