"""The bus over NATS when things go wrong: each fault with its limit, nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

import msgpack
import pytest

from tests.events.examples import JOB, left
from tests.events.promises import beat, take
from tests.waiting import freeze, until
from trainmover.errors import BusError
from trainmover.events import NatsBus, NatsServer, read_stream
from trainmover.events import publisher as publisher_module
from trainmover.events.catalogue import AREAS, DeadLetter, JobSubmitted
from trainmover.events.codec import encode_message
from trainmover.events.envelope import Envelope
from trainmover.events.feed import FeedQueue
from trainmover.events.server import Accounts

SUBJECT = f"trainmover.{JOB}.machine.left"


async def collect(feed: FeedQueue, found: dict[str, float]) -> None:
    """Read for ever; ids must not repeat."""
    async for envelope in feed:
        assert envelope.id not in found
        found[envelope.id] = time.monotonic()


# -- the server dies


@pytest.mark.parametrize("outage", [0.0, 0.4, 1.5])
async def test_kill_9_in_mid_stream_loses_and_doubles_nothing(server, connect, outage):
    """kill -9 and restart of the server under traffic: every event once, in feed and log."""
    writer, reader = await connect("writer"), await connect("reader")
    feed = await reader.feed(["machine"], history=False)
    found: dict[str, float] = {}
    reading = asyncio.create_task(collect(feed, found))
    number = 0
    for outages in range(2):
        for _ in range(150):
            await writer.publish(left(number))
            number += 1
            await asyncio.sleep(0.001)
        server.kill()
        # Said while there is no server: kept and sent later.
        for _ in range(50):
            await writer.publish(left(number))
            number += 1
        await asyncio.sleep(outage)
        server.start()
        restarted = time.monotonic()
        await until(lambda sent=200 * (outages + 1): len(found) == sent)
        # The feed goes on soon after the server is back.
        assert max(found.values()) - restarted < 1.5
    await writer.flush(10)
    expected = [f"m0-{index}" for index in range(number)]
    assert list(found) == expected
    assert [record.envelope.id for record in await read_stream(reader)] == expected
    reading.cancel()


async def test_a_feed_fills_what_was_said_while_it_was_away(server, connect):
    """What others wrote while one reader alone was cut off comes from the log, once each.

    What is heard meanwhile waits for it only for a moment (HOLD_SECONDS), and may come first.
    """
    writer, reader = await connect("writer"), await connect("reader")
    feed = await reader.feed(history=False)
    client = reader._connection.client
    await client.close()
    assert reader.connected_for == 0
    for number in range(20):
        await writer.publish(left(number))
    await writer.flush(5)
    assert sorted(await take(feed, 20)) == sorted(f"m0-{number}" for number in range(20))


async def test_flush_without_a_server_fails_in_time_and_keeps_everything(server, connect):
    """While the server is away publish returns at once and flush names what is missing."""
    bus = await connect("writer")
    server.kill()
    await until(lambda: bus.connected_for == 0)
    await bus.publish(left(1))
    await bus.publish(beat(1))
    with pytest.raises(BusError, match=r"1 events are not in the log after 0\.1 s .* m0-1"):
        await bus.flush(0.1)
    server.start()
    await bus.flush(5)
    assert [record.envelope.id for record in await read_stream(bus)] == ["m0-1"]


async def test_too_much_waiting_is_refused(server, connect, monkeypatch):
    """What waits for the log is bounded; the error says what to check."""
    bus = await connect("writer")
    monkeypatch.setattr(publisher_module, "WAITING_MESSAGES", 3)
    server.kill()
    await until(lambda: bus.connected_for == 0)
    for number in range(3):
        await bus.publish(left(number))
    with pytest.raises(BusError, match="no room for m0-3: check that JetStream"):
        await bus.publish(left(3))


async def test_history_goes_on_over_a_restart(server, connect):
    """A server killed while a feed reads the past: the past still comes whole and in order."""
    bus = await connect("writer")
    for number in range(3000):
        await bus.publish(left(number))
    await bus.flush(20)
    feed = await bus.feed(history=True)
    first = await take(feed, 10)
    server.restart()
    past = first + [envelope.id for envelope in await feed.past(10)]
    assert past == [f"m0-{number}" for number in range(3000)]


async def test_calls_during_an_outage_fail_in_time(server, connect):
    """A probe or a new feed without a server is a BusError, not an answer."""
    bus = await connect("health")
    server.kill()
    await until(lambda: bus.connected_for == 0)
    with pytest.raises(BusError, match=r"nothing was learned|no connection"):
        await bus.probe("m0", 0.5)
    with pytest.raises(BusError, match="no connection"):
        await bus.feed(history=True)


async def test_listeners_and_answers_survive_a_restart(server, connect):
    """Subscriptions of all kinds are there again after a restart."""
    machine, health = await connect("machine"), await connect("health")
    heard: list[str] = []
    await health.listen(["sample.beat"], lambda envelope: heard.append(envelope.id))
    await machine.answer_probes("m0")
    server.restart()
    # A beat during the outage is dropped, so they are sent until one is heard.
    async with asyncio.timeout(5):
        number = 0
        while not heard:
            await machine.publish(beat(number))
            number += 1
            await asyncio.sleep(0.01)
    assert await health.probe("m0", 2) == "alive"


# -- the server or the client is alive and says nothing


@pytest.mark.slow
async def test_a_frozen_server_is_noticed(server, connect):
    """A server under SIGSTOP counts as away within about 4 s; when it goes on, so does all else."""
    bus = await connect("writer")
    feed = await bus.feed(history=False)
    freeze(server.pid)
    try:
        await until(lambda: bus.connected_for == 0)
        await bus.publish(left(1))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await take(feed, 1, limit=5) == ["m0-1"]
    await bus.flush(5)


@pytest.mark.slow
async def test_a_server_that_stands_still_refuses_nobody(server, connect, monkeypatch):
    """A program that begins to listen while the server is stopped for a moment waits until it goes on."""
    monkeypatch.setattr("trainmover.events.connection.BARRIER_SECONDS", 0.3)
    monkeypatch.setattr("trainmover.events.connection.BARRIERS", 20)
    bus, writer = await connect("reader"), await connect("writer")
    freeze(server.pid)
    try:
        listening = asyncio.create_task(bus.feed(history=False))
        await asyncio.sleep(1.0)
        assert not listening.done()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    feed = await asyncio.wait_for(listening, 5)
    await writer.publish(left(1))
    assert await take(feed, 1, limit=5) == ["m0-1"]


@pytest.mark.slow
async def test_a_deaf_client_is_replaced(server, connect):
    """A client whose reader died says that it is connected; the message to ourselves finds out."""
    bus = await connect("reader")
    feed = await bus.feed(history=False)
    other = await connect("writer")
    client = bus._connection.client
    client._reading_task.cancel()
    client._ping_interval_task.cancel()
    await other.publish(left(1))
    assert client.is_connected
    assert await take(feed, 1, limit=6) == ["m0-1"]
    assert bus._connection.client is not client


async def test_a_subject_that_kills_the_reader(server, connect):
    """A subject that is not UTF-8 breaks nats-py's reader: it comes back by itself."""
    bus = await connect("reader")
    feed = await bus.feed(history=False)
    host, port = server.url.removeprefix("nats://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.recv(65536)
        raw.sendall(b'CONNECT {"verbose":false}\r\nPUB trainmover.job.machine.\xff 1\r\nx\r\nPING\r\n')
        assert raw.recv(64).startswith(b"PONG")
    await (await connect("writer")).publish(left(1))
    assert await take(feed, 1) == ["m0-1"]


async def test_closing_with_a_frozen_server_is_bounded(server):
    """close() comes back within seconds when the server reads nothing."""
    bus = await NatsBus.connect(server.url, JOB, "writer")
    await bus.feed(history=False)
    freeze(server.pid)
    try:
        for number in range(200):
            await bus.publish(left(number))
        await asyncio.wait_for(bus.close(), 3)
    finally:
        os.kill(server.pid, signal.SIGCONT)


# -- the reader is slow


async def test_a_slow_reader_gets_everything(connect, monkeypatch):
    """What did not fit into a feed's queue comes from the log once there is room."""
    monkeypatch.setattr("trainmover.events.nats_feed.QUEUE_LIMIT", 50)
    writer, reader = await connect("writer"), await connect("reader")
    feed = await reader.feed(history=False)
    for number in range(500):
        await writer.publish(left(number))
    await writer.flush(10)
    assert sorted(await take(feed, 500)) == sorted(f"m0-{number}" for number in range(500))


async def test_messages_dropped_by_the_client_come_from_the_log(connect, monkeypatch):
    """nats-py drops what does not fit into its own queue and says so: the log has it."""
    monkeypatch.setattr("trainmover.events.connection.PENDING_MESSAGES", 5)
    reader = await connect("reader")
    feed = await reader.feed(["machine"], history=False)
    monkeypatch.undo()
    writer = await connect("writer")
    for number in range(500):
        await writer.publish(left(number))
    await writer.flush(10)
    assert sorted(await take(feed, 500)) == sorted(f"m0-{number}" for number in range(500))


async def test_a_handler_that_fails_does_not_end_the_listening(connect, caplog):
    """A handler's exception is logged and the next beat is handled."""
    bus = await connect("health")
    heard: list[str] = []

    def handler(envelope: Envelope) -> None:
        heard.append(envelope.id)
        raise RuntimeError("bad handler")

    await bus.listen(["sample.beat"], handler)
    await bus.publish(beat(1))
    await bus.publish(beat(2))
    await until(lambda: len(heard) == 2)
    assert "bad handler" in caplog.text


# -- bad messages


async def test_dead_letters(connect):
    """What cannot be decoded becomes one dead letter, whoever reads it; the rest goes on."""
    one, two = await connect("one"), await connect("two")
    feeds = [await one.feed(history=False), await two.feed(history=False)]
    headers, body = encode_message(left(1))
    client = one._connection.client
    await client.publish(SUBJECT, b"\xc1rubbish", headers=headers)
    await client.publish(SUBJECT, b"no headers")
    await client.publish(f"trainmover.{JOB}.switch.committed", body, headers=headers)
    await one.publish(left(2))
    for feed in feeds:
        async with asyncio.timeout(5):
            got = [await anext(feed) for _ in range(4)]
        letters = [envelope.event for envelope in got if isinstance(envelope.event, DeadLetter)]
        assert sorted(letter.subject for letter in letters) == [
            SUBJECT,
            SUBJECT,
            f"trainmover.{JOB}.switch.committed",
        ]
        assert {letter.body for letter in letters} == {b"\xc1rubbish", b"no headers", body}
        assert any("machine.left from m0 is not msgpack" in letter.reason for letter in letters)
    await one.flush(5)
    await two.flush(5)
    assert len(await read_stream(one)) == 4


async def test_a_dead_letter_about_a_dead_letter_is_not_written(connect, caplog):
    """Rubbish on the subject of dead letters is logged only: no letters about letters."""
    bus = await connect("one")
    feed = await bus.feed(history=False)
    await bus._connection.client.publish(f"trainmover.{JOB}.dead.letter", b"rubbish")
    await bus.publish(left(1))
    assert await take(feed, 1) == ["m0-1"]
    await bus.flush(5)
    assert len(await read_stream(bus)) == 1
    assert "ce-type is missing" in caplog.text


async def test_a_flood_of_bad_messages_is_no_flood_of_letters(connect):
    """Bad beats in hundreds make a bounded number of dead letters."""
    bus = await connect("one")
    heard: list[str] = []
    await bus.listen(["sample.beat"], lambda envelope: heard.append(envelope.id))
    for number in range(300):
        await bus._connection.client.publish(f"trainmover.{JOB}.sample.beat.m0", msgpack.packb(number))
    await bus.publish(beat(1))
    await until(lambda: heard)
    await bus.flush(5)
    assert len(await read_stream(bus)) == 50


async def test_too_large_for_the_server(server, connect):
    """A message over the server's own limit is refused at once, not retried for ever."""
    bus = await connect("writer")
    bus._max_payload = 1000
    event = JobSubmitted(script="s" * 2000, cwd="/", python="p", machines=1, run_dir="/")
    with pytest.raises(BusError, match="raise its max_payload"):
        await bus.publish(Envelope(id="a", source="x", time=1.0, job=JOB, event=event))


# -- connecting


@pytest.mark.parametrize("url", ["nats://secret@127.0.0.1:1", "nats://127.0.0.1:1,nats://127.0.0.1:2"])
async def test_connecting_to_nobody_fails_in_time(url):
    """No server: a BusError within the limit that says what to check and no secret."""
    began = time.monotonic()
    with pytest.raises(BusError, match=r"nats://127\.0\.0\.1:1\b.*check the address") as caught:
        await NatsBus.connect(url, JOB, "writer", limit=0.5)
    assert time.monotonic() - began < 2
    assert "secret" not in str(caught.value)


async def test_connecting_to_something_else_fails_in_time():
    """A port that accepts and says nothing is a BusError within the limit."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        with pytest.raises(BusError, match="check the address"):
            await NatsBus.connect(f"127.0.0.1:{mute.getsockname()[1]}", JOB, "writer", limit=0.5)
        assert time.monotonic() - began < 3


async def test_names_are_checked_before_connecting():
    """A job or program name that cannot travel is refused at once."""
    with pytest.raises(ValueError, match="job name"):
        await NatsBus.connect("nats://127.0.0.1:1", "a.b", "writer")
    with pytest.raises(ValueError, match="program name"):
        await NatsBus.connect("nats://127.0.0.1:1", JOB, "a b")
    with pytest.raises(BusError, match="empty"):
        await NatsBus.connect(" , ", JOB, "writer")


async def test_the_stream_is_made_once_as_it_must_be(connect):
    """Many programs may make the stream at the same time; it has the settings that matter."""
    buses = await asyncio.gather(*(connect(f"p{number}") for number in range(8)))
    client = buses[0]._connection.client
    config = (await client.jetstream().stream_info(f"TRAINMOVER_{JOB}")).config
    assert sorted(config.subjects) == [f"trainmover.{JOB}.{area}.>" for area in AREAS]
    assert (config.storage, config.allow_direct, config.duplicate_window) == ("file", True, 120.0)


async def test_an_older_stream_gets_the_new_areas(connect):
    """A stream made by a release with fewer areas is widened, keeping what is in it."""
    bus = await connect("one")
    await bus.publish(left(1))
    await bus.flush(5)
    jetstream = bus._connection.client.jetstream()
    config = (await jetstream.stream_info(f"TRAINMOVER_{JOB}")).config
    config.subjects = [f"trainmover.{JOB}.machine.>"]
    await jetstream.update_stream(config)
    await connect("two")
    config = (await jetstream.stream_info(f"TRAINMOVER_{JOB}")).config
    assert len(config.subjects) == len(AREAS)
    assert len(await read_stream(bus)) == 1


async def test_a_reader_makes_no_stream(server):
    """With create=False nothing is made, and a feed says that the job is not there."""
    bus = await NatsBus.connect(server.url, "nobody", "reader", create=False)
    with pytest.raises(BusError, match="TRAINMOVER_nobody did not answer"):
        await bus.feed(history=False)
    await bus.close()


async def test_publishing_without_a_stream_is_seen_by_flush(server):
    """No stream takes the event: it is kept, and flush says why it is not in the log."""
    bus = await NatsBus.connect(server.url, "nobody", "writer", create=False)
    await bus.publish(Envelope(id="a", source="x", time=1.0, job="nobody", event=left(1).event))
    with pytest.raises(BusError, match="no stream takes"):
        await bus.flush(0.3)
    late = await NatsBus.connect(server.url, "nobody", "driver")
    await bus.flush(5)
    assert len(await read_stream(late)) == 1
    await bus.close()
    await late.close()


RESTRICTED = (
    "authorization { users: [{ user: u, password: p, permissions: {"
    ' publish: ["$JS.API.>", "_INBOX.>"],'
    ' subscribe: ["trainmover.job.machine.*", "_INBOX.>"] } }] }\n'
)
"""One user, who may read machines' events only, and publish none."""


async def test_what_is_not_permitted_is_said(tmp_path):
    """A feed that permissions forbid is an error, not silence; what they allow works."""
    with NatsServer(tmp_path, accounts=Accounts(RESTRICTED, "u", "p")) as server:
        url = server.url.replace("//", "//u:p@")
        bus = await NatsBus.connect(url, JOB, "reader")
        await bus.feed(["machine"], history=True)
        with pytest.raises(BusError, match=r"does not permit reader to read trainmover\.job\.switch"):
            await bus.feed(["switch"], history=True)
        await bus.publish(left(1))
        with pytest.raises(BusError, match="may publish"):
            await bus.flush(0.3)
        await bus.close()


# -- probes


async def test_a_frozen_machine_is_silent(server, connect):
    """A machine that listens and does not answer is silent, after the limit."""
    machine, health = await connect("machine"), await connect("health")

    async def ignore(message: object) -> None:
        return None

    await machine._connection.subscribe([f"trainmover.{JOB}.probe.m0"], ignore)
    began = time.monotonic()
    assert await health.probe("m0", 0.3) == "silent"
    assert 0.25 < time.monotonic() - began < 2


async def test_absence_right_after_a_restart_means_nothing(server, connect):
    """Just after a restart others are on their way back: nobody there is 'silent' at first."""
    health = await connect("health")
    generation = health._connection.generation
    server.restart()
    await until(lambda: health._connection.generation > generation)
    assert await health.probe("m0", 0.2) == "silent"
    assert await health.probe("m0", 5) == "absent"
