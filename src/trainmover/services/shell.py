"""The shell: the one program round every core.

What lives here: everything that a core may not have (a bus, a clock, timers, tasks), and the
service's memory.  What never lives here: decisions.

**One queue.**  What the feed brings and what the shell makes itself (fired timers, answers to
probes, leases) goes through one queue to one consumer, so a core hears one thing after the other.
What the shell makes is published first and fed at once; when it comes back by the feed its id is
known already.

**The journal comes first** (``journal``).  What an input caused is published after the entry that says so,
on the same connection: whenever an output is in the log, the order of all that led to it is there too.

**Born from the log.**  On start the shell reads the log and feeds the journalled inputs in the
journalled order, with the journalled times, without publishing; then it does what the core had
asked for and the log does not show to be done (outputs, timers, probes), then takes the inputs that
were never journalled, in the order of the stream, and goes on live.  Of those its own earlier words come
first: a life that ended in a stall of the log may have left them and no journal, and what was said holds.
So it may be killed between any two instructions: ids are derived from causes, and what is said twice is
heard once.

**What it acted on is in the log in the end.**  Whoever says something repeats it until the log has it; one
that dies in a stall of the log cannot.  So an input that the log does not show some seconds after it was
heard is put there by the shell, as a copy (``copying``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from trainmover import clock as clocks
from trainmover import logs
from trainmover.errors import BusError
from trainmover.events.bus import Bus, Feed
from trainmover.events.catalogue import (
    DeadLetter,
    Event,
    JournalCopy,
    JournalEntry,
    MachineProbed,
    TimerFired,
)
from trainmover.events.envelope import Envelope
from trainmover.events.micro import Tally
from trainmover.services.copying import Copying
from trainmover.services.core import (
    CancelTimer,
    Core,
    Output,
    Probe,
    Say,
    SetTimer,
    envelopes_of,
    probe_id,
    timer_id,
)
from trainmover.services.journal import Journal, feeding_order, journal_of

PROBE_LIMIT: Final = 1.0
"""Seconds that a machine has to answer a probe."""

PROBE_RETRY: Final = 0.2
"""Seconds until a probe is repeated that the bus could not carry."""

LATE_INPUT: Final = 10.0
"""Seconds for which a start waits for an input that was heard before, but is not in the log yet."""

PAST_LIMIT: Final = 60.0
"""Seconds that reading the log may take on start."""

FLUSH_LIMIT: Final = 15.0
"""Seconds that the last events may take to the log on a clean exit; it may stall (a disk that is full)."""

SHELL_SAYS: Final[frozenset[type[Event]]] = frozenset({TimerFired, JournalEntry, JournalCopy, DeadLetter})
"""What any service says beside what its core does; who probes says ``machine.probed`` too."""

Clock = Callable[[], float]


class Driver(Protocol):
    """Something beside the core that makes inputs for it; see ``leases``."""

    def observe(self, envelope: Envelope) -> None:
        """See an envelope that the core is about to hear, or has just said."""
        ...

    async def run(self, bus: Bus, tell: Callable[[Event], None]) -> None:
        """Make inputs until cancelled."""
        ...


class Shell:
    """Runs one core on a bus.

    Args:
        core: a fresh core.
        bus: connection to the job's events; the caller closes it.
        drivers: what else makes inputs for the core.
        clock: unix seconds.
        fresh: makes a new part of an id at each call, unique in the job.
    """

    def __init__(
        self,
        core: Core,
        bus: Bus,
        *,
        drivers: Sequence[Driver] = (),
        clock: Clock = clocks.now,
        fresh: Callable[[], str] = lambda: uuid.uuid4().hex[:20],
    ) -> None:
        self.core = core
        self.bus = bus
        self.ready = asyncio.Event()
        self.tally = Tally()
        self.log = logs.get(f"trainmover.services.{core.name}")
        self._drivers = drivers
        self._clock = clock
        self._fresh = fresh
        self._inbox: asyncio.Queue[tuple[Envelope, bool]] = asyncio.Queue()
        self._fed: set[str] = set()
        self._logged: set[str] = set()
        self._journal = Journal(core.name, bus, self._spawn)
        self._copying = Copying(core, bus, self._now)
        self._due: dict[str, tuple[float, str, float]] = {}
        """By name: when, because of which input, and how many seconds that was away when it was asked for."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._probes: dict[str, tuple[Probe, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._live = False
        self._broken: asyncio.Future[Any] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Rebuild, then serve until ``stop`` is set.

        Raises:
            BusError: the log could not be read, or the bus was closed under it.
        """
        self._broken = asyncio.get_running_loop().create_future()
        feed: Feed | None = None
        try:
            feed = await self.bus.feed((*self.core.areas, "timer", JournalCopy.type), history=True)
            past = await feed.past(PAST_LIMIT)
            entries = await self._entries()
            await self._wait_for_inputs(feed, past, entries)
            await self._rebuild(past, entries)
            for driver in self._drivers:
                self._spawn(driver.run(self.bus, self._tell))
            self._spawn(self._pump(feed))
            self._spawn(self._consume())
            self._spawn(self._copying.run(feed))
            self.ready.set()
            stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait((stopped, self._broken), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
            if self._broken.done():
                self._broken.result()
        finally:
            await self._end(feed)

    # -- born from the log -------------------------------------------------------------------------

    async def _entries(self) -> list[JournalEntry]:
        """This service's journal so far, in the order of feeding."""
        feed = await self.bus.feed(("journal",), history=True)
        try:
            past = await feed.past(PAST_LIMIT)
        finally:
            await feed.close()
        return journal_of(self.core.name, past)

    async def _wait_for_inputs(self, feed: Feed, past: list[Envelope], entries: list[JournalEntry]) -> None:
        """Inputs of the last seconds may still be on their way into the log: its leader was lost, say.

        Without them this life would hear things in another order than the journal of the last one tells.
        """
        known = {envelope.id for envelope in past}
        since = self._clock() - LATE_INPUT
        missing = {cause for _, cause, now in feeding_order(entries) if cause not in known and now > since}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_INPUT):
                while missing:
                    envelope = await anext(feed)
                    past.append(envelope)
                    missing.discard(envelope.id)

    async def _rebuild(self, past: list[Envelope], entries: list[JournalEntry]) -> None:
        known = {envelope.id: envelope for envelope in past}
        self._logged = set(known)
        owed: list[Envelope] = []
        for number, cause, now in feeding_order(entries):
            self._journal.number = max(self._journal.number, number)
            envelope = known.get(cause)
            if envelope is None:
                # Whoever said it still has to bring it into the log; it is fed when it comes.
                self.log.warning("an input of the journal is not in the log yet", id=cause)
                continue
            if envelope.id not in self._fed:
                owed += self._feed(envelope, now)
        for envelope in owed:
            if envelope.id not in known:
                await self.bus.publish(envelope)
        fresh = sorted(filter(self._is_input, past), key=self._is_own, reverse=True)
        for envelope in fresh:
            await self._take(envelope)
        self._live = True
        self.log.info("rebuilt from the log", events=len(past), new=len(fresh))
        for name in list(self._due):
            self._arm(name)
        for answer in [answer for answer in self._probes if answer not in known]:
            self._ask(answer)

    def _is_input(self, envelope: Envelope) -> bool:
        if envelope.type not in self.core.hears or envelope.id in self._fed:
            return False
        event = envelope.event
        return not isinstance(event, TimerFired) or event.service == self.core.name

    def _is_own(self, envelope: Envelope) -> bool:
        """Something that an earlier life of this service has said."""
        return envelope.source == self.core.name and envelope.type in self.core.says

    # -- one input ---------------------------------------------------------------------------------

    async def _take(self, envelope: Envelope) -> None:
        """Feed one input, journal it, and say what it caused."""
        now = self._now()
        outputs = self._feed(envelope, now)
        if not outputs:
            await self._journal.collect(envelope.id, now)
            return
        await self._journal.write(envelope.id, now, tuple(output.id for output in outputs))
        for output in outputs:
            if output.id not in self._logged:
                await self.bus.publish(output)

    def _feed(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Give an input to the core and carry out its commands; what it says is returned."""
        self._fed.add(envelope.id)
        self._observe(envelope)
        if isinstance(envelope.event, TimerFired):
            due = self._due.get(envelope.event.name)
            if due is not None and due[0] == envelope.event.due:
                del self._due[envelope.event.name]
                self._disarm(envelope.event.name)
        self.tally.heard += 1
        began = time.perf_counter_ns()
        try:
            outputs = self.core.handle(envelope, now)
        except Exception as error:
            # A service that dies of one input would die of it again after every restart.
            self.tally.failed += 1
            self.tally.last_error = f"{envelope.type}: {type(error).__name__} {error}"[:300]
            self.log.exception(
                "the core did not survive %s; the input is passed over",
                envelope.type,
                **logs.facts_of(envelope),
            )
            return []
        finally:
            self.tally.spent_ns += time.perf_counter_ns() - began
        said = envelopes_of(self.core.name, envelope, now, outputs)
        for number, output in enumerate(outputs):
            self._command(envelope, now, number, output)
        for item in said:
            self._observe(item)
            if self._live:
                self.log.info(item.type, **logs.facts_of(item))
        return said

    def _observe(self, envelope: Envelope) -> None:
        for driver in self._drivers:
            driver.observe(envelope)

    def _command(self, cause: Envelope, now: float, number: int, output: Output) -> None:
        match output:
            case SetTimer(name=name, due=due):
                self._due[name] = (due, cause.id, due - now)
                self._arm(name)
            case CancelTimer(name=name):
                self._due.pop(name, None)
                self._disarm(name)
            case Probe():
                answer = probe_id(self.core.name, cause.id, number)
                while answer in self._fed:
                    # An earlier life was answered, and the log has what it had asked for after the answer.
                    answer += "-again"
                self._probes[answer] = (output, cause.id)
                self._ask(answer)
            case Say():
                pass

    # -- what the shell makes ----------------------------------------------------------------------

    def _arm(self, name: str) -> None:
        self._disarm(name)
        if self._live:
            due, cause, seconds = self._due[name]
            # Never longer than it was asked for, whatever has become of the clock since.
            delay = max(0.0, min(due - self._clock(), seconds))
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(delay, self._fire, name, due, cause)

    def _disarm(self, name: str) -> None:
        handle = self._timers.pop(name, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, name: str, due: float, cause: str) -> None:
        fired = TimerFired(service=self.core.name, name=name, due=due)
        self._make(fired, timer_id(self.core.name, name, due), cause)

    def _ask(self, answer: str) -> None:
        if self._live:
            self._spawn(self._probe(answer, *self._probes[answer]))

    async def _probe(self, answer: str, probe: Probe, cause: str) -> None:
        while True:
            try:
                said = await self.bus.probe(probe.machine, PROBE_LIMIT)
                break
            except BusError:
                await asyncio.sleep(PROBE_RETRY)
        event = MachineProbed(machine=probe.machine, incarnation=probe.incarnation, answer=said)
        self._make(event, answer, cause)

    def _tell(self, event: Event) -> None:
        """An input made by a driver: it happens once, so its id is a fresh one."""
        self._make(event, f"{event.type}-{self._fresh()}", None)

    def _make(self, event: Event, name: str, cause: str | None) -> None:
        envelope = Envelope(
            id=name, source=self.core.name, time=self._now(), job=self.bus.job, event=event, cause=cause
        )
        self._inbox.put_nowait((envelope, True))

    # -- tasks -------------------------------------------------------------------------------------

    async def _pump(self, feed: Feed) -> None:
        async for envelope in feed:
            if self._is_input(envelope):
                self._inbox.put_nowait((envelope, False))
        raise BusError(f"the feed of {self.core.name} ended: the bus was closed")

    async def _consume(self) -> None:
        while True:
            envelope, ours = await self._inbox.get()
            if envelope.id in self._fed:
                continue
            if ours:
                await self.bus.publish(envelope)
            await self._take(envelope)

    def _spawn(self, work: object) -> None:
        assert asyncio.iscoroutine(work), "the shell runs coroutines"
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _end(self, feed: Feed | None) -> None:
        """Let go of everything; what is known is journalled if the bus still takes it."""
        self._broken = None
        self._journal.stop()
        for handle in self._timers.values():
            handle.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if feed is not None:
            await self._copying.look(feed, 0.0)
            await feed.close()
        with contextlib.suppress(BusError):
            await self._journal.flush()
            await self.bus.flush(FLUSH_LIMIT)

    def _now(self) -> float:
        return round(self._clock(), 6)
