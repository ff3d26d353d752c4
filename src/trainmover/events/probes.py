"""Probes: is a machine's program there, as far as the bus can tell?

What lives here: asking and answering.  What never lives here: what follows from an answer.

A probe is an empty message with a reply address.  The machine's program answers it; when nobody
listens under that name, the server itself says so at once.  Both can mislead for a moment: a
program that changes its connection is away for some milliseconds, and a server that was just
restarted has nobody yet.  So a probe asks again and again until its limit, takes any answer to
any of its questions, and believes in absence only when it lasts.

Silence misleads longest: a server that stands still (a stopped process, a virtual machine that is
moved) takes every question and brings no answer.  So each question goes together with a message to
ourselves.  While that is on its way no time counts, and when it does not come back nothing was learned.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from trainmover.errors import BusError
from trainmover.events.bus import ProbeAnswer
from trainmover.events.client import Arrived
from trainmover.events.connection import Connection

PROBE_ROOT: Final = "trainmover-probe"
"""First part of the subjects of probes.  Not that of the events: whoever subscribes to all of those would
be somebody who listens, and the server could not say that nobody does."""

ABSENCE_SECONDS: Final = 0.15
"""Nobody must have listened for this long."""

SETTLE_SECONDS: Final = 2.0
"""While the connection is younger than this, absence means nothing."""

STILL_SECONDS: Final = 0.5
"""When a message to ourselves takes longer than this, the bus stands still."""

AGAIN_SECONDS: Final = 0.25
"""Pause between questions that nobody has answered."""

AGAIN_ABSENT_SECONDS: Final = 0.05
"""Pause between questions while the server says that nobody listens."""


class Prober:
    """Asks and answers probes of one job over one connection; made by :meth:`open`."""

    def __init__(self, connection: Connection, job: str) -> None:
        self._connection = connection
        self._base = f"{PROBE_ROOT}.{job}"
        self._numbers = itertools.count()
        self._answers: dict[str, asyncio.Queue[bool]] = {}

    @classmethod
    async def open(cls, connection: Connection, job: str) -> Prober:
        """Start on a connection.

        Raises:
            BusError: the inbox for answers cannot be subscribed to.
        """
        self = cls(connection, job)
        await connection.subscribe([f"{connection.inbox}.probe.*"], self._receive)
        return self

    async def answer(self, machine: str) -> None:
        """Answer for this machine from now on."""

        async def answer(message: Arrived) -> None:
            if message.reply:
                await self._connection.send(message.reply, b"")

        await self._connection.subscribe([f"{self._base}.{machine}"], answer)

    async def ask(self, machine: str, limit: float) -> ProbeAnswer:
        """See :meth:`trainmover.events.bus.Bus.probe`."""
        generation = self._connection.generation
        number = str(next(self._numbers))
        answers = self._answers[number] = asyncio.Queue()
        try:
            return await self._ask(machine, limit, generation, number, answers)
        finally:
            del self._answers[number]

    async def _ask(
        self, machine: str, limit: float, generation: int, number: str, answers: asyncio.Queue[bool]
    ) -> ProbeAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        reply = f"{self._connection.inbox}.probe.{number}"
        absent_since: float | None = None
        while True:
            asked = loop.time()
            sent = await self._connection.send(f"{self._base}.{machine}", b"", reply=reply)
            carried = sent and await self._connection.echo(STILL_SECONDS)
            deadline += loop.time() - asked
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + AGAIN_SECONDS)):
                    if await answers.get():
                        return "alive"
            except TimeoutError:
                absent_since = None
            else:
                absent_since = loop.time() if absent_since is None else absent_since
            if (
                not carried
                or generation != self._connection.generation
                or self._connection.connected_for == 0
            ):
                raise BusError(
                    f"the bus was away or stood still while {machine} was probed: nothing was learned"
                )
            now = loop.time()
            settled = self._connection.connected_for >= SETTLE_SECONDS
            if settled and absent_since is not None and now - absent_since >= ABSENCE_SECONDS:
                return "absent"
            if now >= deadline:
                return "silent"
            if absent_since is not None:
                await asyncio.sleep(min(AGAIN_ABSENT_SECONDS, deadline - now))

    async def _receive(self, message: Arrived) -> None:
        answers = self._answers.get(message.subject.rpartition(".")[2])
        if answers is not None:
            answers.put_nowait((message.headers or {}).get("Status") != "503")
