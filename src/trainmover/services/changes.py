"""Changes: what the next layout is to change, and whether all of it can be done now.

What lives here: the assignments that are open, the seats that no spare can take, the repair that was asked
for, and the pure question what of that one plan carries out.  What never lives here: when a plan is made
and what it says (``planner``), which spare was chosen (``standby``).

Three rules are behind it.

- *One plan for everything that is open*, but for the move of a machine that still works: it waits while a
  neighbouring seat changes, because neighbours keep each other's private state, and while it is all that
  is left of a state.
- *No plan with a dead machine in it.*  While a machine of the resulting layout is dead, or one of its
  ranks has no endpoint, there is no next layout: the missing assignment is on its way.
- *Replicas pause and come back whole* (``replicas``): their seats are vacated at once, and filled at once,
  when there is a joiner for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainmover.events.catalogue import LinkRepair, PlanReady, StandbyAssigned, StandbyExhausted
from trainmover.services.fleet import Fleet
from trainmover.services.plans import joiner_ranks
from trainmover.services.replicas import paused, together, why_no_pause
from trainmover.services.roster import Life, Roster
from trainmover.topology import VACANT


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


class Changes:
    """Everything that is to change; see the module."""

    def __init__(self, roster: Roster, fleet: Fleet) -> None:
        self._roster = roster
        self._fleet = fleet
        self._open: dict[str, Change] = {}
        self._exhausted: dict[str, int] = {}
        self._repair: tuple[int, str] | None = None

    # -- facts -----------------------------------------------------------------------------------

    def assigned(self, event: StandbyAssigned) -> None:
        """A spare is to take a seat."""
        roster = self._roster
        if event.generation and event.generation != roster.generation:
            return
        known, joiner = self._open.get(event.incident), (event.joiner, event.joiner_incarnation)
        seat = roster.seat_of(event.leaver) if event.position is None else event.position
        seat = known.seat if seat is None and known is not None else seat
        if seat is not None:
            # A spare has one seat to take: an earlier assignment of it was given up.
            others = {i: c for i, c in self._open.items() if c.joiner != joiner and c.seat != seat}
            self._open = others | {event.incident: Change(seat, joiner, event.position is not None)}
            self._exhausted.pop(event.incident, None)

    def exhausted(self, event: StandbyExhausted) -> None:
        """No spare can take a seat: its replica pauses."""
        if event.generation == self._roster.generation and event.incident not in self._open:
            self._exhausted[event.incident] = event.position

    def refused(self, incident: str) -> None:
        """A move does not take place."""
        self._open.pop(incident, None)

    def repair(self, event: LinkRepair, incident: str) -> None:
        """Links are to be made anew, without another machine."""
        if self._repair is None or event.epoch > self._repair[0]:
            self._repair = (event.epoch, incident)

    def committed(self) -> None:
        """Forget what the committed layout has done."""
        roster = self._roster
        for incident, change in list(self._open.items()):
            vacated = change.seat in roster.vacant and not change.back
            if roster.is_member(*change.joiner) or vacated:
                del self._open[incident]
        for incident, seat in list(self._exhausted.items()):
            if not roster.dead(roster.seats.get(seat, VACANT)):
                del self._exhausted[incident]

    def clear(self) -> None:
        """Everything starts from nothing."""
        self._open.clear()
        self._exhausted.clear()
        self._repair = None

    # -- questions -------------------------------------------------------------------------------

    @property
    def of_seats(self) -> bool:
        """A seat is to change hands, or to be vacated."""
        return bool(self._open or self._exhausted)

    @property
    def repair_wanted(self) -> bool:
        """A repair is wanted in the epoch that holds, or in one that was to follow it."""
        return self._repair is not None and self._repair[0] >= self._roster.epoch

    @property
    def base_epoch(self) -> int:
        """Epoch that the next one follows; 0 when nothing of this generation is committed."""
        return self._roster.epoch if self._roster.settled else 0

    def outdated(self, plan: PlanReady) -> bool:
        """The plan on its way cannot come about, or does not do what is wanted now."""
        seats, roster = plan.machines, self._roster
        lost = any(seats[seat : seat + 1] == (machine,) for seat, machine in roster.lost())
        lost = lost or any(roster.dead(machine) for machine in plan.joiners)
        broken = self._repair is not None and self._repair[0] >= plan.epoch
        return lost or broken or plan.base_epoch != self.base_epoch

    def next(self) -> Next | None:
        """What makes the next layout, when something is to change and all of it lives."""
        roster = self._roster
        if self.of_seats:
            if not roster.replaceable or not roster.all_described:
                return None
        elif not self.repair_wanted:
            return None
        elif not roster.settled:
            return Next({}) if self._fleet.all_up() else None
        due = self._due()
        vacated = self._to_vacate(due)
        if vacated is None or not (due or vacated or self.repair_wanted):
            return None
        due = {incident: change for incident, change in due.items() if change.seat not in vacated}
        joiners = by_seat(due)
        names = {machine for machine, _ in joiners.values()}
        if not roster.full or len(names) != len(joiners):
            return None
        if any(seat not in joiners for name in names for seat in roster.seats_held(name)):
            return None
        leavers = {roster.seats[seat] for seat in (*joiners, *vacated)}
        if not self._fleet.all_up(leavers, joiners):
            return None
        if joiner_ranks(roster, sorted(joiners), vacated) is None:
            return None
        return Next(due, vacated)

    def incidents(self, change: Next) -> list[str]:
        """The incidents that a plan of this change is about."""
        found = [*change.due]
        found += [incident for incident, seat in self._exhausted.items() if seat in change.vacated]
        if self.repair_wanted and self._repair is not None and self._repair[1] not in found:
            found.append(self._repair[1])
        return found

    def _due(self) -> dict[str, Change]:
        """The open assignments that the next plan makes, by incident.

        Each seat keeps the private state of the seat before it (``guardian_of``), so a machine that
        still works is not replaced together with a neighbour: its move waits for the plan after.  It
        waits as well while a rank of it, or of a seat that changes, has its state from no other seat.
        """
        roster = self._roster
        due = {i: c for i, c in self._open.items() if roster.dead(roster.seats.get(c.seat, VACANT))}
        due |= self._coming_back()
        seats = {change.seat for change in due.values()}
        for incident, change in self._open.items():
            neighbours = {roster.next_taken(seat) for seat in seats}
            if incident in due or change.seat in roster.vacant or change.seat in neighbours:
                continue
            if roster.next_taken(change.seat) in seats or (change.seat + 1) % roster.size in seats:
                continue
            if joiner_ranks(roster, {*seats, change.seat}) is not None:
                due[incident] = change
                seats.add(change.seat)
        return due

    def _coming_back(self) -> dict[str, Change]:
        """The open assignments to vacant seats, of replicas that have a living joiner for every seat."""
        roster = self._roster
        open_to = {c.seat: (i, c) for i, c in self._open.items() if c.joiner not in roster.gone}
        return {
            open_to[seat][0]: open_to[seat][1]
            for unit in (paused(roster) if roster.vacant and self._open else ())
            if all(seat in open_to for seat in unit)
            for seat in unit
        }

    def _to_vacate(self, due: Mapping[str, Change]) -> frozenset[int] | None:
        """The seats whose replicas pause now; None where something has to be waited for."""
        roster, filled = self._roster, {change.seat for change in due.values()}
        lost = {seat for seat in self._exhausted.values() if seat not in filled}
        lost = {seat for seat in lost if roster.dead(roster.seats.get(seat, VACANT))}
        if not lost:
            return frozenset()
        if why_no_pause(roster, lost):
            return None
        return together(roster, lost) - frozenset(roster.vacant)


def by_seat(changes: Mapping[str, Change]) -> dict[int, Life]:
    """Who takes which seat, from changes by incident."""
    return {change.seat: change.joiner for change in changes.values()}
