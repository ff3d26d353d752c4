"""The bus over NATS: core NATS for speed, JetStream for memory.

What lives here: :class:`NatsBus`, which puts the parts together (connection, publisher, history,
feeds) and speaks envelopes; the stream's settings; dead letters.  What never lives here:
how a connection is kept (``connection``), how the log gets a message (``publisher``), when a
machine counts as absent (``probes``).

Subjects: ``trainmover.<job>.<area>.<event>`` is kept by the stream ``TRAINMOVER_<job>`` (one
filter per area); un-journalled ``trainmover.<job>.sample.<event>.<machine>`` and probes
``trainmover-probe.<job>.<machine>`` are core NATS only.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from trainmover.errors import BusError, DecodeError
from trainmover.events.bus import Bus, Handler, ProbeAnswer
from trainmover.events.catalogue import AREAS, DeadLetter
from trainmover.events.client import Arrived
from trainmover.events.codec import decode_message, encode_message
from trainmover.events.connection import Connection
from trainmover.events.envelope import SUBJECT_ROOT, Envelope, check_job, check_source, stream_name
from trainmover.events.feed import RecentIds
from trainmover.events.filters import check_filters, check_types
from trainmover.events.history import History
from trainmover.events.micro import Endpoint, MicroService
from trainmover.events.nats_feed import NatsFeed
from trainmover.events.probes import Prober
from trainmover.events.publisher import Publisher
from trainmover.events.tasks import end_tasks

DUPLICATE_WINDOW: Final = 120.0
"""Seconds in which the stream drops a second message with the same id."""

CREATE_SECONDS: Final = 3.0
ASK_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 0.25
"""Making the log: how long one try may take, how long asking for it, and the pause between two questions."""

DEAD_LETTERS: Final = 50
"""Dead letters per minute at most; a flood of bad messages must not become a flood of letters."""

logger = logging.getLogger(__name__)


class NatsBus(Bus):
    """See :class:`trainmover.events.bus.Bus`; made by :meth:`connect`."""

    def __init__(
        self, connection: Connection, job: str, publisher: Publisher, prober: Prober, *, letters: bool
    ) -> None:
        self._connection = connection
        self._job = job
        self._may_write_letters = letters
        self._publisher = publisher
        self._prober = prober
        self._stream = stream_name(job)
        self._history = History(connection, self._stream, f"{SUBJECT_ROOT}.{job}.>")
        self._max_payload = connection.max_payload or 0
        self._feeds: list[NatsFeed] = []
        self._letters: set[asyncio.Task[None]] = set()
        self._lettered = RecentIds(4096)
        self._letter_times: list[float] = []
        self._closed = False

    @classmethod
    async def connect(
        cls,
        url: str,
        job: str,
        name: str,
        *,
        token: str | None = None,
        create: bool = True,
        replicas: int = 1,
        limit: float = 10.0,
    ) -> Self:
        """Connect a program to a job.

        Args:
            url: address of the server, or several separated by commas.
            job: the job's name.
            name: the program's name, as in ``Envelope.source``; it signs dead letters.
            token: what the server wants to see.
            create: make the job's stream if it is not there; a program whose account may not do that
                waits for it.  False for a mere reader, who says nothing of bad messages either.
            replicas: copies of the stream in a cluster of servers, when it is made.
            limit: seconds that all of this may take.

        Raises:
            BusError: no connection, or no stream; says what to check.
            ValueError: the job's or the program's name has characters that it may not have.
        """
        check_job(job)
        check_source(name)
        deadline = asyncio.get_running_loop().time() + limit
        connection = await Connection.open(url, name, token=token, limit=limit)
        try:
            if create:
                await _make_stream(connection, job, replicas, deadline)
            publisher = await Publisher.open(connection, stream_name(job))
            prober = await Prober.open(connection, job)
        except BaseException:
            await connection.close()
            raise
        return cls(connection, job, publisher, prober, letters=create)

    @property
    def job(self) -> str:
        """See :class:`trainmover.events.bus.Bus`."""
        return self._job

    @property
    def connected_for(self) -> float:
        """See :class:`trainmover.events.bus.Bus`."""
        return self._connection.connected_for

    async def echo(self, limit: float) -> bool:
        """See :class:`trainmover.events.bus.Bus`."""
        return await self._connection.echo(limit)

    @property
    def history(self) -> History:
        """The job's log, for export."""
        return self._history

    async def publish(self, envelope: Envelope) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        if envelope.job != self._job:
            raise BusError(f"{envelope.type} {envelope.id} is of job {envelope.job!r}, not {self._job!r}")
        headers, body = encode_message(envelope)
        size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 16
        if self._max_payload and size > self._max_payload:
            raise BusError(
                f"{envelope.type} {envelope.id} is {size} bytes with its headers, the server at"
                f" {self._connection.where} takes {self._max_payload}: raise its max_payload"
            )
        if envelope.event.journalled:
            await self._publisher.publish(envelope.id, envelope.subject, headers, body)
        else:
            await self._connection.send(envelope.subject, body, headers=headers)

    async def flush(self, limit: float) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        await self._publisher.flush(limit)

    async def feed(self, areas: Sequence[str] | None = None, *, history: bool) -> NatsFeed:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        filters = check_filters(areas)
        base = f"{SUBJECT_ROOT}.{self._job}"
        subjects = [f"{base}.{name}" if "." in name else f"{base}.{name}.*" for name in filters or AREAS]
        feed = NatsFeed(self._connection, self._history, self._read, filters, from_start=history)
        try:
            await feed.open(subjects)
            # Subscribed first, so that nothing falls between the end of the log and the present.
            feed.begin(0 if history else await self._last_sequence())
        except BaseException:
            await feed.close()
            raise
        self._feeds.append(feed)
        return feed

    async def listen(self, types: Iterable[str], handler: Handler) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        names = check_types(types)

        async def receive(message: Arrived) -> None:
            envelope = self._read(message.subject, message.headers, message.data, True)
            if envelope is not None:
                result = handler(envelope)
                if inspect.isawaitable(result):
                    await result

        await self._connection.subscribe([f"{SUBJECT_ROOT}.{self._job}.{name}.*" for name in names], receive)

    async def probe(self, machine: str, limit: float) -> ProbeAnswer:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        return await self._prober.ask(machine, limit)

    async def answer_probes(self, machine: str) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        await self._prober.answer(machine)

    async def serve_micro(self, name: str, description: str, endpoint: Endpoint) -> bool:
        """Answer ``nats micro`` for this program; False: the server does not permit it."""
        self._check_open()
        return await MicroService(name, self._job, description, endpoint).start(self._connection)

    async def close(self) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        if self._closed:
            return
        self._closed = True
        await end_tasks(list(self._letters))
        for feed in self._feeds:
            await feed.close()
        await self._publisher.close()
        await self._connection.close()

    # -- reading

    def _read(
        self, subject: str, headers: Mapping[str, str] | None, body: bytes, news: bool
    ) -> Envelope | None:
        """The envelope in a message; None, and a dead letter if it is news, when there is none."""
        try:
            return decode_message(headers, body, subject)
        except DecodeError as error:
            logger.warning("%s: %s", self._connection.name, error)
            known = subject == f"{SUBJECT_ROOT}.{self._job}.{DeadLetter.type}"
            if news and self._may_write_letters and not known:
                self._letter(subject, headers or {}, body, str(error))
            return None

    def _letter(self, subject: str, headers: Mapping[str, str], body: bytes, reason: str) -> None:
        now = time.time()
        # The same message has the same letter, whoever reads it and however often.
        content = repr((subject, headers.get("ce-id"), headers.get("ce-type"))).encode() + body
        letter_id = f"dead-{hashlib.sha256(content).hexdigest()[:24]}"
        self._letter_times = [moment for moment in self._letter_times if now - moment < 60]
        if letter_id in self._lettered or len(self._letter_times) >= DEAD_LETTERS or self._closed:
            return
        self._lettered.add(letter_id)
        self._letter_times.append(now)
        event = DeadLetter(
            subject=_printable(subject)[:1024], reason=_printable(reason)[:2048], body=body[:4096]
        )
        envelope = Envelope(id=letter_id, source=self._connection.name, time=now, job=self._job, event=event)
        task = asyncio.create_task(self._send_letter(envelope))
        self._letters.add(task)
        task.add_done_callback(self._letters.discard)

    async def _send_letter(self, envelope: Envelope) -> None:
        try:
            await self.publish(envelope)
        except BusError as error:
            logger.warning("%s could not say that a message was bad: %s", self._connection.name, error)

    async def _last_sequence(self) -> int:
        try:
            info = await self._connection.client.jetstream().stream_info(self._stream)
        except (NatsError, OSError, TimeoutError) as error:
            raise BusError(
                f"the log {self._stream} did not answer {self._connection.name}"
                f" ({type(error).__name__} {error}): check that JetStream is up and the job exists"
            ) from error
        return int(info.state.last_seq)

    def _check_open(self) -> None:
        if self._closed:
            raise BusError(f"the bus of {self._connection.name} is closed")


