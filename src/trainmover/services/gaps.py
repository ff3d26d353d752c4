"""The life of a spare and the life of a gap: the tables and records of the standby service.

What lives here: the two tables that ``standby`` walks, and what is kept of each spare and each gap.
What never lives here: when a trigger holds, and what follows from a transition.

The :class:`Book` has the gaps, and answers what is asked about one.  The :class:`Line` of spares knows
which of them have to be looked at: those about which something changed, and those that wait for their gap.

A *spare* is one machine's life as standby sees it, from joining to its end.  It is warmed in one
role after another, and can be assigned as soon as the role that is needed is parked.  A *gap* is a
seat that needs another machine, because its machine failed or is asked to move.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from trainmover.events.catalogue import MachineRole, MoveRequested
from trainmover.services.roster import Life, Roster
from trainmover.services.tables import Table


class Spare(StrEnum):
    """State of one machine's life as standby sees it."""

    JOINED = "joined"
    WARMING = "warming"
    PARKED = "parked"
    ASSIGNED = "assigned"
    MEMBER = "member"
    LOST = "lost"


SPARES: Table[Spare] = {
    Spare.JOINED: {
        "gone": Spare.LOST,
        "seated": Spare.MEMBER,
        "recording is ready": Spare.WARMING,
    },
    Spare.WARMING: {
        "gone": Spare.LOST,
        "seated": Spare.MEMBER,
        "stale": Spare.JOINED,
        "next role": Spare.WARMING,
        "all roles parked": Spare.PARKED,
        "assigned": Spare.ASSIGNED,
    },
    Spare.PARKED: {
        "gone": Spare.LOST,
        "seated": Spare.MEMBER,
        "stale": Spare.JOINED,
        "next role": Spare.WARMING,
        "assigned": Spare.ASSIGNED,
    },
    Spare.ASSIGNED: {
        "gone": Spare.LOST,
        "seated": Spare.MEMBER,
        "stale": Spare.JOINED,
        "not needed": Spare.WARMING,
    },
    Spare.MEMBER: {
        "gone": Spare.LOST,
        "unseated": Spare.LOST,
    },
    Spare.LOST: {},
}


class Gap(StrEnum):
    """State of one gap."""

    OPEN = "open"
    HELD = "held"
    ASSIGNED = "assigned"
    CLOSED = "closed"


GAPS: Table[Gap] = {
    Gap.OPEN: {
        "moot": Gap.CLOSED,
        "state lost": Gap.HELD,
        "spare parked": Gap.ASSIGNED,
        "refused": Gap.CLOSED,
        "replica pauses": Gap.HELD,
        "no spare": Gap.HELD,
    },
    Gap.HELD: {
        "moot": Gap.CLOSED,
        "spare parked": Gap.ASSIGNED,
        "replica pauses": Gap.HELD,
    },
    Gap.ASSIGNED: {
        "moot": Gap.CLOSED,
        "seat taken": Gap.CLOSED,
        "state lost": Gap.HELD,
        "joiner lost": Gap.OPEN,
    },
    Gap.CLOSED: {},
}

PARKED = frozenset({Spare.WARMING, Spare.PARKED})
"""States in which a spare may be parked in a role."""

WAITING = frozenset({Spare.JOINED, *PARKED})
"""States in which a spare has no seat and is not assigned one."""


@dataclass(slots=True)
class SpareMachine:
    """One machine's life, its state, and the generation of what it is warm with."""

    life: Life
    number: int = 0
    """Place in the order of joining, in which spares are looked at."""
    state: Spare = Spare.JOINED
    generation: int = 0
    warmed: list[str] = field(default_factory=list)
    """Roles that it was asked to be warm in, in this order; all but the last are parked."""
    was_parked: bool = False
    """It was of use once: what befell it later is no sign that spares are hopeless."""


