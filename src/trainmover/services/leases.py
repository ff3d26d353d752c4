"""Leases: what becomes of heartbeats before the health core hears of it.

What lives here: :class:`LeaseBook`, a pure class to which time is told, and :class:`LeaseDriver`,
the few lines that connect it to a bus and a clock.  What never lives here: verdicts.

Heartbeats are many and mean little each, so they stay out of the log.  A machine's *lease* is what
is said of them: it expired, it returned, or the machine beats while one of its rank processes is
stopped.  The limit is adaptive in the way of the phi accrual detector (Hayashibara et al., 2004):
the silence that would be less likely than 10 ** -:data:`PHI` for a machine with these intervals,
held between :data:`SHORTEST` and :data:`LONGEST` seconds.

A watcher must doubt itself first.  When its own loop came late (a busy host, a stopped process), or
the bus was away or is back for only a moment, beats may lie unread or were never sent: for that
time nobody is blamed, every machine's silence is counted from its end.  And a bus that stands still
(its process is stopped, its host does not run) says nothing of it: the connection stands, all beats
lie in it.  So before each look at the leases the watcher sends itself a message by the same way.  It looks
when that is back, and a look that was kept waiting is late like any other.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import ClassVar, Final

from trainmover.events.bus import Bus
from trainmover.events.catalogue import (
    Event,
    Heartbeat,
    LeaseExpired,
    LeaseReturned,
    LeaseStalled,
    MachineFailed,
    MachineJoined,
    MachineLeft,
)
from trainmover.events.envelope import Envelope

PERIOD: Final = 0.25
"""Seconds between a machine's heartbeats."""

SHORTEST: Final = 1.2
"""No silence shorter than this means anything."""

LONGEST: Final = 1.8
"""No machine is given longer than this; with the probe that follows it stays below 3 s."""

PHI: Final = 8.0
"""A limit is the silence whose probability is 10 ** -PHI."""

STALL: Final = 1.0
"""Seconds that a rank process may be seen stopped."""

CHECK: Final = 0.1
"""Seconds between two looks at the leases."""

LATE: Final = 0.4
"""A look that comes this much too late makes the watcher doubt itself; with it and a beat's period no
machine comes near :data:`SHORTEST`."""

ECHO: Final = 1.0
"""Seconds that the watcher's message to itself may take; beyond this, others may have lost the bus, too."""

FRESH: Final = 2.0
"""Seconds after a reconnect, or after the bus stood still, in which machines may be on their way back."""

MEMORY: Final = 1 / 32
"""Weight of a new interval in the running mean and variance."""

_SIGMAS: Final = NormalDist().inv_cdf(1.0 - 10.0**-PHI)


@dataclass(slots=True)
class Lease:
    """What is known of one life's heartbeats; times in seconds of the watcher's clock."""

    incarnation: str
    last: float
    sequence: int = -1
    mean: float = PERIOD
    variance: float = (PERIOD / 4) ** 2
    expired_at: float | None = None
    stopped: dict[int, float] = field(default_factory=dict)
    stalled: set[int] = field(default_factory=set)

    def limit(self, shortest: float, longest: float) -> float:
        """The silence that this machine is given."""
        return min(max(self.mean + _SIGMAS * math.sqrt(self.variance), shortest), longest)


