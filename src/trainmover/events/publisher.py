"""The journalling publisher: what was said stays here until the log has it.

What lives here: messages on their way into the stream, and their acknowledgements.  What never
lives here: events and envelopes; it moves bytes with an id.

A message to the stream is an ordinary message on its subject with a reply address; subscribers
have it at once, and JetStream answers when it is stored.  Messages go out in the order of
``publish``; each stays in ``_waiting`` until its acknowledgement comes, and is sent again with the
same ``Nats-Msg-Id`` after a while and after every reconnect.  The stream keeps the first, so the
reader of a stream and of a subject sees each message once.  (Not nats-py's ``publish_async``: its
futures never end when a server dies.  Its ``publish`` is this, but one task per message.)
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainmover.errors import BusError
from trainmover.events.client import Arrived
from trainmover.events.connection import Connection
from trainmover.events.tasks import check_cancelled, end_tasks

WAITING_MESSAGES: Final = 65536
"""Messages that may wait for the log."""

WAITING_BYTES: Final = 256 << 20
"""Bytes that may wait for the log."""

AGAIN_FIRST: Final = 1.0
AGAIN_LAST: Final = 5.0
"""Seconds until a message is sent again: the first, doubling up to the last."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Message:
    id: str
    subject: str
    headers: Mapping[str, str]
    body: bytes
    due: float = 0.0
    pause: float = AGAIN_FIRST
    refusal: str = ""


class Publisher:
    """Publishes into one stream over one connection; made by :meth:`open`."""

    def __init__(self, connection: Connection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._waiting: dict[int, _Message] = {}
        self._bytes = 0
        self._count = 0
        self._unsent = 0
        """Every message before this number was handed to the connection that stands now."""
        self._kick = asyncio.Event()
        self._acked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, connection: Connection, stream: str) -> Publisher:
        """Start on a connection.

        Raises:
            BusError: the inbox for acknowledgements cannot be subscribed to.
        """
        self = cls(connection, stream)
        await connection.subscribe([f"{connection.inbox}.ack.*"], self._on_ack)
        connection.on_up.append(self._send_all_again)
        self._task = asyncio.create_task(self._run())
        return self

    @property
    def waiting(self) -> int:
        """Messages that are not known to be in the log."""
        return len(self._waiting)

    async def publish(self, name: str, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        """Take a message and send it, now if there is a connection.

        Raises:
            BusError: too much is waiting already.
        """
        size = len(body) + 512
        if len(self._waiting) >= WAITING_MESSAGES or self._bytes + size > WAITING_BYTES:
            raise BusError(
                f"{len(self._waiting)} events ({self._bytes >> 20} MiB) wait for the log already,"
                f" no room for {name}: check that JetStream is up and has space"
            )
        number = self._count
        self._count += 1
        self._waiting[number] = message = _Message(name, subject, headers, body)
        self._bytes += size
        if number != self._unsent:
            self._kick.set()  # older ones are on their way again: not past them
            return
        if len(self._waiting) == 1:
            self._kick.set()  # the sender sleeps without a limit while nothing waits
        await self._send(number, message)

    async def flush(self, limit: float) -> None:
        """Wait until everything taken before is acknowledged.

        Raises:
            BusError: it was not; names the first that is missing, and why if the log said so.
        """
        last = self._count
        try:
            async with asyncio.timeout(limit):
                while self._waiting and next(iter(self._waiting)) < last:
                    self._acked.clear()
                    await self._acked.wait()
        except TimeoutError:
            missing = [message for number, message in self._waiting.items() if number < last]
            names = ", ".join(message.id for message in missing[:3])
            why = next((why for message in missing if (why := self._refusal(message))), "no acknowledgement")
            raise BusError(
                f"{len(missing)} events are not in the log after {limit:g} s ({why}), first {names}:"
                " check that JetStream is up and that this program may publish there"
            ) from None

    def _refusal(self, message: _Message) -> str:
        """Why a message is not in the log, as far as the server has told."""
        if self._connection.denied(message.subject):
            return f"this program's account may not publish on {message.subject}"
        return message.refusal

    async def close(self) -> None:
        """Stop sending; never raises."""
        if self._waiting:
            first = next(iter(self._waiting.values()))
            logger.warning("%d events were not seen in the log, first %s", len(self._waiting), first.id)
        if self._task is not None:
            await end_tasks([self._task])

    # -- sending

    async def _send(self, number: int, message: _Message) -> bool:
        self._unsent = max(self._unsent, number + 1)
        message.due = asyncio.get_running_loop().time() + message.pause
        reply = f"{self._connection.inbox}.ack.{number}"
        sent = await self._connection.send(
            message.subject, message.body, reply=reply, headers=message.headers
        )
        message.refusal = "" if sent else "it could not be sent"
        return sent

    def _send_all_again(self) -> None:
        """After a reconnect: nothing that was sent before is known to have arrived."""
        for message in self._waiting.values():
            message.due = 0.0
            message.pause = AGAIN_FIRST
        self._unsent = next(iter(self._waiting), self._count)
        self._kick.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            check_cancelled()
            self._kick.clear()
            now = loop.time()
            for number, message in list(self._waiting.items()):
                if message.due > now or number not in self._waiting:
                    continue
                if message.due > 0:
                    message.pause = min(2 * message.pause, AGAIN_LAST)
                if not await self._send(number, message):
                    break
            if self._connection.connected_for == 0:
                await self._kick.wait()
                continue
            nearest = min((message.due for message in self._waiting.values()), default=None)
            try:
                async with asyncio.timeout_at(None if nearest is None else max(nearest, loop.time() + 0.02)):
                    await self._kick.wait()
            except TimeoutError:
                continue

    async def _on_ack(self, message: Arrived) -> None:
        number = int(message.subject.rpartition(".")[2])
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        if (message.headers or {}).get("Status") == "503":
            waiting.refusal = f"no stream takes {waiting.subject}"
            return
        answer = json.loads(message.data)
        if "error" in answer:
            waiting.refusal = str(answer["error"].get("description", answer["error"]))[:300]
            logger.warning("the log refused %s: %s", waiting.id, waiting.refusal)
        elif answer.get("stream") == self._stream:
            del self._waiting[number]
            self._bytes -= len(waiting.body) + 512
            self._acked.set()
