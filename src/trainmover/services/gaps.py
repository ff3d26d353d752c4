"""The life of a gap: its table, and the book of all gaps.

What lives here: the table that ``standby`` walks gaps along, what is kept of each gap, and the :class:`Book`,
which answers what is asked about one.  What never lives here: when a trigger holds, and what follows from a
transition.

A *gap* is a seat that needs another machine, because its machine failed or is asked to move.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from trainmover.events.catalogue import MachineRole, MoveRequested
from trainmover.services.roster import Life, Roster
from trainmover.services.tables import Table


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
        "state lost": Gap.HELD,
        "spare parked": Gap.ASSIGNED,
        "replica pauses": Gap.HELD,
        "not recorded": Gap.HELD,
    },
    Gap.ASSIGNED: {
        "moot": Gap.CLOSED,
        "seat taken": Gap.CLOSED,
        "state lost": Gap.HELD,
        "joiner lost": Gap.OPEN,
    },
    Gap.CLOSED: {},
}


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
    told_lost: bool = False
    """It was said that its state is on no machine any more."""
    told_uncovered: bool = False
    """It was said that no spare can be warm in its role."""
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

    def assigned_seats(self) -> set[int]:
        """Seats that a spare is about to take."""
        return {gap.seat for gap in self._live.values() if gap.state is Gap.ASSIGNED}

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
