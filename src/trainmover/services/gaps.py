"""The life of a spare and the life of a gap: the tables and records of the standby service.

What lives here: the two tables that ``standby`` walks, and what is kept of each spare and each gap.
What never lives here: when a trigger holds, and what follows from a transition.

A *spare* is one machine's life as standby sees it, from joining to its end.  A *gap* is a seat
that needs another machine, because its machine failed or is asked to move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainmover.events.catalogue import MoveRequested
from trainmover.services.roster import Life
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
        "all slots parked": Spare.PARKED,
    },
    Spare.PARKED: {
        "gone": Spare.LOST,
        "seated": Spare.MEMBER,
        "stale": Spare.JOINED,
        "assigned": Spare.ASSIGNED,
    },
    Spare.ASSIGNED: {
        "gone": Spare.LOST,
        "seated": Spare.MEMBER,
        "stale": Spare.JOINED,
        "not needed": Spare.PARKED,
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
        "spare parked": Gap.ASSIGNED,
        "refused": Gap.CLOSED,
        "no spare": Gap.HELD,
    },
    Gap.HELD: {
        "moot": Gap.CLOSED,
        "spare parked": Gap.ASSIGNED,
    },
    Gap.ASSIGNED: {
        "moot": Gap.CLOSED,
        "seat taken": Gap.CLOSED,
        "joiner lost": Gap.OPEN,
    },
    Gap.CLOSED: {},
}

ON_THE_WAY = frozenset({Spare.JOINED, Spare.WARMING})
WAITING = frozenset({*ON_THE_WAY, Spare.PARKED})


@dataclass(slots=True)
class SpareMachine:
    """One machine's life, its state, and the generation of what it is warm with."""

    life: Life
    state: Spare = Spare.JOINED
    generation: int = 0
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

    @property
    def live(self) -> bool:
        return self.state is not Gap.CLOSED
