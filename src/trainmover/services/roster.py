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
- A *member* is a machine on a seat: launched there, or put there by a committed switch.  A seat may be
  *vacant*: a switch has left it empty, until a later one fills it.

What is asked after every event must not cost a walk over all machines, or a large job's start would
take the square of its size.  So the roster keeps the answers beside the facts: who is idle, which
members are lost; and it names the machines that anything changed about (``take_touched``), so that a
core looks at those alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Literal

from trainmover.events.catalogue import (
    CheckpointSaved,
    Event,
    JobCompleted,
    JobFailed,
    JobHeld,
    JobSubmitted,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    MachineRole,
    MirrorFailed,
    MirrorWhole,
    RankDescribed,
    RecordingFailed,
    RecordingReady,
    RolesFound,
    StandbyAssigned,
    SwitchCommitted,
    TrainingStarted,
)
from trainmover.services.described import Described
from trainmover.services.roles import seats_in
from trainmover.topology import VACANT

Life = tuple[str, str]
"""Machine and incarnation."""

Recorded = Literal["whole", "awaited", "failed", "lost"]
"""How far the recording of a role is: there, on its way, impossible, or lost with its machine."""


class Roster:
    """The cluster as the log tells it.

    Attributes:
        job: the job's description, once it was submitted.
        over: the job completed or failed; nothing is decided any more.
        joined: latest life of each machine name, in order of joining.
        gone: lives that ended or were declared dead.
        generation: latest start from nothing; 0 before the first.
        seats: machine on each position, as far as known, in this generation; ``VACANT`` where nobody sits.
        epoch: last committed epoch, of whatever generation.
        settled: a switch of this generation was committed.
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
        self._unseated: set[Life] = set()
        self._released: set[Life] = set()
        self._lives: dict[str, str] = {}
        self._known: set[Life] = set()
        self._seat_of: dict[str, int] = {}
        self._recorders: dict[int, Life] = {}
        self._started: set[int] = set()
        self._state_lost: set[int] = set()
        self._checkpoint = 0
        self._mirrored: dict[int, set[int]] = {}
        self._unmirrored: dict[int, dict[int, str]] = {}
        self._recordings: dict[tuple[int, str], dict[int, str]] = {}
        self._unrecorded: dict[tuple[int, str], str] = {}
        self._described: dict[int, Described] = {}
        self._roles: dict[int, RolesFound] = {}
        self._role_of: dict[int, MachineRole] | None = None
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
        match event:
            case JobSubmitted():
                if self.job is None:
                    self.job = event
                    self._touch(*self.joined, *self._held)
            case JobCompleted() | JobFailed():
                self.over = True
            case JobHeld():
                if event.lost:
                    self._state_lost.add(event.generation)
            case MirrorWhole():
                self._mirrored.setdefault(event.generation, set()).add(event.rank)
            case MirrorFailed():
                self._mirrored.setdefault(event.generation, set()).discard(event.rank)
                self._unmirrored.setdefault(event.generation, {})[event.rank] = event.reason
            case CheckpointSaved():
                self._checkpoint = max(self._checkpoint, event.step)
            case MachineJoined():
                self._note_joined(event)
            case MachineLeft() | MachineFailed():
                self.gone.add((event.machine, event.incarnation))
                self._choose_life(event.machine)
                self._touch(event.machine)
            case MachineLaunch():
                self._note_launch(event)
            case StandbyAssigned():
                self._lives[event.joiner] = event.joiner_incarnation
                if event.position is not None:
                    self._seat_of[event.joiner] = event.position
                elif event.leaver in self._seat_of:
                    self._seat_of[event.joiner] = self._seat_of[event.leaver]
                self._touch(event.joiner)
            case SwitchCommitted():
                self._note_committed(event)
            case TrainingStarted():
                self._started.add(event.generation)
            case RankDescribed():
                if event.generation >= self.generation:
                    self._described.setdefault(event.generation, Described()).note(event)
            case RolesFound():
                if event.generation >= self.generation and event.generation not in self._roles:
                    self._roles[event.generation] = event
                    self._role_of = None
                    self.role_of(0)  # the index is made now, and not in the middle of an incident
            case RecordingFailed():
                self._unrecorded.setdefault((event.generation, event.machine), event.reason)
            case RecordingReady():
                self._recordings.setdefault((event.generation, event.machine), {})[event.slot] = event.path

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

    def _note_launch(self, event: MachineLaunch) -> None:
        if event.generation < self.generation:
            return
        self._enter(event.generation)
        if event.record:
            self._recorders[event.position] = (event.machine, event.incarnation)
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
            self._members = self._role_of = None
            for older in [number for number in self._described if number < generation]:
                del self._described[older]
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

    @property
    def started(self) -> bool:
        """A step of this generation was committed."""
        return self.generation in self._started

    @property
    def checkpointed(self) -> bool:
        """There is a checkpoint that the job can go back to."""
        if self.job is None or self.job.state == "none":
            return False
        return self._checkpoint > 0 or self.job.resume

    @property
    def state_lost(self) -> bool:
        """A part of this generation's state is on no machine any more."""
        return self.generation in self._state_lost

    @property
    def replaceable(self) -> bool:
        """There is something to keep, and it is known what a spare must be able to do.

        Before that a failure starts everything again: with a step or two lost and no spare that
        could ever get warm, there is nothing better to do.  So it is until state that is to be mirrored is.
        """
        return self.started and self.generation in self._roles and not self.mirrors_awaited

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

    # -- roles ----------------------------------------------------------------------------------

    @property
    def described(self) -> Described:
        """What the ranks of this generation are."""
        return self._described.setdefault(self.generation, Described())

    @property
    def all_described(self) -> bool:
        """Every rank of this generation said what it is."""
        return self.described.whole(self.size * self.slots)

    @property
    def roles(self) -> tuple[MachineRole, ...]:
        """The machine roles of this generation; none before they are found."""
        found = self._roles.get(self.generation)
        return found.roles if found is not None else ()

    def role_of(self, seat: int) -> MachineRole | None:
        """The role of a seat; None before roles are found, and for one that is not listed."""
        if self._role_of is None:
            self._role_of = {seat: role for role in self.roles for seat in seats_in(role)}
        return self._role_of.get(seat)

    def recording(self, role: MachineRole) -> tuple[str, ...] | None:
        """Files (by slot) of the recording to make spares warm in a role with, if it is whole."""
        machine, _ = self._recorders.get(role.representative, ("", ""))
        files = self._recordings.get((self.generation, machine), {})
        return tuple(files[slot] for slot in sorted(files)) if len(files) >= self.slots else None

    def recorded(self, role: MachineRole) -> Recorded:
        """How far a role's recording is."""
        if self.recording(role) is not None:
            return "whole"
        recorder = self._recorders.get(role.representative)
        if self.why_not_recorded(role):
            return "failed"
        return "lost" if recorder in self.gone else "awaited"

    def why_not_recorded(self, role: MachineRole) -> str:
        """Why a role could not be recorded; empty where nobody said that."""
        machine, _ = self._recorders.get(role.representative, ("", ""))
        return self._unrecorded.get((self.generation, machine), "")

    # -- state that no other machine has -------------------------------------------------------------

    @property
    def unreplicated(self) -> int:
        """Number of ranks whose state no rank on another machine has."""
        found = self._roles.get(self.generation)
        return 0 if found is None else sum(row.count for row in found.unreplicated)

    @property
    def mirrors_awaited(self) -> bool:
        """Ranks that are to mirror their state have not all said that they do, or that they cannot."""
        if self.job is None or self.job.state != "mirror" or self.size < 2 or not self.unreplicated:
            return False
        whole, failed = self._mirrored.get(self.generation, set()), self._unmirrored.get(self.generation, {})
        return len(whole) + len(failed.keys() - whole) < self.unreplicated

    def mirrored(self, rank: int) -> bool:
        """A rank's state is in its guardian's memory, too, as long as both live."""
        return rank in self._mirrored.get(self.generation, set())

    def why_not_mirrored(self, rank: int) -> str:
        """Why a rank cannot mirror its state; empty where it did not say that."""
        return self._unmirrored.get(self.generation, {}).get(rank, "")

    def mirror_of(self, rank: int, away: Collection[int] = ()) -> int | None:
        """The rank that keeps the mirror of a rank's state; None where there is none, or it is gone.

        Args:
            rank: whose state.
            away: seats that do not count.
        """
        seat, slot = divmod(rank, self.slots)
        guardian = self.next_taken(seat)
        machine = self.seats.get(guardian, VACANT)
        if not self.mirrored(rank) or guardian == seat or guardian in away or machine in self._lost:
            return None
        return guardian * self.slots + slot

    def unsourced(self, seat: int, away: Collection[int] = (), *, mirrors: bool = True) -> int | None:
        """The first rank of a seat whose state no living machine on another seat has; None when each has one.

        Only for a generation whose ranks are all described.

        Args:
            seat: which one.
            away: seats that do not count.
            mirrors: a mirror is as good as a replica.
        """

        def may(rank: int) -> bool:
            other = rank // self.slots
            machine = self.seats.get(other, VACANT)
            return other != seat and other not in away and machine != VACANT and machine not in self._lost

        for rank in range(seat * self.slots, (seat + 1) * self.slots):
            if self.described.sources(rank, may, rank, 1):
                continue
            if not mirrors or self.mirror_of(rank, away) is None:
                return rank
        return None


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which ``m2`` comes before ``m10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
