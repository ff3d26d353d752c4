"""A job with one real machine program, whose ranks are scripts without torch; the test plays the services."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from pathlib import Path

from tests.waiting import until
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.memory_bus import MemoryBroker
from trainmover.machine.agent import Agent, Ending, MachineConfig

FAKE = Path(__file__).with_name("fake_rank.py")


class World:
    """A job with one real machine program; the test plays the services."""

    def __init__(self, run_dir: Path, *arguments: str) -> None:
        self.broker = MemoryBroker()
        self.bus = self.broker.connect("test")
        self.run_dir = run_dir
        self.arguments = arguments
        self.beats: list[say.Heartbeat] = []
        self.agent = Agent(self.broker.connect("m0"), MachineConfig("m0", slots=2, beat_seconds=0.05))
        self.task: asyncio.Task[int] | None = None
        self._count = itertools.count()

    async def begin(self) -> None:
        await self.bus.listen(["sample.beat"], lambda envelope: self.beats.append(envelope.event))
        await self.say(
            say.JobSubmitted(
                script=str(FAKE),
                args=self.arguments,
                cwd=str(self.run_dir),
                python=sys.executable,
                machines=1,
                run_dir=str(self.run_dir),
            )
        )
        self.task = asyncio.create_task(self.agent.run())
        await self.until(say.MachineJoined)

    async def say(self, event: say.Event) -> None:
        identity = f"test-{next(self._count)}"
        await self.bus.publish(
            Envelope(id=identity, source="test", time=time.time(), job=self.broker.job, event=event)
        )

    def heard(self, kind: type[say.Event]) -> list:
        return [envelope.event for envelope in self.broker.log if isinstance(envelope.event, kind)]

    async def until(self, kind: type[say.Event], count: int = 1) -> list:
        await self.come_true(lambda: len(self.heard(kind)) >= count)
        return self.heard(kind)

    async def come_true(self, condition, limit: float = 60.0) -> None:
        await until(condition, lambda: [str(envelope) for envelope in self.broker.log], limit)

    async def launch(self, generation: int = 0, ranks: int = 1, incarnation: str | None = None) -> None:
        await self.say(
            say.MachineLaunch(
                machine="m0",
                incarnation=incarnation or self.agent.incarnation,
                position=0,
                world_size=ranks,
                ranks_per_machine=ranks,
                generation=generation,
                record=True,
            )
        )

    async def warm(self, role: str, slots: int = 1) -> None:
        """Warm the machine in a role, and wait until it is parked."""
        before = len(self.heard(say.StandbyParked))
        await self.say(
            say.StandbyWarm(
                machine="m0",
                incarnation=self.agent.incarnation,
                generation=0,
                recordings=(str(self.run_dir),) * slots,
                world_size=3 * slots,
                ranks_per_machine=slots,
                positions=(0,) * slots,
                role=role,
            )
        )
        await self.until(say.StandbyParked, before + slots)

    async def assign(self, role: str) -> None:
        await self.say(
            say.StandbyAssigned(
                incident="i",
                kind="failure",
                leaver="m9",
                joiner="m0",
                joiner_incarnation=self.agent.incarnation,
                role=role,
            )
        )

    async def prepare(self, epoch: int = 1, generation: int = 0) -> None:
        endpoints = tuple(event.endpoint for event in self.heard(say.RankStarted))
        await self.say(
            say.SwitchPrepare(
                epoch=epoch,
                kind="start",
                generation=generation,
                incidents=(),
                machines=("m0",),
                ranks_per_machine=1,
                leavers=(),
                joiners=("m0",),
                endpoints=endpoints[-1:],
                limit_seconds=10.0,
            )
        )

    async def end(self) -> Ending:
        assert self.task is not None
        return await asyncio.wait_for(self.task, 15)
