"""Event logs as files, and reading them out of a server or its store."""

from __future__ import annotations

import io
from random import Random

import msgpack
import pytest

from tests.events.examples import JOB, envelope, example, left
from trainmover.errors import BusError, ConfigError, DecodeError
from trainmover.events import NatsBus, NatsServer, Record, read_log, read_store, read_stream, write_log
from trainmover.events.catalogue import EVENTS
from trainmover.events.log import MAGIC

RECORDS = [Record(3, left(1)), Record(4, left(2)), Record(9, left(3))]


@pytest.fixture
def path(tmp_path):
    """A log of three records."""
    file = tmp_path / "events.tmlog"
    assert write_log(file, RECORDS) == 3
    return file


def test_a_log_comes_back(tmp_path):
    """Every kind of event survives, with its envelope and sequence."""
    file = tmp_path / "deep" / "events.tmlog"
    sent = [envelope(example(EVENTS[name], Random(7)), Random(name)) for name in sorted(EVENTS)]
    write_log(file, sent)
    assert read_log(file) == [Record(number, item) for number, item in enumerate(sent, 1)]
    assert [item.name for item in file.parent.iterdir()] == ["events.tmlog"]


def test_sequences_are_kept_and_must_grow(tmp_path, path):
    """Sequence numbers are the stream's, holes included; going back is refused."""
    assert read_log(path) == RECORDS
    with pytest.raises(ValueError, match="does not follow"):
        write_log(tmp_path / "bad.tmlog", RECORDS[::-1])
    assert not (tmp_path / "bad.tmlog").exists()


def test_any_msgpack_reader_can_read_it(path):
    """Behind the magic bytes are plain msgpack objects that explain themselves."""
    data = path.read_bytes()
    assert data.startswith(MAGIC)
    objects = list(msgpack.Unpacker(io.BytesIO(data[len(MAGIC) :])))
    assert objects[0] == {"version": 1, "records": 3, "jobs": [JOB]}
    sequence, headers, body = objects[1]
    assert (sequence, headers["ce-id"], msgpack.unpackb(body)["machine"]) == (3, "m0-1", "m0")
    assert objects[-1] == ["end", 3]


def test_every_cut_is_seen(path):
    """A log that was cut anywhere is refused."""
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DecodeError, match=r"cut|does not begin"):
            read_log(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data + b"\xc7", "goes on after its end"),
        (lambda data: data + b"\x01", "goes on after its end"),
        (lambda data: data[: len(MAGIC)] + msgpack.packb({"version": 2}) + data[len(MAGIC) :], "version 2"),
        (lambda data: data[: len(MAGIC)] + msgpack.packb(5) + data[len(MAGIC) :], "version 5"),
        (lambda data: data.replace(b"machine.left", b"machine.lost", 1), "record 1: unknown event type"),
        (lambda data: data.replace(b"incarnation", b"inkarnation"), "record 1: machine.left"),
        (lambda data: data[:-2] + b"d\x07", "its end says 7"),
        (lambda data: data[:-6] + msgpack.packb([1, 2]) + data[-6:], r"record 4 is not \[sequence"),
        (lambda data: data[:-6] + b"\xc1" + data[-6:], "damaged near byte"),
        (lambda data: data[:-6] + b"\xc7\xff\x05" + data[-6:], r"damaged|cut"),
    ],
)
def test_damage_is_named(path, change, words):
    """A log that is not what it says is a DecodeError that says where."""
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DecodeError, match=words):
        read_log(path)


async def test_export_from_a_live_job_and_from_its_store(tmp_path):
    """The same records come from the running server, and from its store after its end."""
    with NatsServer(tmp_path / "nats") as server:
        bus = await NatsBus.connect(server.url, JOB, "writer")
        for number in range(700):
            await bus.publish(left(number))
        await bus.flush(10)
        live = await read_stream(bus)
        await bus.close()
    assert [record.envelope.id for record in live] == [f"m0-{number}" for number in range(700)]
    assert [record.sequence for record in live] == list(range(1, 701))
    assert await read_store(server.store, JOB) == live
    write_log(tmp_path / "events.tmlog", live)
    assert read_log(tmp_path / "events.tmlog") == live


async def test_what_is_no_store(tmp_path):
    """A folder that is no store, or holds another job, is an error that says so."""
    with pytest.raises(ConfigError, match="is not the store"):
        await read_store(tmp_path, JOB)
    with NatsServer(tmp_path / "nats") as server:
        bus = await NatsBus.connect(server.url, JOB, "writer")
        await bus.close()
    with pytest.raises(BusError, match="TRAINMOVER_other cannot be read"):
        await read_store(server.store, "other", limit=5)