async def _make_stream(connection: Connection, job: str, replicas: int, deadline: float) -> None:
    """Make the job's stream, or add the areas that an older release did not have.

    Raises:
        BusError: it is not there at the deadline.
    """
    name = stream_name(job)
    subjects = [f"{SUBJECT_ROOT}.{job}.{area}.>" for area in AREAS]
    loop = asyncio.get_running_loop()
    said = "no answer"
    creating = f"$JS.API.STREAM.CREATE.{name}"
    while loop.time() < deadline:
        try:
            patience = CREATE_SECONDS if not connection.denied(creating) else ASK_SECONDS
            jetstream = connection.client.jetstream(timeout=max(0.1, min(patience, deadline - loop.time())))
            try:
                info = await jetstream.stream_info(name)
            except NotFoundError:
                if connection.denied(creating):
                    said = "it is not there, and this program's account may not make it: submit the job"
                    await asyncio.sleep(WAIT_SECONDS)
                    continue
                await jetstream.add_stream(
                    StreamConfig(
                        name=name,
                        subjects=subjects,
                        retention=RetentionPolicy.LIMITS,
                        storage=StorageType.FILE,
                        num_replicas=replicas,
                        duplicate_window=DUPLICATE_WINDOW,
                        allow_direct=True,
                    )
                )
                return
            missing = set(subjects) - set(info.config.subjects or [])
            updating = f"$JS.API.STREAM.UPDATE.{name}"
            if (missing or not info.config.allow_direct) and not connection.denied(updating):
                info.config.subjects = sorted({*subjects, *(info.config.subjects or [])})
                info.config.allow_direct = True
                await jetstream.update_stream(info.config)
            return
        except (NatsError, OSError, TimeoutError, BusError, APIError) as error:
            said = f"{type(error).__name__} {error}"
            await asyncio.sleep(0.1)
    raise BusError(
        f"the log {name} could not be made at {connection.where} ({said}):"
        " check that the server has JetStream and that this program may create streams"
    )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