class LeaseBook:
    """All leases; every method is told the time and returns what there is to say.

    Args:
        shortest: lower end of the limit, seconds.
        longest: upper end of the limit, seconds.
        stall: seconds that a rank process may be seen stopped.
    """

    def __init__(self, shortest: float = SHORTEST, longest: float = LONGEST, stall: float = STALL) -> None:
        self.shortest = shortest
        self.longest = longest
        self.stall = stall
        self._leases: dict[str, Lease] = {}
        self._ended: set[tuple[str, str]] = set()
        self._checked: float | None = None

    def __contains__(self, machine: str) -> bool:
        return machine in self._leases

    def lease(self, machine: str) -> Lease:
        """The lease of a watched machine.

        Raises:
            KeyError: it is not watched.
        """
        return self._leases[machine]

    def watch(self, machine: str, incarnation: str, now: float) -> None:
        """Begin to expect heartbeats of a life."""
        known = self._leases.get(machine)
        if (machine, incarnation) in self._ended or (known is not None and known.incarnation == incarnation):
            return
        self._leases[machine] = Lease(incarnation, now)

    def forget(self, machine: str, incarnation: str) -> None:
        """Expect nothing more of a life."""
        self._ended.add((machine, incarnation))
        known = self._leases.get(machine)
        if known is not None and known.incarnation == incarnation:
            del self._leases[machine]

    def beat(self, beat: Heartbeat, now: float) -> list[Event]:
        """Take a heartbeat in.  One of another life, or of a machine that nobody knows, is nothing."""
        lease = self._leases.get(beat.machine)
        if lease is None or lease.incarnation != beat.incarnation or beat.sequence <= lease.sequence:
            return []
        silence = now - lease.last
        said: list[Event] = []
        if lease.expired_at is not None:
            since = now - lease.expired_at
            said.append(
                LeaseReturned(
                    machine=beat.machine, incarnation=beat.incarnation, silent_seconds=max(0.0, since)
                )
            )
            lease.expired_at = None
        elif lease.sequence >= 0 and beat.sequence == lease.sequence + 1:
            # Lost beats say nothing about how regular a machine is, so only neighbours count.
            difference = silence - lease.mean
            lease.mean += MEMORY * difference
            lease.variance = (1 - MEMORY) * (lease.variance + MEMORY * difference * difference)
        lease.last, lease.sequence = now, beat.sequence
        return said + self._look_at_ranks(lease, beat, now)

    def _look_at_ranks(self, lease: Lease, beat: Heartbeat, now: float) -> list[Event]:
        said: list[Event] = []
        for slot, state in enumerate(beat.ranks):
            if state != "stopped":
                lease.stopped.pop(slot, None)
                lease.stalled.discard(slot)
                continue
            since = lease.stopped.setdefault(slot, now)
            if now - since > self.stall and slot not in lease.stalled:
                lease.stalled.add(slot)
                said.append(
                    LeaseStalled(machine=beat.machine, incarnation=beat.incarnation, slot=slot, state=state)
                )
        return said

    def check(self, now: float, *, blind: bool = False) -> list[Event]:
        """Look for expired leases.  To be called every :data:`CHECK` seconds.

        Args:
            now: the watcher's clock, seconds.
            blind: beats could not be heard just now (the bus is away, stands still, or is hardly back).
        """
        before, self._checked = self._checked, now
        late = before is not None and now - before > CHECK + LATE
        if blind or late:
            self.excuse(now)
            return []
        said: list[Event] = []
        for machine, lease in self._leases.items():
            limit = lease.limit(self.shortest, self.longest)
            if lease.expired_at is None and now - lease.last > limit:
                lease.expired_at = lease.last
                said.append(
                    LeaseExpired(
                        machine=machine,
                        incarnation=lease.incarnation,
                        silent_seconds=now - lease.last,
                        limit_seconds=limit,
                    )
                )
        return said

    def excuse(self, now: float) -> None:
        """Blame nobody for the time until now."""
        for lease in self._leases.values():
            if lease.expired_at is None:
                lease.last = max(lease.last, now)
            lease.stopped = dict.fromkeys(lease.stopped, now)


class LeaseDriver:
    """Feeds a book from a bus and tells the shell what it says."""

    SAYS: ClassVar[frozenset[type[Event]]] = frozenset({LeaseExpired, LeaseReturned, LeaseStalled})

    def __init__(self, book: LeaseBook | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.book = book if book is not None else LeaseBook()
        self._clock = clock

    def observe(self, envelope: Envelope) -> None:
        """Keep the list of watched machines."""
        match envelope.event:
            case MachineJoined(machine=machine, incarnation=incarnation):
                self.book.watch(machine, incarnation, self._clock())
            case MachineLeft(machine=machine, incarnation=incarnation):
                self.book.forget(machine, incarnation)
            case MachineFailed(machine=machine, incarnation=incarnation):
                self.book.forget(machine, incarnation)
            case _:
                pass

    async def run(self, bus: Bus, tell: Callable[[Event], None]) -> None:
        """Watch until cancelled."""

        def heard(envelope: Envelope) -> None:
            if isinstance(envelope.event, Heartbeat):
                for event in self.book.beat(envelope.event, self._clock()):
                    tell(event)

        await bus.listen(["sample.beat"], heard)
        self.book.excuse(self._clock())
        while True:
            await asyncio.sleep(CHECK)
            carried = await bus.echo(ECHO)
            # After a stop of this process the beats that waited in the socket come first.
            await asyncio.sleep(0)
            for event in self.book.check(self._clock(), blind=not carried or bus.connected_for < FRESH):
                tell(event)
