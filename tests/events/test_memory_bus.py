"""The bus in memory keeps the bus's promises, and misbehaves only as told."""

from __future__ import annotations

import pytest

from tests.events.examples import JOB, left
from tests.events.promises import beat, take
from tests.waiting import until
from trainmover.errors import BusError
from trainmover.events import MemoryBroker
from trainmover.events.envelope import Envelope


async def test_a_lost_delivery_is_filled_from_the_log():
    """What the live path loses comes after heal(), once."""
    broker = MemoryBroker(JOB, disturb=lambda reader, envelope: () if envelope.id == "m0-1" else (0.0,))
    bus = broker.connect("m0")
    feed = await bus.feed(history=False)
    for number in range(3):
        await bus.publish(left(number))
    assert await take(feed, 2) == ["m0-0", "m0-2"]
    broker.heal()
    assert await take(feed, 1) == ["m0-1"]


async def test_doubled_and_late_deliveries():
    """Doubled deliveries come once; a late one comes after those that overtook it."""
    broker = MemoryBroker(
        JOB, disturb=lambda reader, envelope: (0.02, 0.02) if envelope.id == "m0-0" else (0, 0)
    )
    bus = broker.connect("m0")
    feed = await bus.feed(history=False)
    for number in range(3):
        await bus.publish(left(number))
    assert await take(feed, 3) == ["m0-1", "m0-2", "m0-0"]


async def test_an_outage_delays_and_loses_nothing():
    """During an outage publish returns, flush fails in time, probe learns nothing; then all comes."""
    broker = MemoryBroker(JOB)
    bus = broker.connect("m0")
    feed = await bus.feed(["machine"], history=False)
    broker.down()
    await bus.publish(left(1))
    await bus.publish(beat(1))
    assert bus.connected_for == 0
    with pytest.raises(BusError, match=r"1 events are not in the log"):
        await bus.flush(0.01)
    with pytest.raises(BusError, match="nothing was learned"):
        await bus.probe("m0", 0.01)
    with pytest.raises(BusError, match="away"):
        await bus.feed(history=False)
    broker.up()
    await bus.flush(1)
    assert await take(feed, 1) == ["m0-1"]
    assert bus.connected_for > 0


async def test_silence():
    """A machine can be made to listen without answering."""
    broker = MemoryBroker(JOB)
    bus = broker.connect("m0")
    await bus.answer_probes("m0")
    broker.silence("m0")
    assert await bus.probe("m0", 0.01) == "silent"
    broker.silence("m0", silent=False)
    assert await bus.probe("m0", 0.01) == "alive"


async def test_handlers_that_fail_hurt_nobody(caplog):
    """A handler's exception is logged; the next handler and the publisher do not see it."""
    bus = MemoryBroker(JOB).connect("m0")
    heard: list[Envelope] = []

    def bad(envelope: Envelope) -> None:
        raise RuntimeError("plain")

    async def worse(envelope: Envelope) -> None:
        raise RuntimeError("coroutine")

    for handler in (bad, worse, heard.append):
        await bus.listen(["sample.beat"], handler)
    await bus.publish(beat(1))
    assert len(heard) == 1
    await until(lambda: "RuntimeError: plain" in caplog.text and "RuntimeError: coroutine" in caplog.text)
    await bus.publish(beat(2))
    await bus.close()
    assert len(heard) == 2
