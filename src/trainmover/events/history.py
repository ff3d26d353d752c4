"""Reading the log: a stream's messages by sequence number, without a consumer.

What lives here: JetStream's batched direct get (ADR-31) as an async iterator.  What never lives
here: what the messages mean.

A request names a first sequence and a number of messages; the server answers with those messages
and an end mark that says how many are left.  There is nothing to create, keep alive or delete on
the server, so nothing can be lost there either: whoever was cut off asks again from where it got
to.  (An ordered push consumer would do the same with a heartbeat, a flow control and its own
recovery; 16,384 machines that reconnect together would each create one, and a stream has room
for 1,000.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from trainmover.errors import BusError
from trainmover.events.connection import Connection

BATCH: Final = 512
BATCH_BYTES: Final = 8 << 20
SILENCE_SECONDS: Final = 1.5
"""A server that says nothing for this long in the middle of an answer is asked again later."""

SLICE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the log as it lies there."""

    sequence: int
    subject: str
    headers: Mapping[str, str]
    body: bytes


class History:
    """The past of one stream."""

    def __init__(self, connection: Connection, stream: str, subjects: str) -> None:
        self._connection = connection
        self._stream = stream
        self._subjects = subjects

    async def read(self, first: int) -> AsyncIterator[list[Stored]]:
        """Messages from sequence ``first`` to the end of the log, in order, in batches.

        Raises:
            BusError: the log does not answer; what was yielded stays good.
        """
        while True:
            batch, left = await self._batch(first)
            if batch:
                yield batch
                first = batch[-1].sequence + 1
            if left == 0:
                return

    async def _batch(self, first: int) -> tuple[list[Stored], int]:
        client = self._connection.client
        inbox = client.new_inbox()
        request = {"seq": first, "next_by_subj": self._subjects, "batch": BATCH, "max_bytes": BATCH_BYTES}
        answers: asyncio.Queue[Msg] = asyncio.Queue()

        async def receive(message: Msg) -> None:
            answers.put_nowait(message)

        found: list[Stored] = []
        try:
            subscription = await client.subscribe(inbox, cb=receive, pending_bytes_limit=0)
            try:
                await client.publish(
                    f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(request).encode(), reply=inbox
                )
                while True:
                    message = await self._next(answers, client)
                    headers = message.headers or {}
                    status = headers.get("Status")
                    if status is None:
                        sequence = int(headers["Nats-Sequence"])
                        found.append(Stored(sequence, headers["Nats-Subject"], headers, message.data))
                    elif status == "204":
                        return found, int(headers.get("Nats-Num-Pending", "0"))
                    elif status == "404":
                        return found, 0
                    else:
                        why = headers.get("Description") or "no stream, or it does not allow direct reads"
                        raise BusError(f"the log {self._stream} cannot be read: {status} {why}")
            finally:
                if not client.is_closed:
                    await subscription.unsubscribe()
        except (NatsError, OSError, TimeoutError, KeyError, ValueError) as error:
            raise BusError(
                f"the log {self._stream} cannot be read from {first} on: {type(error).__name__} {error}"
            ) from error

    async def _next(self, answers: asyncio.Queue[Msg], client: Client) -> Msg:
        """The next answer; in short waits, because a client that is thrown away wakes nobody."""
        for _ in range(round(SILENCE_SECONDS / SLICE_SECONDS)):
            try:
                async with asyncio.timeout(SLICE_SECONDS):
                    return await answers.get()
            except TimeoutError:
                if self._connection.client is not client:
                    break
        raise TimeoutError("the server stopped in the middle of an answer")
