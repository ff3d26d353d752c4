"""The phases of the planner: the table that ``planner`` walks, and what an open change is.

What lives here: the table and the record.  What never lives here: when a trigger holds, and what
follows from a transition.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """An open assignment: this life takes that seat."""

    seat: int
    joiner: Life


def by_seat(changes: Mapping[str, Change]) -> dict[int, Life]:
    """Who takes which seat, from changes by incident."""
    return {change.seat: change.joiner for change in changes.values()}
