"""What becomes of heartbeats, with the time told by hand, and once on a real bus that stands still."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.waiting import freeze, until
from trainmover.errors import BusError
from trainmover.events import Bus, NatsBus, NatsServer
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services import leases
from trainmover.services.leases import CHECK, PERIOD, LeaseBook, LeaseDriver


def beat(
    sequence: int, machine: str = "m0", life: str = "a", ranks: tuple[str, ...] = ("running",)
) -> say.Heartbeat:
    return say.Heartbeat(
        machine=machine,
        incarnation=life,
        sequence=sequence,
        ranks=ranks,
        step=0,
        cpu_percent=0.0,
        rss_bytes=0,
    )


def watch(book: LeaseBook, start: float, end: float) -> list[say.Event]:
    """Look at the leases as the driver would."""
    said: list[say.Event] = []
    for tick in range(round((end - start) / CHECK) + 1):
        said += book.check(start + tick * CHECK)
    return said


def steady(
    book: LeaseBook, seconds: float, spread: float = 0.0, seed: int = 0
) -> tuple[int, float, list[say.Event]]:
    """Regular heartbeats from 0 on; returns the next sequence, the time of the last, what was said."""
    book.watch("m0", "a", 0.0)
    chance = random.Random(seed)
    said: list[say.Event] = []
    now, last, sequence, looked = 0.0, 0.0, 0, 0.0
    while now < seconds:
        now += PERIOD + chance.uniform(-spread, spread)
        while looked + CHECK < now:
            looked += CHECK
            said += book.check(looked)
        said += book.beat(beat(sequence), now)
        last, sequence = now, sequence + 1
    return sequence, last, said


def test_regular_beats_say_nothing_and_silence_expires() -> None:
    """A regular machine is never blamed; its silence expires after the shortest limit, once."""
    book = LeaseBook()
    _, last, said = steady(book, 60.0)
    assert said == []
    said = watch(book, last, last + 5.0)
    assert [event.type for event in said] == ["lease.expired"]
    assert isinstance(said[0], say.LeaseExpired)
    assert said[0].limit_seconds == 1.2
    assert 1.2 < said[0].silent_seconds < 1.2 + 2 * CHECK


def test_an_irregular_machine_gets_longer() -> None:
    """The limit grows with the spread of a machine's intervals, and has an upper end."""
    limits = []
    for spread in (0.0, 0.24):
        book = LeaseBook(shortest=0.3)
        steady(book, 120.0, spread)
        limits.append(book.lease("m0").limit(0.3, 9.0))
    assert limits[0] < limits[1] < 2.5
    book = LeaseBook()
    book.watch("m0", "a", 0.0)
    for sequence in range(20):
        book.beat(beat(sequence), sequence * 1.1 if sequence % 2 else sequence * 1.1 + 0.9)
    assert book.lease("m0").limit(1.2, 2.5) == 2.5


def test_a_returning_beat_is_told() -> None:
    """A machine that beats again after its lease expired has returned, with the time it was silent."""
    book = LeaseBook()
    sequence, last, _ = steady(book, 10.0)
    watch(book, last, last + 2.0)
    said = book.beat(beat(sequence), last + 2.1)
    assert [event.type for event in said] == ["lease.returned"]
    assert isinstance(said[0], say.LeaseReturned)
    assert said[0].silent_seconds == pytest.approx(2.1)


@pytest.mark.parametrize("blind", [False, True])
def test_the_watcher_doubts_itself_first(blind: bool) -> None:
    """Time in which the watcher was late, or could hear nothing, is held against nobody."""
    book = LeaseBook()
    _, last, _ = steady(book, 10.0)
    assert watch(book, last, last + 0.5) == []
    back = last + 6.0
    if blind:
        for tick in range(55):
            assert book.check(last + 0.5 + tick * CHECK, blind=True) == []
    assert book.check(back) == []
    assert watch(book, back + CHECK, back + 1.0) == []
    assert [event.type for event in watch(book, back + 1.1, back + 1.5)] == ["lease.expired"]


def test_a_stopped_rank_stalls_the_lease() -> None:
    """A rank process that is seen stopped for more than a second is told once; a short stop is not."""
    book = LeaseBook()
    book.watch("m0", "a", 0.0)
    said: list[say.Event] = []
    for sequence in range(12):
        state = "stopped" if sequence not in (0, 4) else "running"
        said += book.beat(beat(sequence, ranks=("running", state)), sequence * PERIOD)
    assert [(event.type, event.slot) for event in said if isinstance(event, say.LeaseStalled)] == [
        ("lease.stalled", 1)
    ]


def test_other_lives_and_repeated_beats_are_nothing() -> None:
    """Beats of another life, of an unknown machine, and old ones do not renew a lease."""
    book = LeaseBook()
    book.watch("m0", "b", 0.0)
    book.beat(beat(5, life="b"), 0.1)
    for late in (beat(5, life="b"), beat(9, life="a"), beat(1, machine="m9")):
        assert book.beat(late, 1.0) == []
    assert book.lease("m0").last == 0.1
    book.forget("m0", "b")
    book.watch("m0", "b", 2.0)
    assert "m0" not in book, "an ended life is not watched again"
    book.watch("m0", "c", 3.0)
    book.forget("m0", "b")
    assert "m0" in book


async def beating(bus: Bus) -> None:
    """A machine's heartbeats, until cancelled."""
    sequence = 0
    while True:
        event = beat(sequence)
        await bus.publish(
            Envelope(id=f"beat-{sequence}", source="machine/m0", time=1.0, job="job", event=event)
        )
        sequence += 1
        await asyncio.sleep(PERIOD)


async def test_a_bus_that_stands_still_is_no_silence_of_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped server keeps all connections and all beats; nobody is blamed, and a probe learns nothing."""
    monkeypatch.setattr(leases, "FRESH", 0.5)
    said: list[say.Event] = []
    driver = LeaseDriver()
    joined = say.MachineJoined(machine="m0", incarnation="a", host="h", slots=1, pid=1)
    driver.observe(Envelope(id="j", source="machine/m0", time=1.0, job="job", event=joined))
    with NatsServer(tmp_path / "nats") as server:
        health = await NatsBus.connect(server.url, "job", "health")
        machine = await NatsBus.connect(server.url, "job", "machine/m0")
        await machine.answer_probes("m0")
        beats = asyncio.create_task(beating(machine))
        watching = asyncio.create_task(driver.run(health, said.append))
        try:
            await until(
                lambda: health.connected_for > 1.0 and driver.book.lease("m0").sequence > 2, limit=5.0
            )
            assert server.pid is not None
            freeze(server.pid)
            # Not so long that a client gives its connection up: nobody is told of anything.
            for _ in range(2):
                with pytest.raises(BusError, match="nothing was learned"):
                    await health.probe("m0", 1.0)
            await asyncio.sleep(1.0)
            os.kill(server.pid, signal.SIGCONT)
            heard = driver.book.lease("m0").sequence
            await until(lambda: driver.book.lease("m0").sequence > heard + 8, limit=5.0)
            assert await health.probe("m0", 1.0) == "alive"
            assert said == []
            beats.cancel()
            await until(lambda: said, "the watcher trusts the bus again", 3.0)
            assert [event.type for event in said] == ["lease.expired"]
        finally:
            watching.cancel()
            beats.cancel()
            await asyncio.gather(watching, beats, return_exceptions=True)
            await machine.close()
            await health.close()
