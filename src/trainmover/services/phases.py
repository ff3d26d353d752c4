"""The phases of the planner: the table that ``planner`` walks, and what an open change is.

What lives here: the table and the record.  What never lives here: when a trigger holds, and what
follows from a transition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainmover.services.roster import Life
from trainmover.services.tables import Table


class Phase(StrEnum):
    """Where the planner is."""

    IDLE = "idle"
    GATHERING = "gathering"
    LAUNCHED = "launched"
    PLANNED = "planned"
    STEADY = "steady"


TABLE: Table[Phase] = {
    Phase.IDLE: {
        "enough machines": Phase.GATHERING,
    },
    Phase.GATHERING: {
        "too few again": Phase.IDLE,
        "all are here": Phase.LAUNCHED,
        "waited enough": Phase.LAUNCHED,
    },
    Phase.LAUNCHED: {
        "start again": Phase.LAUNCHED,
        "all ranks are up": Phase.PLANNED,
        "change is complete": Phase.PLANNED,
    },
    Phase.PLANNED: {
        "start again": Phase.LAUNCHED,
        "committed": Phase.STEADY,
        "aborted": Phase.STEADY,
        "aborted start": Phase.LAUNCHED,
        "superseded": Phase.PLANNED,
    },
    Phase.STEADY: {
        "start again": Phase.LAUNCHED,
        "change is complete": Phase.PLANNED,
    },
}


@dataclass(frozen=True, slots=True)
class Change:
    """An open assignment: this life takes that seat; ``back``: a vacant one, of a replica that comes back."""

    seat: int
    joiner: Life
    back: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """What the next layout changes: the open assignments that it carries out, and the seats it vacates."""

    due: Mapping[str, Change]
    vacated: Collection[int] = ()


def by_seat(changes: Mapping[str, Change]) -> dict[int, Life]:
    """Who takes which seat, from changes by incident."""
    return {change.seat: change.joiner for change in changes.values()}
