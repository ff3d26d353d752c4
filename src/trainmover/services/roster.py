"""The roster: what several cores know of the cluster, folded from the log in one way.

What lives here: facts, written down as they come, and the questions about them that more than one
core asks.  What never lives here: decisions.

Facts may come late, twice or out of order, so each is kept in a form in which that does no harm: a
set that only grows (``gone``), a number that only grows (``generation``, ``epoch``), or a dict
whose entries are set once.  Three words:

- A *life* is one machine program from start to end: (machine, incarnation).  A machine that comes
  back is another life under the same name.
- A *seat* is a position of the layout.  Machines come and go, seats stay; so an incident is about
  a seat, and who sits on it is looked up when it matters.
- A *member* is a machine on a seat: launched there, or put there by a committed switch.

What is asked after every event must not cost a walk over all machines, or a large job's start would
take the square of its size.  So the roster keeps the answers beside the facts: who is idle, which
members are lost; and it names the machines that anything changed about (``take_touched``), so that a
core looks at those alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainmover.events.catalogue import (
    Event,
    JobCompleted,
    JobFailed,
    JobSubmitted,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    RecordingReady,
    StandbyAssigned,
    SwitchCommitted,
    TrainingStarted,
)

Life = tuple[str, str]
"""Machine and incarnation."""


class Roster:
    """The cluster as the log tells it.

    Attributes:
        job: the job's description, once it was submitted.
        over: the job completed or failed; nothing is decided any more.
        joined: latest life of each machine name, in order of joining.
        gone: lives that ended or were declared dead.
        generation: latest start from nothing; 0 before the first.
        seats: machine on each position, as far as known, in this generation.
        epoch: last committed epoch, of whatever generation.
        settled: a switch of this generation was committed.
        unseated: lives that a committed switch took off their seats.
    """

    def __init__(self) -> None:
        self.job: JobSubmitted | None = None
        self.over = False
        self.joined: dict[str, MachineJoined] = {}
        self.gone: set[Life] = set()
        self.generation = 0
        self.seats: dict[int, str] = {}
        self.epoch = 0
        self.settled = False
        self.unseated: set[Life] = set()
        self._lives: dict[str, str] = {}
        self._known: set[Life] = set()
        self._seat_of: dict[str, int] = {}
        self._recorders: dict[str, int] = {}
        self._started: set[int] = set()
        self._recordings: dict[tuple[int, str], dict[int, str]] = {}
        self._arrivals: dict[str, int] = {}
        self._held: dict[str, list[int]] = {}
        self._members: tuple[str, ...] | None = None
        self._idle: dict[str, MachineJoined] = {}
        self._idle_in_order: list[MachineJoined] | None = None
        self._lost: set[str] = set()
        self._touched: set[str] = set()

    # -- facts -----------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Write down what an event says; events that say nothing of this kind change nothing."""
        match event:
            case JobSubmitted():
                if self.job is None:
                    self.job = event
                    self._touch(*self.joined, *self._held)
            case JobCompleted() | JobFailed():
                self.over = True
            case MachineJoined():
                self._note_joined(event)
            case MachineLeft() | MachineFailed():
                self.gone.add((event.machine, event.incarnation))
                self._touch(event.machine)
            case MachineLaunch():
                self._note_launch(event)
            case StandbyAssigned():
                self._lives[event.joiner] = event.joiner_incarnation
                if event.leaver in self._seat_of:
                    self._seat_of[event.joiner] = self._seat_of[event.leaver]
                self._touch(event.joiner)
            case SwitchCommitted():
                self._note_committed(event)
            case TrainingStarted():
                self._started.add(event.generation)
            case RecordingReady():
                self._recordings.setdefault((event.generation, event.machine), {})[event.slot] = event.path

    def _note_joined(self, event: MachineJoined) -> None:
        life = (event.machine, event.incarnation)
        if life not in self._known:
            self._known.add(life)
            self.joined.pop(event.machine, None)
            self.joined[event.machine] = event
            self._arrivals[event.machine] = len(self._known)
            self._touch(event.machine)

    def _note_launch(self, event: MachineLaunch) -> None:
        if event.generation < self.generation:
            return
        self._enter(event.generation)
        if event.record:
            self._recorders[event.machine] = event.position
        if self.settled:
            return
        self._lives[event.machine] = event.incarnation
        self._seat_of[event.machine] = event.position
        self._touch(event.machine, *self._seat(event.position, event.machine))

    def _enter(self, generation: int) -> None:
        if generation > self.generation:
            self.generation = generation
            self.settled = False
            known = {*self._held, *self._lives, *self._seat_of}
            for facts in (self.seats, self._held, self._lives, self._seat_of, self._recorders):
                facts.clear()
            self._members = None
            self._touch(*known)

    def _note_committed(self, event: SwitchCommitted) -> None:
        if event.epoch <= self.epoch:
            return
        self.epoch = event.epoch
        if event.generation:
            self._enter(event.generation)
            if event.generation < self.generation:
                return
        self.settled = True
        for machine in self._held.keys() - set(event.machines):
            if (life := self.life(machine)) is not None:
                self.unseated.add((machine, life))
        changed: set[str] = set()
        for seat in [seat for seat in self.seats if seat >= len(event.machines)]:
            changed.update(self._seat(seat, None))
        for seat, machine in enumerate(event.machines):
            changed.update(self._seat(seat, machine))
            if self._seat_of.get(machine) != seat:
                self._seat_of[machine] = seat
                changed.add(machine)
        lives = {m: life for m in event.machines if (life := self.life(m)) is not None}
        changed.update(self._lives.keys() - lives.keys())
        self._lives = lives
        self._touch(*changed)

    def _seat(self, seat: int, machine: str | None) -> Iterator[str]:
        """Put a machine on a seat, or nobody; the machines for which that changes something."""
        before = self.seats.get(seat)
        if before == machine:
            return
        self._members = None
        if before is not None:
            del self.seats[seat]
            self._held[before].remove(seat)
            if not self._held[before]:
                del self._held[before]
            yield before
        if machine is not None:
            self.seats[seat] = machine
            self._held.setdefault(machine, []).append(seat)
            yield machine

    def _touch(self, *machines: str) -> None:
        """Something changed about these machines: bring the answers about them up to date."""
        self._touched.update(machines)
        for machine in machines:
            joined, held = self.joined.get(machine), machine in self._held
            fits = joined is not None and not held and joined.slots >= self.slots
            if joined is not None and fits and (machine, joined.incarnation) not in self.gone:
                if self._idle.get(machine) is not joined:
                    self._idle[machine], self._idle_in_order = joined, None
            elif self._idle.pop(machine, None) is not None:
                self._idle_in_order = None
            if held and self.dead(machine):
                self._lost.add(machine)
            else:
                self._lost.discard(machine)

    def take_touched(self) -> set[str]:
        """Machines about which anything changed since this was last asked: life, end or seat."""
        touched, self._touched = self._touched, set()
        return touched

    # -- questions -------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of seats; 0 before the job is known."""
        return self.job.machines if self.job is not None else 0

    @property
    def slots(self) -> int:
        """Ranks per machine."""
        return self.job.ranks_per_machine if self.job is not None else 1

    @property
    def members(self) -> tuple[str, ...]:
        """Machines on the seats, by position."""
        if self._members is None:
            self._members = tuple(self.seats[seat] for seat in sorted(self.seats))
        return self._members

    @property
    def full(self) -> bool:
        """Every seat of this generation is known."""
        return self.size > 0 and len(self.seats) == self.size

    @property
    def started(self) -> bool:
        """A step of this generation was committed."""
        return self.generation in self._started

    @property
    def replaceable(self) -> bool:
        """There is something to keep, and a recording from which a spare can be made warm.

        Before that a failure starts everything again: with a step or two lost and no spare that
        could ever get warm, there is nothing better to do.
        """
        return self.started and self.recording() is not None

    def life(self, machine: str) -> str | None:
        """Incarnation of a member or joiner; of another machine, the latest that joined."""
        if machine in self._lives:
            return self._lives[machine]
        joined = self.joined.get(machine)
        return joined.incarnation if joined is not None else None

    def dead(self, machine: str) -> bool:
        """This machine's life, as the layout means it, has ended."""
        life = self.life(machine)
        return life is not None and (machine, life) in self.gone

    def lost(self) -> list[tuple[int, str]]:
        """Seats whose machine is dead, and that machine, by seat."""
        return sorted((seat, machine) for machine in self._lost for seat in self._held[machine])

    def seated(self, machine: str) -> bool:
        """This machine sits on a seat."""
        return machine in self._held

    def seats_held(self, machine: str) -> Sequence[int]:
        """The seats that a machine sits on now."""
        return self._held.get(machine, ())

    def is_member(self, machine: str, incarnation: str) -> bool:
        """This life sits on a seat."""
        seat = self._seat_of.get(machine, -1)
        return self.seats.get(seat) == machine and self.life(machine) == incarnation

    def seat_of(self, machine: str) -> int | None:
        """The seat that a machine has, had, or is to take in this generation."""
        return self._seat_of.get(machine)

    def idle(self) -> Sequence[MachineJoined]:
        """Living machines with enough slots that sit on no seat, in order of joining.

        A machine that came back under the name of one that still has a seat is left out: the
        layout could not tell the two apart.
        """
        if self._idle_in_order is None:
            self._idle_in_order = sorted(self._idle.values(), key=lambda j: self._arrivals[j.machine])
        return self._idle_in_order

    @property
    def idle_count(self) -> int:
        """Number of idle machines."""
        return len(self._idle)

    def is_idle(self, machine: str, incarnation: str) -> bool:
        """This life is one of the idle machines."""
        joined = self._idle.get(machine)
        return joined is not None and joined.incarnation == incarnation

    def recording(self) -> tuple[int, tuple[str, ...]] | None:
        """Position and files (by slot) of the recording to make spares warm with, if one is whole.

        Position 0 comes last: what only rank 0 does (logs, checkpoints) is no good model for a
        spare.  It is used when it is alone, or when the others can no longer be finished.
        """
        found = {
            position: tuple(files[slot] for slot in sorted(files))
            for machine, position in self._recorders.items()
            if len(files := self._recordings.get((self.generation, machine), {})) >= self.slots
        }
        others = [position for position in found if position > 0]
        if others:
            return min(others), found[min(others)]
        awaited = any(position > 0 and not self.dead(m) for m, position in self._recorders.items())
        return None if awaited or 0 not in found else (0, found[0])


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which ``m2`` comes before ``m10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
