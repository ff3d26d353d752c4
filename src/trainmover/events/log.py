"""Event logs as files: what a job said, in the order of its stream, readable without a server.

What lives here: writing, reading and exporting logs.  What never lives here: replaying them.

The file is eight magic bytes and then a stream of msgpack objects that explains itself to any
msgpack reader:

1. a map: format version, number of records, job;
2. one array per record: ``[sequence, headers, body]``, the stream's sequence number, the NATS
   headers as a map, and the message's body as bytes, exactly as they were on the bus;
3. an array ``["end", number of records]``, so that a cut file is seen.

Reading is as strict as the bus.  Writing goes to a temporary name first: a log is whole or absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgpack

from trainmover.errors import BusError, ConfigError, DecodeError
from trainmover.events.codec import FAULTS, MAX_BODY, decode_message, encode_message, pack
from trainmover.events.envelope import Envelope
from trainmover.events.feed import RecentIds

if TYPE_CHECKING:
    from trainmover.events.nats_bus import NatsBus

MAGIC: Final = b"TMEVLOG\n"
VERSION: Final = 1
SUFFIX: Final = ".tmlog"

_END: Final = "end"
_BUFFER: Final = 4 * MAX_BODY


@dataclass(frozen=True, slots=True)
class Record:
    """An envelope and its place in the log; sequences grow, with holes where nothing readable is."""

    sequence: int
    envelope: Envelope


def write_log(path: Path, events: Iterable[Record | Envelope]) -> int:
    """Write a log; bare envelopes are numbered on from what was before them.

    Returns:
        the number of records.

    Raises:
        ValueError: sequences do not grow.
        BusError: an event cannot be encoded.
        OSError: the file cannot be written.
    """
    records = list(_numbered(events))
    jobs = sorted({record.envelope.job for record in records})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(MAGIC)
            file.write(pack({"version": VERSION, "records": len(records), "jobs": jobs}))
            for record in records:
                headers, body = encode_message(record.envelope)
                file.write(pack([record.sequence, headers, body]))
            file.write(pack([_END, len(records)]))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(records)


def read_log(path: Path, only: Callable[[Mapping[str, str]], bool] | None = None) -> list[Record]:
    """The records of a log file.

    Args:
        path: the file.
        only: decode and return just the records whose headers it approves of.

    Raises:
        DecodeError: it is not a whole log of a version that this program reads; says where.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file, _uncollected():
        return list(_records(file, path, only))


async def read_stream(bus: NatsBus, limit: float = 30.0) -> list[Record]:
    """The log of a live job so far, each id once; what cannot be decoded is left out.

    Raises:
        BusError: it could not be read within ``limit`` seconds.
    """
    records: list[Record] = []
    seen = RecentIds()
    try:
        async with asyncio.timeout(limit):
            async for batch in bus.history.read(1):
                for stored in batch:
                    try:
                        envelope = decode_message(stored.headers, stored.body, stored.subject)
                    except DecodeError:
                        continue  # whoever heard it live has said so in a dead letter
                    if envelope.id not in seen:
                        seen.add(envelope.id)
                        records.append(Record(stored.sequence, envelope))
    except TimeoutError:
        raise BusError(
            f"the log of job {bus.job} was not read within {limit:g} s ({len(records)} events so far)"
        ) from None
    return records


async def read_store(store: Path, job: str, limit: float = 30.0) -> list[Record]:
    """The log of a job in the store folder of a server that has ended.

    A server is started on a copy, so the store stays as it is.

    Raises:
        ConfigError: there is no such store, or no nats-server to read it.
        BusError: it holds no such job, or could not be read within ``limit`` seconds.
    """
    from trainmover.events.nats_bus import NatsBus
    from trainmover.events.server import NatsServer

    if not (store / "jetstream").is_dir():
        raise ConfigError(f"{store} is not the store of an event server: it has no folder 'jetstream'")
    with tempfile.TemporaryDirectory(prefix="trainmover-store-") as name:
        server = NatsServer(Path(name))
        await asyncio.to_thread(shutil.copytree, store, server.store)
        with server:
            bus = await NatsBus.connect(server.url, job, "export", create=False, limit=limit)
            try:
                return await read_stream(bus, limit)
            finally:
                await bus.close()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector, which would walk over all that was read again and again.

    What is read makes no cycles.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _numbered(events: Iterable[Record | Envelope]) -> Iterator[Record]:
    last = 0
    for event in events:
        record = event if isinstance(event, Record) else Record(last + 1, event)
        if record.sequence <= last:
            raise ValueError(f"sequence {record.sequence} does not follow {last}")
        last = record.sequence
        yield record


def _records(
    file: BinaryIO, path: Path, only: Callable[[Mapping[str, str]], bool] | None
) -> Iterator[Record]:
    if file.read(len(MAGIC)) != MAGIC:
        raise DecodeError(f"{path} is not an event log of TrainMover: it does not begin with {MAGIC!r}")
    objects = _objects(file, path)
    _, head = next(objects, (0, None))
    if head is None:
        raise DecodeError(f"{path} is cut: it has no head")
    if not isinstance(head, dict) or head.get("version") != VERSION:
        version = head.get("version") if isinstance(head, dict) else head
        raise DecodeError(f"{path} has version {version!r} of the log format, this program reads {VERSION}")
    count = 0
    last = 0
    for position, value in objects:
        match value:
            case ("end", int() as announced):
                if announced != count or head.get("records") != count:
                    raise DecodeError(f"{path} has {count} records, its end says {announced}")
                if len(MAGIC) + position != path.stat().st_size:
                    raise DecodeError(f"{path} goes on after its end")
                return
            case (int() as sequence, dict() as headers, bytes() as body) if _is_text(headers):
                if sequence <= last:
                    where = f"{path}, record {count + 1}"
                    raise DecodeError(f"{where}: sequence {sequence} does not follow {last}")
                if only is None or only(headers):
                    try:
                        yield Record(sequence, decode_message(headers, body))
                    except DecodeError as error:
                        raise DecodeError(f"{path}, record {count + 1}: {error}") from None
                last = sequence
                count += 1
            case _:
                raise DecodeError(f"{path}, record {count + 1} is not [sequence, headers, body]")
    raise DecodeError(f"{path} is cut: it ends after {count} records without its end mark")


def _objects(file: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    """Objects and the position after each; ends at the last whole one."""
    reader = msgpack.Unpacker(
        file,
        use_list=False,
        raw=False,
        max_buffer_size=_BUFFER,
        max_bin_len=MAX_BODY,
        max_str_len=1 << 16,
        max_array_len=1024,
        max_map_len=1024,
        max_ext_len=0,
    )
    while True:
        try:
            value = reader.unpack()
        except msgpack.OutOfData:
            return
        except FAULTS as error:
            kind = type(error).__name__
            raise DecodeError(f"{path} is damaged near byte {reader.tell()}: {kind} {error}") from None
        yield reader.tell(), value


def _is_text(headers: dict[Any, Any]) -> bool:
    return {*map(type, headers), *map(type, headers.values())} <= {str}
