"""Inputs that die with their sender while the log takes nothing, on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.api import DiscardPolicy

from trainmover.errors import BusError
from trainmover.events import NatsBus, NatsServer, read_stream
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services import Shell, copying, replay
from trainmover.services.core import Decider

LIMIT = 20.0


class Ear(Decider):
    """Says something to every arrival, and knows who came."""

    name = "planner"
    SAYS = (say.LinkRepair,)

    def __init__(self) -> None:
        super().__init__()
        self.came: list[str] = []

    def _joined(self, event: say.MachineJoined) -> None:
        self.came.append(event.machine)
        self.say(say.LinkRepair(epoch=1, reason=event.machine))

    HEARS = {say.MachineJoined: _joined}


@asynccontextmanager
async def serving(core: Decider, server: NatsServer, job: str) -> AsyncIterator[Shell]:
    """A service on the server."""
    bus = await NatsBus.connect(server.url, job, core.name)
    shell, stop = Shell(core, bus), asyncio.Event()
    task = asyncio.create_task(shell.run(stop))
    try:
        await asyncio.wait_for(shell.ready.wait(), LIMIT)
        yield shell
    finally:
        stop.set()
        await asyncio.wait_for(task, LIMIT)
        await bus.close()


async def refuse(bus: Any, job: str, refused: bool) -> None:
    """Let the log refuse everything new, as when there is no more room; or no more."""
    jetstream = bus._connection.client.jetstream()
    info = await jetstream.stream_info(f"TRAINMOVER_{job}")
    info.config.discard = DiscardPolicy.NEW if refused else DiscardPolicy.OLD
    info.config.max_msgs = max(1, info.state.messages) if refused else -1
    await jetstream.update_stream(info.config)


async def stored(bus: Any) -> list[Envelope]:
    """The log."""
    return [record.envelope for record in await read_stream(bus)]


async def stored_types(bus: Any, wanted: set[str]) -> list[Envelope]:
    """The log, once it has events of these types."""
    end = time.monotonic() + LIMIT
    while True:
        log = await stored(bus)
        if {envelope.type for envelope in log} >= wanted:
            return log
        assert time.monotonic() < end, [str(envelope) for envelope in log]
        await asyncio.sleep(0.05)


async def last_words(server: NatsServer, kit: SimpleNamespace, machine: str) -> None:
    """A machine joins and is gone before the log has it."""
    bus = await NatsBus.connect(server.url, kit.JOB, machine)
    await bus.publish(
        Envelope(id=f"x-{machine}", source=machine, time=1.0, job=kit.JOB, event=kit.joined(machine))
    )
    with pytest.raises(BusError, match="maximum messages"):
        await bus.flush(0.3)
    await bus.close()


def reasons(log: list[Envelope]) -> list[str]:
    """What the service has said."""
    return [e.event.reason for e in log if isinstance(e.event, say.LinkRepair)]


async def test_an_input_whose_sender_died_while_the_log_refused_is_in_it_in_the_end(
    kit: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service that heard it puts a copy there: replay and the next life hear it, once."""
    monkeypatch.setattr(copying, "AFTER", 0.5)
    monkeypatch.setattr(copying, "LOOK", 0.1)
    with NatsServer(tmp_path / "nats") as server:
        outside = await NatsBus.connect(server.url, kit.JOB, "outside")
        first = Envelope(id="x-m0", source="m0", time=1.0, job=kit.JOB, event=kit.joined("m0"))
        await outside.publish(first)
        async with serving(Ear(), server, kit.JOB):
            await stored_types(outside, {"journal.entry", "link.repair"})
            await refuse(outside, kit.JOB, True)
            await last_words(server, kit, "m1")
            await refuse(outside, kit.JOB, False)
            log = await stored_types(outside, {"journal.copy"})
            assert [e.id for e in log if isinstance(e.event, say.MachineJoined)] == ["x-m0"]
        log = await stored(outside)
        assert [e.event.about for e in log if isinstance(e.event, say.JournalCopy)] == ["x-m1"]
        assert sorted(reasons(log)) == ["m0", "m1"]
        result = replay(log, cores={"planner": Ear})
        assert result.same, str(result)
        assert result.inputs == {"planner": 2}

        core = Ear()
        async with serving(core, server, kit.JOB):
            assert core.came == ["m0", "m1"]
        assert sorted(reasons(await stored(outside))) == ["m0", "m1"]
        await outside.close()


async def test_the_last_input_of_a_service_that_ends_is_in_the_log(
    kit: SimpleNamespace, tmp_path: Path
) -> None:
    """On a clean exit what is missing is copied at once, and nothing that the log has."""
    with NatsServer(tmp_path / "nats") as server:
        outside = await NatsBus.connect(server.url, kit.JOB, "outside")
        async with serving(Ear(), server, kit.JOB):
            await outside.publish(
                Envelope(id="x-m0", source="m0", time=1.0, job=kit.JOB, event=kit.joined("m0"))
            )
            await stored_types(outside, {"link.repair"})
            await refuse(outside, kit.JOB, True)
            await last_words(server, kit, "m1")
            await refuse(outside, kit.JOB, False)
        log = await stored(outside)
        assert [e.event.about for e in log if isinstance(e.event, say.JournalCopy)] == ["x-m1"]
        result = replay(log, cores={"planner": Ear})
        assert result.same, str(result)
        await outside.close()
