"""A bus inside one process, for tests: the promises of ``bus`` without a server.

What lives here: :class:`MemoryBroker`, which plays server and log, and :class:`MemoryBus`, one
program's connection to it.  Every envelope goes through the real codec, so what cannot be sent
over NATS cannot be sent here either.

The broker can misbehave on purpose, within what a real bus may do: ``disturb`` loses, doubles,
delays or reorders live deliveries (the log still gets everything, and ``heal`` fills the gaps as
a reconnect would), ``down`` and ``up`` are an outage, ``silence`` makes a machine listen without
answering.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence

from trainmover.errors import BusError
from trainmover.events.bus import Bus, Handler, ProbeAnswer
from trainmover.events.codec import decode_message, encode_message
from trainmover.events.envelope import Envelope, check_job
from trainmover.events.feed import FeedQueue
from trainmover.events.filters import check_filters, check_types, wanted

Disturb = Callable[[str, Envelope], Sequence[float]]
"""(name of the reading bus, envelope) -> seconds after which each live copy arrives; () loses it."""

logger = logging.getLogger(__name__)


class MemoryBroker:
    """Server and log of one job in memory.

    Attributes:
        log: journalled envelopes in order, each id once.
        disturb: how live deliveries to feeds misbehave; None: they do not.
    """

    def __init__(self, job: str = "job", disturb: Disturb | None = None) -> None:
        self.job = check_job(job)
        self.log: list[Envelope] = []
        self.disturb = disturb
        self.is_up = True
        self.since = 0.0
        self.buses: list[MemoryBus] = []
        self._ids: set[str] = set()
        self._answering: dict[str, MemoryBus] = {}
        self._silent: set[str] = set()

    def connect(self, name: str) -> MemoryBus:
        """A connection for the program of this name."""
        bus = MemoryBus(self, name)
        self.buses.append(bus)
        return bus

    def down(self) -> None:
        """Begin an outage: nothing is delivered or logged until ``up``."""
        self.is_up = False

    def up(self) -> None:
        """End an outage: publishers send what waited, feeds fill their gaps."""
        self.is_up = True
        self.since = asyncio.get_running_loop().time()
        for bus in self.buses:
            bus.send_waiting()
        self.heal()

    def heal(self) -> None:
        """Let every feed read from the log what it has not heard, as after a reconnect."""
        for bus in self.buses:
            for feed in bus.feeds:
                feed.fill()

    def silence(self, machine: str, silent: bool = True) -> None:
        """Let a machine listen for probes without answering them."""
        (self._silent.add if silent else self._silent.discard)(machine)

    # -- for MemoryBus

    def accept(self, envelope: Envelope) -> None:
        """Log and deliver one envelope."""
        headers, body = encode_message(envelope)
        received = decode_message(headers, body, envelope.subject)
        if received.event.journalled:
            if received.id not in self._ids:
                self._ids.add(received.id)
                self.log.append(received)
            for bus in self.buses:
                bus.deliver(received)
        else:
            for bus in self.buses:
                bus.sample(received)

    def answering(self, machine: str, bus: MemoryBus) -> None:
        """``bus`` answers probes for ``machine``."""
        self._answering[machine] = bus

    def leave(self, bus: MemoryBus) -> None:
        """``bus`` is gone."""
        if bus in self.buses:
            self.buses.remove(bus)
        self._answering = {name: owner for name, owner in self._answering.items() if owner is not bus}

    def ask(self, machine: str) -> ProbeAnswer:
        """What a probe for ``machine`` finds."""
        if machine not in self._answering:
            return "absent"
        return "silent" if machine in self._silent else "alive"


class MemoryFeed(FeedQueue):
    """A feed of a :class:`MemoryBus`."""

    def __init__(self, broker: MemoryBroker, filters: tuple[str, ...] | None, *, history: bool) -> None:
        super().__init__(history=history)
        self._broker = broker
        self._filters = filters
        self._cursor = 0 if history else len(broker.log)
        self._missed = False
        if history:
            self.fill()
            self.history_done()

    def wants(self, envelope: Envelope) -> bool:
        """See :meth:`FeedQueue.wants`."""
        return wanted(self._filters, envelope.type)

    def arrive(self, envelope: Envelope) -> None:
        """One live delivery."""
        if self.wants(envelope) and not self.offer(envelope, stored=True):
            self._missed = True

    def fill(self) -> None:
        """Take from the log what was not heard."""
        while self._cursor < len(self._broker.log):
            envelope = self._broker.log[self._cursor]
            if self.wants(envelope) and not self.offer(envelope, stored=True):
                self._missed = True
                return
            self._cursor += 1
        self._missed = False

    async def __anext__(self) -> Envelope:
        if self._missed and not self._waiting:
            self.fill()
        return await super().__anext__()


class MemoryBus(Bus):
    """One program's connection to a :class:`MemoryBroker`; see :class:`trainmover.events.bus.Bus`."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name = name
        self.feeds: list[MemoryFeed] = []
        self._broker = broker
        self._waiting: list[Envelope] = []
        self._handlers: list[tuple[tuple[str, ...], Handler]] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def job(self) -> str:
        """See :class:`trainmover.events.bus.Bus`."""
        return self._broker.job

    @property
    def connected_for(self) -> float:
        """See :class:`trainmover.events.bus.Bus`."""
        if not self._broker.is_up or self._closed:
            return 0.0
        return max(asyncio.get_running_loop().time() - self._broker.since, 1e-9)

    async def echo(self, limit: float) -> bool:
        """See :class:`trainmover.events.bus.Bus`."""
        return self._broker.is_up and not self._closed

    async def publish(self, envelope: Envelope) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        if envelope.job != self.job:
            raise BusError(f"{envelope.type} {envelope.id} is of job {envelope.job!r}, not {self.job!r}")
        encode_message(envelope)
        if self._broker.is_up:
            self._broker.accept(envelope)
        elif envelope.event.journalled:
            self._waiting.append(envelope)
            self._idle.clear()

    async def flush(self, limit: float) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        try:
            await asyncio.wait_for(self._idle.wait(), limit)
        except TimeoutError:
            raise BusError(
                f"{len(self._waiting)} events are not in the log after {limit:g} s,"
                f" the first is {self._waiting[0]}"
            ) from None

    async def feed(self, areas: Sequence[str] | None = None, *, history: bool) -> MemoryFeed:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        filters = check_filters(areas)
        if not self._broker.is_up:
            raise BusError("the bus is away: check that its server runs")
        feed = MemoryFeed(self._broker, filters, history=history)
        self.feeds.append(feed)
        return feed

    async def listen(self, types: Iterable[str], handler: Handler) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        self._handlers.append((check_types(types), handler))

    async def probe(self, machine: str, limit: float) -> ProbeAnswer:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        if not self._broker.is_up:
            raise BusError(f"the bus was away while {machine} was probed: nothing was learned")
        answer = self._broker.ask(machine)
        await asyncio.sleep(limit if answer == "silent" else 0)
        if not self._broker.is_up:
            raise BusError(f"the bus was away while {machine} was probed: nothing was learned")
        return answer

    async def answer_probes(self, machine: str) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._check_open()
        self._broker.answering(machine, self)

    async def close(self) -> None:
        """See :class:`trainmover.events.bus.Bus`."""
        self._closed = True
        self._broker.leave(self)
        for feed in self.feeds:
            feed.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- for MemoryBroker

    def send_waiting(self) -> None:
        """Send what was published during an outage."""
        waiting, self._waiting = self._waiting, []
        for envelope in waiting:
            self._broker.accept(envelope)
        self._idle.set()

    def deliver(self, envelope: Envelope) -> None:
        """Bring a journalled envelope to every feed, as the broker's ``disturb`` will have it."""
        disturb = self._broker.disturb
        for delay in (0.0,) if disturb is None else disturb(self.name, envelope):
            for feed in self.feeds:
                if delay > 0:
                    asyncio.get_running_loop().call_later(delay, feed.arrive, envelope)
                else:
                    feed.arrive(envelope)

    def sample(self, envelope: Envelope) -> None:
        """Bring an un-journalled envelope to its handlers."""
        for types, handler in self._handlers:
            if envelope.type not in types:
                continue
            try:
                result = handler(envelope)
                if inspect.isawaitable(result):
                    task = asyncio.ensure_future(result)
                    self._tasks.add(task)
                    task.add_done_callback(self._handled)
            except Exception:
                logger.exception("a handler of %s failed on %s", self.name, envelope)

    def _handled(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a handler of %s failed", self.name, exc_info=task.exception())

    def _check_open(self) -> None:
        if self._closed:
            raise BusError(f"the bus of {self.name} is closed")