@dataclass(slots=True)
class Incident:
    """One gap: the seat, why, and who was chosen."""

    id: str
    seat: int
    generation: int
    asked: MoveRequested | None
    state: Gap = Gap.OPEN
    joiner: Life | None = None
    late: bool = False
    """A move that has waited long enough."""
    doubted: bool = False
    """Its state seems to be lost, and a switch that is on its way is waited for."""
    given_up: bool = False
    """That was waited for long enough."""
    exhausted: bool = False
    """It was said that no spare can take the seat, so that its replica pauses."""

    @property
    def live(self) -> bool:
        return self.state is not Gap.CLOSED


class Book:
    """All gaps, and the live ones by seat.

    Attributes:
        gaps: every gap that there was, by the id of its incident.
    """

    def __init__(self, roster: Roster) -> None:
        self.gaps: dict[str, Incident] = {}
        self._roster = roster
        self._live: dict[tuple[int, int], Incident] = {}

    @property
    def live(self) -> Collection[Incident]:
        """Gaps that are not closed, the older first."""
        return self._live.values()

    @property
    def switching(self) -> bool:
        """A spare is taking a seat."""
        return any(gap.state is Gap.ASSIGNED for gap in self._live.values())

    def open(self, gap: Incident) -> None:
        """A seat needs another machine."""
        self.gaps[gap.id] = gap
        self._live[gap.seat, gap.generation] = gap

    def close(self, gap: Incident) -> None:
        """It needs none any more."""
        del self._live[gap.seat, gap.generation]

    def at(self, seat: int | None) -> Incident | None:
        """The live gap of a seat in this generation."""
        return None if seat is None else self._live.get((seat, self._roster.generation))

    def in_order(self) -> list[Incident]:
        """Live gaps: failures before moves, the older first."""
        return sorted(self._live.values(), key=self.is_move)

    def is_move(self, gap: Incident) -> bool:
        """The gap is still a wish: nobody died on its seat."""
        return gap.asked is not None and not self._roster.dead(self.occupant(gap))

    def occupant(self, gap: Incident) -> str:
        """Who sits there now: after a switch that came through at the last moment, its joiner."""
        return self._roster.seats.get(gap.seat, "")

    def wanted(self, gap: Incident) -> str | None:
        """The one spare that a move asks for; no failure waits for a certain one."""
        return gap.asked.to if gap.asked is not None and self.is_move(gap) else None

    def wanted_roles(self) -> list[MachineRole]:
        """Roles of the seats that wait for a spare, vacant ones among them."""
        waiting = [gap.seat for gap in self._live.values() if gap.state in (Gap.OPEN, Gap.HELD)]
        waiting += self._roster.vacant
        return [role for seat in waiting if (role := self._roster.role_of(seat)) is not None]


class Line:
    """The spares in the order of joining, and those among them whose triggers may have a new answer."""

    def __init__(self) -> None:
        self._spares: list[SpareMachine] = []
        self._by_machine: dict[str, list[SpareMachine]] = {}
        self._stirred: set[int] = set()
        self._assigned: set[int] = set()

    def add(self, life: Life) -> SpareMachine:
        """A machine joins."""
        spare = SpareMachine(life, len(self._spares))
        self._spares.append(spare)
        self._by_machine.setdefault(life[0], []).append(spare)
        self._stirred.add(spare.number)
        return spare

    def stir(self, *machines: str) -> None:
        """Something changed about these machines."""
        for machine in machines:
            self._stirred.update(spare.number for spare in self._by_machine.get(machine, ()))

    def stir_all(self) -> None:
        """Something changed that all have in common."""
        self._stirred.update(range(len(self._spares)))

    def take_due(self) -> list[SpareMachine]:
        """Whom to look at in this round; what happens to an assigned spare is up to its gap, too."""
        numbers, self._stirred = self._stirred | self._assigned, set()
        return [self._spares[number] for number in sorted(numbers)]

    def enter(self, spare: SpareMachine, trigger: str) -> None:
        """Take a transition; the spare is looked at again in the next round."""
        spare.state = SPARES[spare.state][trigger]
        self._stirred.add(spare.number)
        if spare.state is Spare.ASSIGNED:
            self._assigned.add(spare.number)
        else:
            self._assigned.discard(spare.number)
