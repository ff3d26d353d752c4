"""Services as real processes on a real server, killed with SIGKILL at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmover.events import NatsBus, NatsServer, read_stream
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services import SERVICES, replay
from trainmover.services.core import envelopes_of

pytestmark = pytest.mark.cluster

LIMIT = 30.0


async def start(name: str, url: str, job: str) -> asyncio.subprocess.Process:
    """The program of a service."""
    code = f"from trainmover.services import serve; serve({name!r}, {url!r}, {job!r})"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def core_said(name: str, log: list[Envelope]) -> dict[str, say.Event]:
    """What a service's core has said, by id."""
    return {e.id: e.event for e in log if e.id.startswith(f"{name}-") and e.type != "lease.expired"}


async def stored(bus: Any) -> list[Envelope]:
    """The log."""
    return [record.envelope for record in await read_stream(bus)]


def script(kit: SimpleNamespace, name: str) -> tuple[list[Envelope], dict[str, say.Event]]:
    """Inputs of a service in a job with a frozen machine and a move, and what it says to them if it lives on.

    Without what a real clock or a real probe would answer: those differ from one run to the next.
    """
    world = kit.World(standbys=2, steps=40)
    world.at(10, lambda: world.plant.freeze("m1"))
    world.at(25, lambda: world.plant.publish(say.MoveRequested(machine="m2"), "cli"))
    world.run()
    core = SERVICES[name].core()
    without = (say.TimerFired, say.MachineProbed, say.LinkBroken)
    inputs = [e for e in world.log if e.type in core.hears and not isinstance(e.event, without)]
    inputs = [e for e in inputs if e.source != name or e.type not in core.says]  # that it says here itself
    expected: dict[str, say.Event] = {}
    for envelope in inputs:
        said = envelopes_of(name, envelope, 1.0, core.handle(envelope, 1.0))
        expected.update({item.id: item.event for item in said})
    assert expected
    return inputs, expected


async def beat(bus: Any, inputs: list[Envelope], job: str) -> None:
    """Heartbeats of all machines, so that the health service has no verdict of its own."""
    lives = [e.event for e in inputs if isinstance(e.event, say.MachineJoined)]
    for sequence in range(10**6):
        for life in lives:
            event = say.Heartbeat(
                machine=life.machine,
                incarnation=life.incarnation,
                sequence=sequence,
                ranks=("running",),
                step=1,
                cpu_percent=1.0,
                rss_bytes=1,
            )
            name = f"beat-{life.machine}-{sequence}"
            await bus.publish(Envelope(id=name, source=life.machine, time=1.0, job=job, event=event))
        await asyncio.sleep(0.25)


@pytest.mark.parametrize("name", list(SERVICES))
async def test_kill_9_between_any_two_events(kit: SimpleNamespace, tmp_path: Path, name: str) -> None:
    """A service that is killed again and again, and then ended, says the same as one that was not."""
    inputs, expected = script(kit, name)
    chance = random.Random(name)
    kills = set(chance.sample(range(len(inputs)), 6))
    with NatsServer(tmp_path / "nats") as server:
        bus: Any = await NatsBus.connect(server.url, kit.JOB, "outside")
        beating = asyncio.create_task(beat(bus, inputs, kit.JOB))
        process = await start(name, server.url, kit.JOB)
        try:
            for number, envelope in enumerate(inputs):
                await bus.publish(envelope)
                if number in kills:
                    # Somewhere between its first import and the answer to this input.
                    await asyncio.sleep(chance.random() * 0.8)
                    process.kill()
                    await process.wait()
                    process = await start(name, server.url, kit.JOB)
            async with asyncio.timeout(LIMIT):
                # Stored, not only heard: a life that was killed may have taken its last words with it.
                while not core_said(name, await stored(bus)).keys() >= expected.keys():
                    pass
            process.send_signal(signal.SIGTERM)
            # What it had to say may be in the log from an earlier life: then it may still be importing.
            assert await asyncio.wait_for(process.wait(), LIMIT) in (0, -signal.SIGTERM)
            log = await stored(bus)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            beating.cancel()
            await bus.close()
    assert core_said(name, log) == expected
    result = replay(log, service=name)
    assert result.same, str(result)


async def test_sigterm_ends_a_service_at_once(kit: SimpleNamespace, tmp_path: Path) -> None:
    """SIGTERM ends a service with code 0, also while the server is away."""
    with NatsServer(tmp_path / "nats") as server:
        bus: Any = await NatsBus.connect(server.url, kit.JOB, "outside")
        process = await start("standby", server.url, kit.JOB)
        try:
            feed = await bus.feed(None, history=True)
            await bus.publish(Envelope(id="x", source="m0", time=1.0, job=kit.JOB, event=kit.joined("m0")))
            async with asyncio.timeout(LIMIT):
                while (await anext(feed)).type != "journal.entry":
                    pass
            server.kill()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), LIMIT) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await bus.close()
