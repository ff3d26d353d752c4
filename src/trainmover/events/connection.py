"""A connection to NATS that comes back: one recovery for everything that can go wrong.

What lives here: the lifetime of clients (``client`` has what one is).  What never lives here: events.

nats-py can lose its connection in many ways and notices some of them: the server dies, the server
freezes, the server sends an error (the client closes for good), a callback raises (the client
says that it is connected and hears nothing).  So this file does not use its reconnecting at all.
Whatever happens, the client is thrown away and a new one is made, with all subscriptions, for as
long as it takes.  What can be noticed is: a closed client says so; a frozen server misses its
pings; everything else is found by a message to ourselves every second, through the same read
loop and a subscription like any other: three missing in a row, and the client goes.  Whoever
cannot wait that long, because it takes the silence of others for a sign, asks with ``echo``.

After each loss, ``on_lost`` callbacks are called; after each return, ``on_up`` callbacks: publishers
send again what was not acknowledged, feeds fetch what they missed.  Subscriptions are up before
that, so nothing falls in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError

from trainmover.errors import BusError
from trainmover.events.address import read_address
from trainmover.events.client import (
    CONNECT_SECONDS,
    PENDING_BYTES,
    PENDING_MESSAGES,
    Arrived,
    OneClient,
    connect,
    discard,
    text_of,
)
from trainmover.events.tasks import check_cancelled, end_tasks

BEAT_SECONDS: Final = 1.0
BEATS_MISSED: Final = 3
RETRY_FIRST: Final = 0.02
RETRY_SOON: Final = 0.2
RETRY_LAST: Final = 2.0
SOON_SECONDS: Final = 10.0
"""Pauses between tries, in seconds: a restarted server is found soon, a dead one is not hammered."""

BARRIER_SECONDS: Final = 3.0
BARRIERS: Final = 4
"""How often a subscription waits so long: a server that stands still for a moment has not refused it, and one
that stands still for longer is left (see BEATS_MISSED)."""

logger = logging.getLogger(__name__)

Receive = Callable[["Arrived"], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Route:
    """A subscription that outlives clients."""

    subject: str
    receive: Receive
    on_gap: Callable[[], None] | None
    current: Subscription | None = None


class Connection:
    """See the file's essay; made by :meth:`open`."""

    def __init__(self, url: str, name: str, token: str | None) -> None:
        self.name = name
        self.generation = 0
        self._address = read_address(url)
        self.inbox = f"{self._address.inbox}.{uuid.uuid4().hex}"
        self.on_lost: list[Callable[[], None]] = []
        self.on_up: list[Callable[[], None]] = []
        self._token = token
        self._client: OneClient | None = None
        self._since = 0.0
        self._stood = False
        self._routes: list[Route] = []
        self._lost = asyncio.Event()
        self._trouble = "no answer"
        self._denied: set[str] = set()
        self._heard = 0
        self._tokens = itertools.count()
        self._barriers: dict[bytes, asyncio.Future[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @classmethod
    async def open(cls, url: str, name: str, *, token: str | None, limit: float) -> Connection:
        """Connect for the first time.

        Raises:
            BusError: not within ``limit`` seconds; says what to check.
        """
        self = cls(url, name, token)
        self._routes.append(Route(f"{self.inbox}.beat", self._on_beat, None))
        try:
            async with asyncio.timeout(limit):
                await self._connect(asyncio.get_running_loop().time() + limit)
        except TimeoutError:
            raise BusError(
                f"no NATS server let {name} in at {self.where} within {limit:g} s ({self._trouble}):"
                " check the address, that the server runs, and the token or credentials"
            ) from None
        self._tasks = [asyncio.create_task(self._supervise()), asyncio.create_task(self._watch())]
        return self

    @property
    def where(self) -> str:
        """Addresses without what is secret in them."""
        return str(self._address)

    @property
    def connected_for(self) -> float:
        """Seconds since the connection stands, or an echo came back after one had not; 0.0: there is none."""
        if self._client is None or not self._client.is_connected:
            return 0.0
        return max(asyncio.get_running_loop().time() - self._since, 1e-9)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    @property
    def client(self) -> Client:
        """The client of the moment; do not keep it.

        Raises:
            BusError: there is none.
        """
        if self._client is None or not self._client.is_connected:
            raise BusError(f"{self.name} has no connection to {self.where} ({self._trouble})")
        return self._client

    @property
    def max_payload(self) -> int | None:
        """Largest message that the server takes, in bytes; None while not connected."""
        return self._client.max_payload if self._client is not None else None

    async def send(
        self, subject: str, body: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        """Hand one message to the client of the moment; False: there is none, or it refused."""
        if self._client is None or not self._client.is_connected:
            return False
        try:
            await self._client.publish(
                subject, body, reply=reply, headers=None if headers is None else dict(headers)
            )
        except (NatsError, OSError, ValueError) as error:
            logger.warning("%s could not send on %s: %s", self.name, subject, text_of(error))
            return False
        return True

    async def echo(self, limit: float) -> bool:
        """Send ourselves a message; False: it was not back after ``limit`` seconds, or none could be sent.

        When it is back, the server has carried out all that this client was given before.
        """
        client, generation = self._client, self.generation
        if client is None or not client.is_connected:
            return False
        try:
            await self._barrier(client, limit)
        except (NatsError, OSError, TimeoutError, ValueError):
            self._stood = self._stood or generation == self.generation
            return False
        if self._stood and generation == self.generation:
            # Others may have lost their connections meanwhile, and are on their way back.
            self._stood = False
            self._since = asyncio.get_running_loop().time()
        return generation == self.generation

    async def subscribe(
        self, subjects: Sequence[str], receive: Receive, on_gap: Callable[[], None] | None = None
    ) -> list[Route]:
        """Subscribe now and after every reconnect; active on the server when this returns.

        Args:
            receive: called with each message, one at a time per subject; what it raises is logged.
            on_gap: called when messages had to be dropped because too many were waiting.

        Raises:
            BusError: no connection, or the server does not permit it.
        """
        client = self.client
        routes = [Route(subject, receive, on_gap) for subject in subjects]
        self._routes += routes
        try:
            for route in routes:
                await self._subscribe(client, route)
            await self._barriers_passed(client)
        except (NatsError, OSError, TimeoutError) as error:
            if client is self._client and client.is_connected:
                await self.unsubscribe(routes)
                raise BusError(f"{self.name} cannot subscribe at {self.where}: {text_of(error)}") from error
            # The connection broke: the supervisor subscribes these again with all others.
        denied = [route.subject for route in routes if self.denied(route.subject)]
        if denied:
            await self.unsubscribe(routes)
            raise BusError(f"the server does not permit {self.name} to read {', '.join(denied)}")
        return routes

    def denied(self, subject: str) -> bool:
        """Whether the server has said, on this connection, that this user may not use a subject."""
        quoted = f'"{subject}"'.lower()  # the client library tells errors in lower case
        return any(quoted in text.lower() for text in self._denied)

    async def unsubscribe(self, routes: Sequence[Route]) -> None:
        """Forget subscriptions; never raises."""
        for route in routes:
            with contextlib.suppress(ValueError):
                self._routes.remove(route)
            if route.current is not None:
                with contextlib.suppress(NatsError, OSError):
                    await route.current.unsubscribe()

    async def close(self) -> None:
        """End everything, within about a second; never raises."""
        if self._closed:
            return
        self._closed = True
        await end_tasks(self._tasks)
        client, self._client = self._client, None
        if client is not None:
            await discard(client)

    # -- one client after the other

    async def _supervise(self) -> None:
        while not self._closed:
            check_cancelled()
            await self._lost.wait()
            client, self._client = self._client, None
            logger.warning("%s lost the bus at %s: %s", self.name, self.where, self._trouble)
            for callback in list(self.on_lost):
                callback()
            if client is not None:
                await discard(client)
            await self._connect()
            logger.warning("%s has the bus at %s again", self.name, self.where)
            for callback in list(self.on_up):
                callback()

    async def _connect(self, deadline: float | None = None) -> None:
        """Try until there is a client with all subscriptions.

        Args:
            deadline: loop time to give up at; None: never, this is not the first time.

        Raises:
            TimeoutError: the deadline has passed.
            BusError: with a deadline only: the server refuses these credentials.
        """
        pause = RETRY_FIRST
        began = asyncio.get_running_loop().time()
        while not self._closed:
            check_cancelled()
            self._lost.clear()
            self._denied.clear()
            client = OneClient()
            try:
                async with asyncio.timeout(2 * CONNECT_SECONDS):
                    await self._start(client)
            except Exception as error:
                self._trouble = text_of(error)
                await discard(client)
                if deadline is not None and "authorization violation" in self._trouble.lower():
                    raise BusError(
                        f"the NATS server at {self.where} does not let {self.name} in:"
                        " check the token or credentials"
                    ) from error
            except BaseException:
                await discard(client)
                raise
            else:
                return
            now = asyncio.get_running_loop().time()
            if deadline is not None and now >= deadline:
                raise TimeoutError  # by our own clock too: nats-py can swallow a cancellation
            # Spread out: thousands of machines lose the same server in the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_SOON if now - began < SOON_SECONDS else RETRY_LAST)

    async def _start(self, client: OneClient) -> None:
        async def on_error(error: Exception) -> None:
            self._on_error(error)

        async def on_end() -> None:
            if client is self._client:
                self._lose("the connection was closed")

        await connect(client, self._address, self.name, self._token, on_error=on_error, on_end=on_end)
        for route in list(self._routes):
            await self._subscribe(client, route)
        await self._barrier(client)
        self._heard = 0
        self._stood = False
        self._client = client
        self._since = asyncio.get_running_loop().time()
        self.generation += 1
        if not client.is_connected:
            # It ended before it was the current one, so nobody was told.
            self._lose("the connection was closed at once")

    async def _subscribe(self, client: Client, route: Route) -> None:
        async def receive(message: Msg) -> None:
            # Whatever a reader does, the subscription lives on.
            try:
                await route.receive(message)  # type: ignore[arg-type]  # msg_class makes it so
            except Exception:
                logger.exception("%s failed on a message on %s", self.name, message.subject[:200])

        route.current = await client.subscribe(
            route.subject,
            cb=receive,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )

    def _lose(self, why: str) -> None:
        self._trouble = why
        self._lost.set()

    def _on_error(self, error: Exception) -> None:
        """nats-py's ``error_cb``: an exception here would leave a client that hears nothing."""
        try:
            text = text_of(error)
            if isinstance(error, SlowConsumerError):
                for route in self._routes:
                    if route.current is error.sub and route.on_gap is not None:
                        route.on_gap()
            elif "permissions violation" in text.lower():
                if text not in self._denied:
                    logger.warning("%s: %s", self.name, text)
                self._denied.add(text)
            self._trouble = text
            logger.debug("%s: %s", self.name, text)
        except Exception:
            logger.exception("%s could not handle an error of the bus", self.name)

    # -- do we hear anything at all?

    async def _on_beat(self, message: Arrived) -> None:
        self._heard += 1
        waiting = self._barriers.get(message.data)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _barrier(self, client: Client, limit: float = BARRIER_SECONDS) -> None:
        """Wait until the server has carried out all that this client was given.

        (nats-py's ``flush`` does not: its PING goes out before commands that wait to be written.)

        Raises:
            TimeoutError: it has not within ``limit`` seconds.
        """
        token = str(next(self._tokens)).encode()
        self._barriers[token] = asyncio.get_running_loop().create_future()
        try:
            await client.publish(f"{self.inbox}.beat", token)
            async with asyncio.timeout(limit):
                await self._barriers[token]
        finally:
            del self._barriers[token]

    async def _barriers_passed(self, client: Client) -> None:
        """As :meth:`_barrier`, for as long as this client is the one that counts.

        Raises:
            TimeoutError: the server does not answer, or the client was left.
        """
        for tries in range(BARRIERS):
            try:
                await self._barrier(client)
            except TimeoutError:
                if tries == BARRIERS - 1 or client is not self._client or not client.is_connected:
                    raise
            else:
                return

    async def _watch(self) -> None:
        missed = 0
        while not self._closed:
            check_cancelled()
            before, generation = self._heard, self.generation
            sent = await self.send(f"{self.inbox}.beat", b"")
            # Counted in rounds, not by the clock: a process that was frozen for a minute and goes
            # on has missed one round, not sixty.
            await asyncio.sleep(BEAT_SECONDS)
            if not sent or generation != self.generation or self._heard > before:
                missed = 0
                if self._client is not None and not self._client.is_connected:
                    self._lose("the client is no longer connected")
                continue
            missed += 1
            if missed >= BEATS_MISSED:
                missed = 0
                self._lose(f"{BEATS_MISSED} messages to ourselves did not come back")
