"""The fleet: whose ranks are up, and where they listen.

What lives here: endpoints as ``rank.started`` tells them, and the answer to the planner's question
after every event, whether all the machines of a layout are up.  What never lives here: which layout.

The answer is kept, not computed: of the members, those that are dead or lack an endpoint are a set,
and only machines about which something changed are looked at again.  For a layout that differs from
the members in a few seats, that set and those few are all that has to be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trainmover.events.catalogue import Endpoint, RankStarted
from trainmover.services.roster import Life, Roster


class Fleet:
    """Endpoints of every life in every generation; see the module."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._endpoints: dict[tuple[Life, int], dict[int, Endpoint]] = {}
        self._heard: set[str] = set()
        self._absent: set[str] = set()

    def note(self, event: RankStarted) -> None:
        """A rank's process is up."""
        life = (event.machine, event.incarnation)
        self._endpoints.setdefault((life, event.generation), {})[event.slot] = event.endpoint
        self._heard.add(event.machine)

    def refresh(self) -> None:
        """Look again at the machines about which something changed."""
        roster = self._roster
        for machine in roster.take_touched() | self._heard:
            if roster.seated(machine) and self.of((machine, roster.life(machine) or "")) is None:
                self._absent.add(machine)
            else:
                self._absent.discard(machine)
        self._heard.clear()

    def all_up(self, leavers: Collection[str] = frozenset(), joiners: Iterable[Life] = ()) -> bool:
        """Whether the members are up, with some (different ones) of them replaced."""
        absent = sum(leaver in self._absent for leaver in leavers)
        return absent == len(self._absent) and all(self.of(life) is not None for life in joiners)

    def of(self, life: Life) -> list[Endpoint] | None:
        """Endpoints of a machine's ranks by slot; None when it is dead or a rank is not up."""
        slots = self._endpoints.get((life, self._roster.generation))
        count = self._roster.slots
        if slots is None or life in self._roster.gone or any(slot not in slots for slot in range(count)):
            return None
        return [slots[slot] for slot in range(count)]

    def at(self, life: Life, slot: int) -> Endpoint:
        """Endpoint of one rank of a machine that is up."""
        return self._endpoints[life, self._roster.generation][slot]
