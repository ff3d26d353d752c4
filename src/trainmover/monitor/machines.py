"""One machine as the bus knows it: its state, its seat, its figures, and what it is warm in.

What lives here: the part of the view that is about one life of one machine.  What never lives here:
what each event changes (``view``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainmover.events import catalogue as say

MachineState = Literal[
    "spare", "starting", "training", "warming", "parked", "joining", "leaving", "failed", "left"
]


@dataclass(slots=True)
class Warmth:
    """In which roles a spare is warm, or being warmed.

    Attributes:
        generation: start from nothing that the roles belong to.
        asked: number of ranks by role, in the order in which it was asked for them.
        seconds: what the warm-up took, the longest of the ranks, by role and part.
    """

    generation: int = -1
    asked: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    _slots: dict[str, set[int]] = field(default_factory=dict)

    def warm(self, event: say.StandbyWarm) -> None:
        """The spare is asked to be warm in one more role."""
        if event.generation != self.generation:
            self.generation = event.generation
            self.asked, self._slots, self.seconds = {}, {}, {}
        self.asked.setdefault(event.role, event.ranks_per_machine)

    def park(self, event: say.StandbyParked) -> None:
        """One of its slots is parked in a role."""
        if event.generation == self.generation:
            self._slots.setdefault(event.role, set()).add(event.slot)
            parts = self.seconds.setdefault(event.role, {})
            for part, seconds in event.seconds.items():
                parts[part] = max(seconds, parts.get(part, 0.0))

    def begin_again(self, event: say.RankExited) -> None:
        """Its ranks in a role are started anew."""
        if event.generation == self.generation:
            self._slots.pop(event.role, None)

    @property
    def parked(self) -> list[str]:
        """Roles that all its slots are parked in."""
        return [role for role, ranks in self.asked.items() if len(self._slots.get(role, ())) >= ranks]

    @property
    def under_way(self) -> list[str]:
        """Roles that it was asked for and is not parked in."""
        parked = self.parked
        return [role for role in self.asked if role not in parked]

    @property
    def complete(self) -> bool:
        """It is parked in all roles that it was asked for."""
        return bool(self.asked) and not self.under_way


@dataclass(slots=True)
class MachineView:
    """One life of one machine, as the bus knows it."""

    name: str
    incarnation: str
    host: str = ""
    slots: int = 1
    state: MachineState = "spare"
    position: int | None = None
    generation: int = 0
    """The start from nothing in which it has, or had, a position."""
    seat: int | None = None
    """The last position that it had."""
    note: str = ""
    step: int | None = None
    cpu_percent: float = 0.0
    rss_bytes: int = 0
    beat: float | None = None
    ranks: tuple[str, ...] = ()
    warmth: Warmth = field(default_factory=Warmth)

    @property
    def alive(self) -> bool:
        """False once it failed or left."""
        return self.state not in ("failed", "left")
