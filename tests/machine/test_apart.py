"""A machine that was replaced because it and another did not reach each other: when it joins again."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from tests.packets import drop_all, drop_large
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.memory_bus import MemoryBroker
from trainmover.machine import apart
from trainmover.machine.agent import Agent, MachineConfig
from trainmover.machine.apart import Apart


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a moment."""
    monkeypatch.setattr(apart, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(apart, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(apart, "DIAL_SECONDS", 0.1)


def prepare(host: str, port: int) -> say.SwitchPrepare:
    """m1 sits on the second seat, and listens there."""
    return say.SwitchPrepare(
        epoch=2,
        kind="repair",
        generation=0,
        incidents=(),
        machines=("m0", "m1"),
        ranks_per_machine=1,
        leavers=(),
        joiners=(),
        endpoints=(say.Endpoint(host=host, port=port, life="m1.0"),),
        endpoint_ranks=(1,),
        limit_seconds=60.0,
    )


def failed(machine: str, life: str) -> say.MachineFailed:
    return say.MachineFailed(machine=machine, incarnation=life, reason="test")


@pytest.fixture
def nowhere() -> Iterator[say.SwitchPrepare]:
    """An address at which the kernel drops every packet."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        drop_all(door)
        yield prepare("127.0.0.1", door.getsockname()[1])


async def still_waits(waiting: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait({waiting}, timeout=0.25)
    return not done


async def test_who_did_nothing_joins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary life waits for nobody."""
    monkeypatch.setattr(apart, "WAIT_SECONDS", 100.0)
    await asyncio.wait_for(Apart("m0", "", (), 1).over(), 5)


async def test_it_waits_until_it_reaches_the_other(nowhere: say.SwitchPrepare) -> None:
    """The address is the one of the latest request to prepare."""
    waiting = Apart("m0", "a", ("m1",), 1)
    waiting.note(nowhere)
    task = asyncio.create_task(waiting.over())
    assert await still_waits(task)
    with socket.create_server(("127.0.0.1", 0)) as door:
        waiting.note(prepare("127.0.0.1", door.getsockname()[1]))
        await asyncio.wait_for(task, 5)


async def test_small_packets_are_not_enough() -> None:
    """A connection comes about, and what a step sends does not get through it."""
    with socket.create_server(("127.0.0.1", 0)) as narrow, socket.create_server(("127.0.0.1", 0)) as wide:
        drop_large(narrow, 600)
        waiting = Apart("m0", "a", ("m1",), 1)
        waiting.note(prepare("127.0.0.1", narrow.getsockname()[1]))
        task = asyncio.create_task(waiting.over())
        assert await still_waits(task)
        waiting.note(prepare("127.0.0.1", wide.getsockname()[1]))
        await asyncio.wait_for(task, 5)


async def test_a_host_that_refuses_is_reached() -> None:
    """Its rank has ended; the network is whole."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    waiting = Apart("m0", "a", ("m1",), 1)
    waiting.note(prepare("127.0.0.1", port))
    await asyncio.wait_for(waiting.over(), 5)


@pytest.mark.parametrize(
    "end",
    [
        failed("m1", "b"),
        say.MachineLeft(machine="m1", incarnation="b", reason="released"),
        say.SwitchCommitted(
            epoch=3,
            kind="move",
            incidents=(),
            machines=("m0", "m2"),
            leavers=("m1",),
            joiners=("m2",),
            step=3,
        ),
    ],
    ids=lambda event: event.type,
)
async def test_it_waits_for_nobody_who_has_gone(end: say.Event, nowhere: say.SwitchPrepare) -> None:
    """Since it was replaced itself: an earlier end is that of another life."""
    waiting = Apart("m0", "a", ("m1",), 1)
    waiting.note(nowhere)
    waiting.note(end)
    waiting.note(failed("m0", "a"))
    task = asyncio.create_task(waiting.over())
    assert await still_waits(task)
    waiting.note(end)
    await asyncio.wait_for(task, 5)


async def test_it_waits_longer_each_time() -> None:
    """Though it reaches the other: that was not enough the last time."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        waiting = Apart("m0", "a", ("m1",), 4)
        waiting.note(prepare("127.0.0.1", door.getsockname()[1]))
        began = time.monotonic()
        await asyncio.wait_for(waiting.over(), 5)
    assert time.monotonic() - began >= 8 * 0.05


async def test_a_life_that_waits_ends_with_the_job() -> None:
    """It has not joined, so it does not leave either."""
    broker = MemoryBroker()
    bus = broker.connect("test")
    agent = Agent(broker.connect("m0"), MachineConfig("m0", apart=Apart("m0", "a", ("m1",), 1)))
    task = asyncio.create_task(agent.run())
    over = say.JobCompleted(steps=1, digest="d", identical=True)
    await asyncio.sleep(0.2)
    await bus.publish(Envelope(id="t", source="test", time=time.time(), job=broker.job, event=over))
    assert await asyncio.wait_for(task, 10) == "completed"
    assert [envelope.type for envelope in broker.log] == ["job.completed"]


async def test_a_life_knows_whom_it_did_not_reach() -> None:
    """The verdict names them."""
    broker = MemoryBroker()
    bus = broker.connect("test")
    agent = Agent(broker.connect("m0"), MachineConfig("m0"))
    task = asyncio.create_task(agent.run())
    verdict = say.MachineFailed(
        machine="m0", incarnation=agent.incarnation, reason="test", unreached=("m1", "m2")
    )
    await bus.publish(Envelope(id="t", source="test", time=time.time(), job=broker.job, event=verdict))
    assert await asyncio.wait_for(task, 10) == "fenced"
    assert agent.unreached == ("m1", "m2")
    assert agent.joins_again
