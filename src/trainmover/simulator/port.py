"""The port: the simulated bus as a service's shell sees it.

What lives here: :class:`SimulatedBus` and its feeds, for the promises of ``events.bus``.  What never
lives here: the server (``bus``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from trainmover.errors import BusError
from trainmover.events.bus import Bus, Handler, ProbeAnswer
from trainmover.events.catalogue import Heartbeat
from trainmover.events.envelope import Envelope
from trainmover.events.feed import FeedQueue
from trainmover.events.filters import check_filters, check_types, wanted
from trainmover.simulator.bus import JOB, LOST_SECONDS, Exchange
from trainmover.simulator.clock import Process

LOOK_SECONDS = 0.05
"""A message to oneself on a bus that stands still: how soon it is back when the bus goes on."""


class SimulatedFeed(FeedQueue):
    """A feed of a :class:`SimulatedBus`."""

    def __init__(
        self, exchange: Exchange, process: Process, filters: tuple[str, ...] | None, *, history: bool
    ) -> None:
        super().__init__(history=history)
        self.process = process
        self._exchange = exchange
        self._filters = filters
        self._cursor = 0 if history else len(exchange.log)
        self._wanted: dict[str, bool] = {}
        self.fill()
        self.history_done()

    def wants(self, envelope: Envelope) -> bool:
        """See :class:`Listener`."""
        name = envelope.type
        found = self._wanted.get(name)
        if found is None:
            found = self._wanted[name] = wanted(self._filters, name)
        return found

    def arrive(self, envelope: Envelope) -> None:
        """See :class:`Listener`."""
        if not self._exchange.out:
            self.offer(envelope)

    def fill(self) -> None:
        """See :class:`Listener`."""
        exchange = self._exchange
        log = exchange.log
        while not exchange.out and exchange.still_since is None and self._cursor < len(log):
            envelope = log[self._cursor]
            if self.wants(envelope) and not self.offer(envelope, stored=True):
                return
            self._cursor += 1

    async def read_log(self, limit: float) -> None:
        """See :meth:`FeedQueue.read_log`."""
        if self._exchange.out:
            raise BusError("the bus is away")
        self.fill()

    async def close(self) -> None:
        """See :class:`trainmover.events.bus.Feed`."""
        self._exchange.forget(self)
        await super().close()


class SimulatedBus(Bus):
    """The bus as one service's shell sees it.

    Attributes:
        lives: publishes that are left before its program dies; None: it does not.
    """

    def __init__(self, exchange: Exchange, process: Process) -> None:
        self.process = process
        self.lives: int | None = None
        self.outlet = exchange.outlet(process)
        self._exchange = exchange
        self._feeds: list[SimulatedFeed] = []

    @property
    def job(self) -> str:
        """See :class:`trainmover.events.bus.Bus`."""
        return JOB

    @property
    def reachable(self) -> bool:
        """Samples get here."""
        return self.outlet.alive and not self._exchange.out

    @property
    def connected_for(self) -> float:
        """See :class:`trainmover.events.bus.Bus`."""
        if not self.reachable:
            return 0.0
        still_since = self._exchange.still_since
        if still_since is not None and self._exchange.loop.now - still_since > LOST_SECONDS:
            return 0.0
        return max(self._exchange.loop.now - self._exchange.since, 1e-9)

    async def echo(self, limit: float) -> bool:
        """See :class:`trainmover.events.bus.Bus`."""
        exchange = self._exchange
        until = exchange.loop.now + limit
        while exchange.still_since is not None and exchange.loop.now < until:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(LOOK_SECONDS)
        return self.reachable and exchange.still_since is None

    async def publish(self, envelope: Envelope) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        if self.lives is not None:
            self.lives -= 1
            if self.lives <= 0:
                self.die()
        self._check()
        self.outlet.publish(envelope)

    async def flush(self, limit: float) -> None:
        """See :class:`trainmover.events.bus.Bus`; nobody simulated waits for the log."""
        self._check()

    async def feed(self, areas: Sequence[str] | None = None, *, history: bool) -> SimulatedFeed:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check()
        away = self._exchange.out or self._exchange.still_since is not None
        if away or (history and self._exchange.stalled):
            raise BusError("the bus is away")
        feed = SimulatedFeed(self._exchange, self.process, check_filters(areas), history=history)
        self._exchange.listeners.append(feed)
        self._feeds.append(feed)
        return feed

    async def listen(self, types: Iterable[str], handler: Handler) -> None:
        """See :class:`trainmover.events.bus.Bus`; heartbeats are the only samples here."""
        if check_types(types) != (Heartbeat.type,):
            raise ValueError(f"only {Heartbeat.type} is simulated")
        self._exchange.add_sampler(self.outlet, handler)

    async def probe(self, machine: str, limit: float) -> ProbeAnswer:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check()
        exchange = self._exchange
        began = exchange.loop.now
        if not await self.echo(limit):
            raise BusError(f"the bus was away or stood still while {machine} was probed")
        answer = exchange.ask(machine)
        await asyncio.sleep(limit if answer == "silent" else 0.001)
        stood = exchange.still_since is not None or exchange.moving_since >= began
        if exchange.out or (answer != "alive" and stood):
            raise BusError(f"the bus was away or stood still while {machine} was probed")
        return answer

    async def answer_probes(self, machine: str) -> None:
        """See :class:`trainmover.events.bus.Bus`: services are not probed."""
        raise BusError("services are not probed")

    async def close(self) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self.die()

    def die(self) -> None:
        """Nothing more gets out or in."""
        self.outlet.alive = False
        self.lives = None
        if self.outlet in self._exchange.outlets:
            self._exchange.outlets.remove(self.outlet)
        self._exchange.drop_samplers(self.outlet)
        for feed in self._feeds:
            self._exchange.forget(feed)
            feed.end()

    def _check(self) -> None:
        if not self.outlet.alive:
            raise BusError(f"the bus of {self.process.name} is closed")
