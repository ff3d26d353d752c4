"""The promises of the bus port, kept by the bus in memory and by the bus over NATS alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.events.examples import JOB, left
from tests.events.promises import beat, take
from tests.waiting import until
from trainmover.errors import BusError
from trainmover.events import Bus, MemoryBroker, NatsBus, NatsServer
from trainmover.events.catalogue import JobFailed
from trainmover.events.envelope import Envelope

Connect = Callable[[str], Awaitable[Bus]]


@pytest.fixture(params=["memory", "nats"])
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes connections to one job, over either carrier."""
    async with AsyncExitStack() as stack:
        if request.param == "nats":
            server = stack.enter_context(NatsServer(tmp_path / "nats"))
        else:
            broker = MemoryBroker(JOB)

        async def make(name: str) -> Bus:
            bus: Bus
            if request.param == "nats":
                bus = await NatsBus.connect(server.url, JOB, name)
            else:
                bus = broker.connect(name)
            stack.push_async_callback(bus.close)
            return bus

        yield make


def job_failed(number: int) -> Envelope:
    return Envelope(id=f"j-{number}", source="x", time=1.0, job=JOB, event=JobFailed(reason="r"))


async def test_history_and_then_live(connect):
    """A feed with history gives the log in order, then what is said, each once."""
    writer, reader = await connect("writer"), await connect("reader")
    for number in range(50):
        await writer.publish(left(number))
    await writer.flush(5)
    feed = await reader.feed(["machine"], history=True)
    for number in range(50, 60):
        await writer.publish(left(number))
    past = [envelope.id for envelope in await feed.past(5)]
    assert past[:50] == [f"m0-{number}" for number in range(50)]
    assert past + await take(feed, 60 - len(past)) == [f"m0-{number}" for number in range(60)]


async def test_without_history_only_what_comes(connect):
    """A feed without history has no past."""
    bus = await connect("writer")
    await bus.publish(left(1))
    await bus.flush(5)
    feed = await bus.feed(history=False)
    assert await feed.past(5) == []
    await bus.publish(left(2))
    assert await take(feed, 1) == ["m0-2"]


async def test_whole_envelopes_arrive(connect):
    """What is read is equal to what was published, live and from the log."""
    bus = await connect("writer")
    live = await bus.feed(history=False)
    sent = Envelope(
        id="a-1",
        source="machine/m0",
        time=1764430000.123457,
        job=JOB,
        event=left(1).event,
        incident="inc-1",
        cause="b-2",
    )
    await bus.publish(sent)
    assert await asyncio.wait_for(anext(live), 5) == sent
    await bus.flush(5)
    assert await (await bus.feed(history=True)).past(5) == [sent]


async def test_the_order_of_one_publisher_over_areas(connect):
    """Events of different areas arrive in the order in which one program said them."""
    writer, reader = await connect("writer"), await connect("reader")
    feed = await reader.feed(["job", "machine"], history=False)
    sent = [job_failed(number) if number % 3 else left(number) for number in range(300)]
    for envelope in sent:
        await writer.publish(envelope)
    assert await take(feed, 300) == [envelope.id for envelope in sent]


async def test_filters(connect):
    """A feed hears its areas and types, live and from the log, and nothing else."""
    bus = await connect("writer")
    live = await bus.feed(["job.failed"], history=False)
    for number in range(3):
        await bus.publish(left(number))
        await bus.publish(job_failed(number))
    assert await take(live, 3) == ["j-0", "j-1", "j-2"]
    await bus.flush(5)
    past = await (await bus.feed(["machine"], history=True)).past(5)
    assert [envelope.id for envelope in past] == ["m0-0", "m0-1", "m0-2"]


async def test_the_same_id_again(connect):
    """An id published twice, or by two programs, is one event, live and in the log."""
    one, two = await connect("one"), await connect("two")
    live = await one.feed(history=False)
    for bus in (one, one, two):
        await bus.publish(left(1))
        await bus.flush(5)
    await two.publish(left(2))
    assert await take(live, 2) == ["m0-1", "m0-2"]
    await two.flush(5)
    assert len(await (await two.feed(history=True)).past(5)) == 2


async def test_unjournalled_events(connect):
    """Beats reach listeners, plain and coroutine ones; they are in no feed and no log."""
    writer, reader = await connect("writer"), await connect("reader")
    plain: list[str] = []
    waited: list[str] = []

    async def later(envelope: Envelope) -> None:
        await asyncio.sleep(0)
        waited.append(envelope.id)

    await reader.listen(["sample.beat"], lambda envelope: plain.append(envelope.id))
    await reader.listen(["sample.beat", "sample.step"], later)
    feed = await reader.feed(history=True)
    await writer.publish(beat(1))
    await writer.publish(beat(2, "m1"))
    await writer.publish(left(1))
    assert await take(feed, 1) == ["m0-1"]
    await until(lambda: len(plain) == len(waited) == 2)
    assert plain == waited == ["m0-beat-1", "m1-beat-2"]


async def test_an_echo(connect):
    """A message to oneself is back at once, and is not once the bus is closed."""
    bus = await connect("health")
    assert await bus.echo(5)
    await bus.close()
    assert not await bus.echo(0.1)


async def test_probe_alive_and_silent(connect):
    """A machine that answers is alive."""
    machine, health = await connect("machine"), await connect("health")
    await machine.answer_probes("m0")
    assert await health.probe("m0", 2) == "alive"


async def test_probe_absent(connect):
    """A machine whose program is gone is absent."""
    machine, health = await connect("machine"), await connect("health")
    await machine.answer_probes("m0")
    assert await health.probe("m0", 2) == "alive"
    await machine.close()
    assert await health.probe("m0", 5) == "absent"


async def test_closing(connect):
    """A closed bus refuses, its feeds end, and closing twice is nothing."""
    bus = await connect("writer")
    feed = await bus.feed(history=False)
    reader = asyncio.create_task(anext(feed, None))
    await asyncio.sleep(0)
    await asyncio.wait_for(bus.close(), 5)
    await bus.close()
    assert await asyncio.wait_for(reader, 5) is None
    for action in (
        bus.publish(left(1)),
        bus.feed(history=False),
        bus.answer_probes("m0"),
        bus.probe("m0", 1),
    ):
        with pytest.raises(BusError, match="closed"):
            await action


async def test_a_closed_feed_ends(connect):
    """Closing a feed ends its iteration; the bus goes on."""
    bus = await connect("writer")
    feed, other = await bus.feed(history=False), await bus.feed(history=False)
    await feed.close()
    await bus.publish(left(1))
    assert [envelope async for envelope in feed] == []
    assert await take(other, 1) == ["m0-1"]


async def test_another_jobs_envelope_is_refused(connect):
    """A bus speaks for its own job only."""
    bus = await connect("writer")
    foreign = Envelope(id="a", source="x", time=1.0, job="other", event=left(1).event)
    with pytest.raises(BusError, match="of job 'other'"):
        await bus.publish(foreign)
    assert bus.job == JOB
