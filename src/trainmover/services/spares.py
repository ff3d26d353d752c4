"""The life of a spare: its table, and what is kept of each.

What lives here: the table that ``pool`` walks spares along, what is kept of each spare, and the :class:`Line`
of them, which knows who has to be looked at: those about which something changed, and those that wait for
their gap.  What never lives here: when a trigger holds, and what follows from a transition.

A *spare* is one machine's life as standby sees it, from joining to its end.  It is warmed in one
role after another, and can be assigned as soon as the role that is needed is parked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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
