"""A simulated bus: the promises of ``events.bus`` in virtual time, and what may go wrong with them.

What lives here: :class:`Exchange`, the server and its log, :class:`Outlet`, one program's way to say
things, and :class:`Crowd`, the machines that listen.  What never lives here: the port that a shell is
given (``port``), when something goes wrong (``faults``).

What the real bus does (see ``events.publisher`` and ``events.nats_feed``), and so does this one:

- A message goes to everybody who listens at once, and into the log beside that.  Between a sender
  and a listener order is kept; between senders it is not.
- While the log *stalls*, what is said is heard but not stored; its sender repeats it until it is.  A
  sender that dies before takes what was not stored with it, unless somebody who heard it stores it.
- In an *outage* nothing is heard.  What was said waits with its sender; what was missed is read
  from the log.
- A server that *stands still* (its process is stopped) keeps its connections and takes everything, and
  brings nothing until it goes on: then all of it at once, also from who died meanwhile.  Nobody is told.  Who
  asks himself (``events.bus.Bus.echo``) finds out at once, others when their connection is given up.
- A live delivery may be lost, and come twice.  A lost one is found in the log at the next sweep.
- Samples (heartbeats) are sent once and may be lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Protocol

from trainmover.events import catalogue as say
from trainmover.events.bus import Handler, ProbeAnswer
from trainmover.events.codec import encode_message
from trainmover.events.envelope import Envelope
from trainmover.simulator.clock import Process, VirtualLoop
from trainmover.simulator.setup import Setup

JOB = "simulated"

STORE_SECONDS = 0.002
"""What storing takes when all is well."""

AGAIN = (1.0, 2.0, 4.0, 5.0)
"""Seconds after which a message that was not stored is sent again."""

SWEEP_SECONDS = 10.0
"""A feed looks into the log this often."""

FRESH_SECONDS = 2.0
"""A connection younger than this cannot tell an absent machine from a silent one."""

STILL_SECONDS = 1.0
"""Who asks himself counts a bus that stood still for longer than this as one that was away."""

LOST_SECONDS = 3.0
"""After this, clients give up a connection on which nothing comes."""

INTEREST_SECONDS = 3.0
"""After this the server drops a client that it hears nothing of: it is absent then, no more silent."""


class Listener(Protocol):
    """Somebody who hears journalled events: a feed, or a machine."""

    def wants(self, envelope: Envelope) -> bool:
        """Whether it would hear this; of a machine the exchange knows that (see :class:`Crowd`)."""
        ...

    def arrive(self, envelope: Envelope) -> None:
        """A live delivery."""
        ...

    def fill(self) -> None:
        """Read from the log what was missed."""
        ...


class Probed(Protocol):
    """A machine as a probe finds it."""

    def presence(self, now: float) -> ProbeAnswer:
        """What a probe finds."""
        ...


class Outlet:
    """One program's way to the bus.

    Attributes:
        process: whose it is.
        alive: False: nothing more gets out.
        cut: no connection, in neither direction.
    """

    def __init__(self, exchange: Exchange, process: Process) -> None:
        self.process = process
        self.alive = True
        self.cut = False
        self._exchange = exchange
        self._waiting: dict[str, Envelope] = {}

    def publish(self, envelope: Envelope) -> None:
        """Say something."""
        exchange = self._exchange
        if not self.alive:
            return
        exchange.on_said(envelope)
        if self.cut or exchange.out:
            self._waiting[envelope.id] = envelope
            return
        if exchange.still_since is not None:
            exchange.hold(self, envelope)
            self._waiting[envelope.id] = envelope
            self._again(envelope, 0)
            return
        exchange.deliver(self, envelope)
        if exchange.stalled:
            self._waiting[envelope.id] = envelope
            self._again(envelope, 0)
        else:
            exchange.store_soon(envelope)

    def _again(self, envelope: Envelope, times: int) -> None:
        pause = AGAIN[min(times, len(AGAIN) - 1)]
        self._exchange.loop.later(pause, self._retry, envelope, times + 1)

    def _retry(self, envelope: Envelope, times: int) -> None:
        if not self.alive or envelope.id not in self._waiting or self.process.frozen:
            if self.alive and envelope.id in self._waiting:
                self._again(envelope, times)
            return
        if self.cut or self._exchange.out:
            return
        if self._exchange.still_since is not None:
            self._again(envelope, times)
            return
        self._exchange.deliver(self, envelope)
        if self._exchange.stalled:
            self._again(envelope, times)
        else:
            del self._waiting[envelope.id]
            self._exchange.store_soon(envelope)

    def back(self) -> None:
        """The connection stands again: all that is not known to be stored is sent again, in order."""
        if not self.alive or self.cut or self._exchange.out:
            return
        waiting, self._waiting = self._waiting, {}
        for envelope in waiting.values():
            if self._exchange.still_since is not None:
                self._exchange.hold(self, envelope)
                self._waiting[envelope.id] = envelope
                self._again(envelope, 0)
                continue
            self._exchange.deliver(self, envelope)
            if self._exchange.stalled:
                self._waiting[envelope.id] = envelope
                self._again(envelope, 0)
            else:
                self._exchange.store_soon(envelope)

    @property
    def unstored(self) -> tuple[str, ...]:
        """Ids of what was said and is not stored; copies of what others have said do not count."""
        return tuple(name for name, e in self._waiting.items() if e.type != say.JournalCopy.type)


ABOUT_ONE = (say.MachineJoined, say.MachineLaunch, say.StandbyWarm)
"""Events that only the machine that they name does anything about; ``standby.assigned`` names a joiner."""

ABOUT_ALL = (
    say.JobSubmitted,
    say.JobCompleted,
    say.JobFailed,
    say.MachineFailed,
    say.RolesFound,
    say.SwitchPrepare,
    say.SwitchAborted,
    say.SwitchCommitted,
)
"""Events that every machine looks at."""


class Crowd:
    """The machines: many, and each is told only of what it would do something about.

    A walk over all machines for every event would cost the square of their number.
    """

    def __init__(self) -> None:
        self._here: dict[str, list[Listener]] = {}
        self._about_all: list[tuple[int, Envelope]] = []
        self._about_one: dict[str, list[tuple[int, Envelope]]] = {}

    def enter(self, name: str, listener: Listener) -> None:
        """A machine listens from now on."""
        self._here.setdefault(name, []).append(listener)

    def leave(self, name: str, listener: Listener) -> None:
        """A machine is gone."""
        if listener in self._here.get(name, []):
            self._here[name].remove(listener)

    def everybody(self) -> list[Listener]:
        """All machines that listen."""
        return [listener for listeners in self._here.values() for listener in listeners]

    def hearers(self, event: say.Event) -> list[Listener]:
        """Machines that look at an event."""
        name = _named(event)
        if name is not None:
            return list(self._here.get(name, ()))
        return self.everybody() if isinstance(event, ABOUT_ALL) else []

    def stored(self, place: int, envelope: Envelope) -> None:
        """An envelope is in the log at this place."""
        name = _named(envelope.event)
        if name is not None:
            self._about_one.setdefault(name, []).append((place, envelope))
        elif isinstance(envelope.event, ABOUT_ALL):
            self._about_all.append((place, envelope))

    def since(self, name: str, place: int) -> list[tuple[int, Envelope]]:
        """What a machine of this name would look at in the log, from a place on."""
        found: list[tuple[int, Envelope]] = []
        for envelopes in (self._about_all, self._about_one.get(name, [])):
            found += envelopes[bisect_left(envelopes, place, key=itemgetter(0)) :]
        return sorted(found, key=itemgetter(0))


def _named(event: say.Event) -> str | None:
    """The one machine that an event is for."""
    if isinstance(event, ABOUT_ONE):
        return event.machine
    return event.joiner if isinstance(event, say.StandbyAssigned) else None


class Exchange:
    """The server of one job, its log, and who is connected.

    Attributes:
        log: the envelopes that are stored, in order, each id once.
        stalled: the log takes nothing.
        out: the server is away.
        still_since: since when the server stands still; None: it does not.
        since: when it was last back, or went on.
        on_said: told of every envelope that a living program publishes, before anybody hears it.
        clocks: by name, the seconds by which a machine's clock is wrong, in all its lives.
    """

    def __init__(self, loop: VirtualLoop, setup: Setup) -> None:
        self.loop = loop
        self.log: list[Envelope] = []
        self.stalled = self.out = False
        self.still_since: float | None = None
        self.since = self.moving_since = -FRESH_SECONDS
        self.on_said: Callable[[Envelope], None] = lambda _: None
        self.machines: dict[str, Probed] = {}
        self.clocks: dict[str, float] = {}
        self.outlets: list[Outlet] = []
        self.listeners: list[Listener] = []
        self.crowd = Crowd()
        self.slow = 1.0
        self._chance = setup.random("bus")
        self._setup = setup
        self._ids: set[str] = set()
        self._copied: set[str] = set()
        self._samplers: list[tuple[Outlet, Handler]] = []
        self._held: list[tuple[Outlet, Envelope]] = []
        self._held_samples: list[Sequence[Envelope]] = []
        self._last: dict[tuple[int, int], float] = {}
        self._sizes: set[str] = set()
        loop.later(SWEEP_SECONDS, self._sweep)

    def outlet(self, process: Process) -> Outlet:
        """A new program's way to the bus."""
        found = Outlet(self, process)
        self.outlets.append(found)
        return found

    # -- what is said ------------------------------------------------------------------------------

    def deliver(self, sender: Outlet, envelope: Envelope) -> None:
        """Bring it to everybody who listens now, each in its own time."""
        if envelope.type not in self._sizes:
            self._sizes.add(envelope.type)
            encode_message(envelope)
        setup, chance = self._setup, self._chance
        wanting = [listener for listener in self.listeners if listener.wants(envelope)]
        for listener in (*wanting, *self.crowd.hearers(envelope.event)):
            if setup.loss and chance.random() < setup.loss:
                self.loop.later(chance.uniform(1.0, SWEEP_SECONDS), listener.fill)
                continue
            delay = chance.random() * setup.latency * self.slow
            if chance.random() < 0.01:
                delay += chance.random() * 0.3
            key = (id(sender), id(listener))
            at = max(self.loop.now + delay, self._last.get(key, 0.0))
            self._last[key] = at
            self.loop.at(at, listener.arrive, envelope)

    def hold(self, sender: Outlet, envelope: Envelope) -> None:
        """A server that stands still has it, and does nothing with it."""
        self._held.append((sender, envelope))

    def store_soon(self, envelope: Envelope) -> None:
        """It is on its way into the log, whatever becomes of its sender."""
        self.loop.later(STORE_SECONDS * self._chance.random(), self._store, envelope)

    def _store(self, envelope: Envelope) -> None:
        if envelope.id not in self._ids:
            self._ids.add(envelope.id)
            if isinstance(envelope.event, say.JournalCopy):
                self._copied.add(envelope.event.about)
            self.crowd.stored(len(self.log), envelope)
            self.log.append(envelope)

    def has(self, name: str) -> bool:
        """The log has an event with this id, itself or in a copy."""
        return name in self._ids or name in self._copied

    def sample(self, envelopes: Sequence[Envelope]) -> None:
        """Samples that arrive together."""
        if self.still_since is not None:
            self._held_samples.append([replace(item, event=item.event.model_copy()) for item in envelopes])
            return
        for outlet, handler in self._samplers:
            if outlet.alive and not self.out:
                copies = envelopes
                if outlet.process.frozen:  # it reads them later, when they say other things
                    copies = [replace(item, event=item.event.model_copy()) for item in envelopes]
                self.loop.call_soon(_hand, handler, copies, context=self.loop.within(outlet.process))

    # -- who listens -------------------------------------------------------------------------------

    def forget(self, listener: Listener) -> None:
        """It is gone."""
        if listener in self.listeners:
            self.listeners.remove(listener)

    def add_sampler(self, outlet: Outlet, handler: Handler) -> None:
        """A handler of heartbeats, of the program that has this outlet."""
        self._samplers.append((outlet, handler))

    def drop_samplers(self, outlet: Outlet) -> None:
        """Their program is gone."""
        self._samplers = [(other, handler) for other, handler in self._samplers if other is not outlet]

    def _sweep(self) -> None:
        self.loop.later(SWEEP_SECONDS, self._sweep)
        if not self.out and self.still_since is None:
            for listener in (*self.listeners, *self.crowd.everybody()):
                listener.fill()

    # -- what goes wrong ---------------------------------------------------------------------------

    def go_out(self) -> None:
        """The server is away."""
        self.out = True

    def come_back(self) -> None:
        """The server is back: senders repeat, listeners read what they missed."""
        self.out, self.since = False, self.loop.now
        for outlet in tuple(self.outlets):
            self.loop.later(self._chance.random() * 0.2, outlet.back)
        for listener in (*self.listeners, *self.crowd.everybody()):
            self.loop.later(0.2 + self._chance.random() * 0.3, listener.fill)

    def stand_still(self) -> None:
        """The server stops, and nobody is told."""
        if self.still_since is None:
            self.still_since = self.loop.now

    def go_on(self) -> None:
        """The server goes on with all that it has."""
        if self.still_since is None:
            return
        seconds = self.loop.now - self.still_since
        self.still_since, self.moving_since = None, self.loop.now
        held, self._held = self._held, []
        for sender, envelope in held:
            self.deliver(sender, envelope)
            self.store_soon(envelope)
        samples, self._held_samples = self._held_samples, []
        for envelopes in samples:
            self.sample(envelopes)
        if seconds > STILL_SECONDS:
            self.since = self.loop.now
        if seconds > LOST_SECONDS:
            self.come_back()

    def ask(self, machine: str) -> ProbeAnswer:
        """What a probe finds."""
        found = self.machines.get(machine)
        answer: ProbeAnswer = "absent" if found is None else found.presence(self.loop.now)
        young = self.loop.now - self.since < FRESH_SECONDS
        return "silent" if answer == "absent" and young else answer


def _hand(handler: Handler, envelopes: Sequence[Envelope]) -> None:
    for envelope in envelopes:
        handler(envelope)
