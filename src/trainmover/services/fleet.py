"""The fleet: whose ranks are up, and where they listen.

What lives here: endpoints as ``rank.started`` tells them, and the answer to the planner's question
after every event, whether all the machines of a layout are up.  What never lives here: which layout.

A machine that was launched has one set of ranks.  A spare has one for each role that it is warm in;
which of them counts is up to the seat that it takes, as a seat has one role.

The answer is kept, not computed: of the members, those that are dead or lack an endpoint are a set,
and only machines about which something changed are looked at again.  For a layout that differs from
the members in a few seats, that set and those few are all that has to be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainmover.events.catalogue import Endpoint, RankStarted
from trainmover.services.roster import Life, Roster
from trainmover.topology import VACANT


class Fleet:
    """Endpoints of every life in every generation; see the module."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._endpoints: dict[tuple[Life, int], dict[str, dict[int, Endpoint]]] = {}
        self._heard: set[str] = set()
        self._absent: set[str] = set()

    def note(self, event: RankStarted) -> None:
        """A rank's process is up."""
        life = (event.machine, event.incarnation)
        sets = self._endpoints.setdefault((life, event.generation), {})
        sets.setdefault(event.role, {})[event.slot] = event.endpoint
        self._heard.add(event.machine)

    def refresh(self) -> None:
        """Look again at the machines about which something changed."""
        roster = self._roster
        for machine in (roster.take_touched() | self._heard) - {VACANT}:
            life = (machine, roster.life(machine) or "")
            if any(self.of(life, seat) is None for seat in roster.seats_held(machine)):
                self._absent.add(machine)
            else:
                self._absent.discard(machine)
        self._heard.clear()

    def all_up(
        self, leavers: Collection[str] = frozenset(), joiners: Mapping[int, Life] | None = None
    ) -> bool:
        """Whether the members are up, with some (different ones) of them replaced: joiners by seat."""
        absent = sum(leaver in self._absent for leaver in leavers)
        return absent == len(self._absent) and all(
            self.of(life, seat) is not None for seat, life in (joiners or {}).items()
        )

    def of(self, life: Life, seat: int) -> list[Endpoint] | None:
        """Endpoints by slot of a machine's ranks for a seat; None when it is dead or a rank is not up."""
        slots, count = self._ranks(life, seat), self._roster.slots
        if life in self._roster.gone or any(slot not in slots for slot in range(count)):
            return None
        return [slots[slot] for slot in range(count)]

    def at(self, life: Life, seat: int, slot: int) -> Endpoint:
        """Endpoint of one rank of a machine that is up."""
        return self._ranks(life, seat)[slot]

    def _ranks(self, life: Life, seat: int) -> dict[int, Endpoint]:
        sets = self._endpoints.get((life, self._roster.generation), {})
        if "" in sets:
            return sets[""]
        role = self._roster.role_of(seat)
        return sets.get(role.name, {}) if role is not None else {}
