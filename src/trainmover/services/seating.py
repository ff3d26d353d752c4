"""The seating: which lives there are, and who sits on which seat.

What lives here: machines that come and go, starts from nothing, and committed switches, folded into the
answers that every core asks for: who is a member, who is idle, which members are lost.  What never lives
here: what a machine's ranks are or have (``roster``), decisions.

Three words:

- A *life* is one machine program from start to end: (machine, incarnation).  A machine that comes
  back is another life under the same name.
- A *seat* is a position of the layout.  Machines come and go, seats stay; so an incident is about
  a seat, and who sits on it is looked up when it matters.
- A *member* is a machine on a seat: launched there, or put there by a committed switch.  A seat may be
  *vacant*: a switch has left it empty, until a later one fills it.

What is asked after every event must not cost a walk over all machines, or a large job's start would
take the square of its size.  So the answers are kept beside the facts, and the machines that anything
changed about are named (``take_touched``), so that a core looks at those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar

from trainmover.events.catalogue import (
    Event,
    JobSubmitted,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    StandbyAssigned,
    SwitchCommitted,
)
from trainmover.topology import VACANT

Life = tuple[str, str]
"""Machine and incarnation."""


class Seating:
    """Machines and seats as the log tells of them; see the module.

    Attributes:
        job: the job's description, once it was submitted.
        joined: latest life of each machine name, in order of joining.
        gone: lives that ended or were declared dead.
        generation: latest start from nothing; 0 before the first.
        seats: machine on each position, as far as known, in this generation; ``VACANT`` where nobody sits.
        epoch: last committed epoch, of whatever generation.
        settled: a switch of this generation was committed.
    """

    def __init__(self) -> None:
        self.job: JobSubmitted | None = None
        self.joined: dict[str, MachineJoined] = {}
        self.gone: set[Life] = set()
        self.generation = 0
        self.seats: dict[int, str] = {}
        self.epoch = 0
        self.settled = False
        self._unseated: set[Life] = set()
        self._released: set[Life] = set()
        self._lives: dict[str, str] = {}
        self._known: set[Life] = set()
        self._seat_of: dict[str, int] = {}
        self._arrivals: dict[str, int] = {}
        self._numbers = count()
        self._comers: dict[str, list[MachineJoined]] = {}
        self._held: dict[str, list[int]] = {}
        self._vacated: dict[int, int] = {}
        self._members: tuple[str, ...] | None = None
        self._idle: dict[str, MachineJoined] = {}
        self._idle_in_order: list[MachineJoined] | None = None
        self._lost: set[str] = set()
        self._touched: set[str] = set()

    # -- facts -----------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Write down what an event says; events that say nothing of this kind change nothing."""
        note = self.NOTES.get(type(event))
        if note is not None:
            note(self, event)

    def _note_submitted(self, event: JobSubmitted) -> None:
        if self.job is None:
            self.job = event
            self._touch(*self.joined, *self._held)

    def _note_joined(self, event: MachineJoined) -> None:
        life = (event.machine, event.incarnation)
        if life not in self._known:
            self._known.add(life)
            self._comers.setdefault(event.machine, []).append(event)
            self._choose_life(event.machine)
            self._touch(event.machine)

    def _choose_life(self, machine: str) -> None:
        """Of the lives under one name the latest that was heard, but none that is over while one is not.

        The arrival of an earlier life may be heard after that of a later one.
        """
        comers = self._comers.get(machine, [])
        living = [comer for comer in comers if (machine, comer.incarnation) not in self.gone]
        if not comers:
            return
        event = (living or comers)[-1]
        if self.joined.get(machine) is not event:
            self.joined.pop(machine, None)
            self.joined[machine] = event
            self._arrivals[machine] = next(self._numbers)

    def _note_end(self, event: MachineLeft | MachineFailed) -> None:
        self.gone.add((event.machine, event.incarnation))
        self._choose_life(event.machine)
        self._touch(event.machine)

    def _note_launch(self, event: MachineLaunch) -> None:
        if event.generation < self.generation:
            return
        self._enter(event.generation)
        if self.settled:
            return
        self._lives[event.machine] = event.incarnation
        self._seat_of[event.machine] = event.position
        self._touch(event.machine, *self._seat(event.position, event.machine))

    def _note_assigned(self, event: StandbyAssigned) -> None:
        self._lives[event.joiner] = event.joiner_incarnation
        if event.position is not None:
            self._seat_of[event.joiner] = event.position
        elif event.leaver in self._seat_of:
            self._seat_of[event.joiner] = self._seat_of[event.leaver]
        self._touch(event.joiner)

    def _enter(self, generation: int) -> None:
        if generation > self.generation:
            self.generation = generation
            self.settled = False
            known = {*self._held, *self._lives, *self._seat_of}
            for facts in (self.seats, self._held, self._lives, self._seat_of):
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
        for machine in self._held.keys() - {*event.machines, VACANT}:
            if (life := self.life(machine)) is not None:
                self._unseated.add((machine, life))
                self._released.add((machine, life))
        changed: set[str] = set()
        for seat in [seat for seat in self.seats if seat >= len(event.machines)]:
            changed.update(self._seat(seat, None))
        for seat, machine in enumerate(event.machines):
            if machine == VACANT != self.seats.get(seat):
                self._vacated[seat] = event.epoch
            changed.update(self._seat(seat, machine))
            if machine != VACANT and self._seat_of.get(machine) != seat:
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
            if joined is not None and fits and not self.is_over(machine, joined.incarnation):
                if self._idle.get(machine) is not joined:
                    self._idle[machine], self._idle_in_order = joined, None
            elif self._idle.pop(machine, None) is not None:
                self._idle_in_order = None
            if held and self.dead(machine):
                self._lost.add(machine)
            else:
                self._lost.discard(machine)

    NOTES: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        JobSubmitted: _note_submitted,
        MachineJoined: _note_joined,
        MachineLeft: _note_end,
        MachineFailed: _note_end,
        MachineLaunch: _note_launch,
        StandbyAssigned: _note_assigned,
        SwitchCommitted: _note_committed,
    }

    def take_touched(self) -> set[str]:
        """Machines about which anything changed since this was last asked: life, end or seat."""
        touched, self._touched = self._touched, set()
        return touched

    def take_unseated(self) -> list[Life]:
        """Lives that committed switches took off their seats since this was last asked."""
        unseated, self._unseated = self._unseated, set()
        return sorted(unseated)

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
        """Machines on the seats, by position; ``VACANT`` where nobody sits."""
        if self._members is None:
            self._members = tuple(self.seats[seat] for seat in sorted(self.seats))
        return self._members

    @property
    def vacant(self) -> Sequence[int]:
        """Seats of this generation that nobody has any more."""
        return self._held.get(VACANT, ())

    def vacated_in(self, seat: int) -> int:
        """The epoch that vacated a vacant seat; 0 when it is not known."""
        return self._vacated.get(seat, 0)

    @property
    def taken(self) -> int:
        """Number of seats that somebody has."""
        return self.size - len(self.vacant)

    def next_taken(self, seat: int) -> int:
        """The next seat that somebody has: what belongs to a seat alone is kept there."""
        vacant, size = self.vacant, max(1, self.size)
        found = (seat + 1) % size
        while found in vacant and found != seat:
            found = (found + 1) % size
        return found

    @property
    def full(self) -> bool:
        """Every seat of this generation is known."""
        return self.size > 0 and len(self.seats) == self.size

    def life(self, machine: str) -> str | None:
        """Incarnation of a member or joiner; of another machine, the latest that joined."""
        if machine in self._lives:
            return self._lives[machine]
        joined = self.joined.get(machine)
        return joined.incarnation if joined is not None else None

    def is_over(self, machine: str, incarnation: str) -> bool:
        """This life has ended, or will: a machine that a switch took off its seat comes back as another."""
        return (machine, incarnation) in self.gone or (machine, incarnation) in self._released

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
