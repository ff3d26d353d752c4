"""Regrowth: which spares bring a paused replica back.

What lives here: for each vacant seat the spare that was assigned to it, until it sits there.  What never
lives here: which seats pause (``replicas``), the life of a spare and of a gap (``gaps``).

The seats of a replica are filled at once or not at all, so spares are assigned when there is one for each,
parked in its role.  When one of them is lost before the seats are taken, the others are free again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from trainmover.services.replicas import paused
from trainmover.services.roster import Life, Roster
from trainmover.services.spares import SpareMachine

Choose = Callable[[int, Collection[Life]], SpareMachine | None]
"""The spare for a seat, but none of these lives."""


class Regrowth:
    """Who is to sit on the vacant seats; see the module."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._joiners: dict[int, Life] = {}
        self._generation = 0

    @property
    def under_way(self) -> bool:
        """A paused replica is about to come back."""
        return bool(self._joiners)

    def has(self, life: Life) -> bool:
        """This spare is to sit on a vacant seat."""
        return life in self._joiners.values()

    def tidy(self) -> bool:
        """Forget what is done or cannot be done any more; True when there was something."""
        roster = self._roster
        if not self._joiners:
            return False
        vacant, before = set(roster.vacant), len(self._joiners)
        if self._generation != roster.generation:
            vacant = set()
        for unit in paused(roster) if vacant else ():
            if any(self._joiners.get(seat) in roster.gone for seat in unit):
                vacant -= set(unit)
        self._joiners = {seat: life for seat, life in self._joiners.items() if seat in vacant}
        return len(self._joiners) < before

    def find(self, choose: Choose) -> dict[int, SpareMachine]:
        """Spares for all seats of one paused replica; empty when there are too few for any."""
        for unit in paused(self._roster) if self._roster.vacant else ():
            if any(seat in self._joiners for seat in unit):
                continue
            found: dict[int, SpareMachine] = {}
            for seat in unit:
                spare = choose(seat, [other.life for other in found.values()])
                if spare is None:
                    break
                found[seat] = spare
            else:
                self._generation = self._roster.generation
                self._joiners |= {seat: spare.life for seat, spare in found.items()}
                return found
        return {}
