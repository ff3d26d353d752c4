"""Machine roles: which machines do the same, found from what their ranks said.

What lives here: a pure function from descriptions to roles, and how roles are named and written.
What never lives here: what is done about them (``standby``).

Machines whose slots have equal signatures, slot by slot, can take each other's place: they are one
role.  The *representative* is the seat whose ranks' recording makes spares of the role warm: the
lowest that is not 0, because what only rank 0 does (logs, checkpoints) is no good model for others.

Names are for people.  One role is ``all``.  Where every rank of every machine has a place in a
pipeline, roles are ``first``, ``middle`` and ``last``; several with the same such name are numbered.
Otherwise they are ``role-1``, ``role-2``, by their lowest seats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice

from trainmover.events.catalogue import MachineRole, RolesFound, SeatRow
from trainmover.services.described import Described, Stage

LISTED = 1024
"""Most roles that are named; in a job of more, those with the fewest seats have no standby."""

MAX_ROLES = 16
"""Roles that a spare is warmed in, most seats first, and beyond them what an open gap needs."""


def find_roles(described: Described, machines: int, slots: int, generation: int) -> RolesFound:
    """The roles of the machines, once every rank is described.

    Args:
        described: all ranks.
        machines: number of seats.
        slots: ranks per machine; seat p has the ranks p * slots to p * slots + slots - 1.
        generation: of the ranks.
    """
    seats_of: dict[tuple[str, ...], list[int]] = {}
    places: dict[tuple[str, ...], set[str]] = {}
    for seat in range(machines):
        ranks = range(seat * slots, (seat + 1) * slots)
        key = tuple(described.signatures[rank] for rank in ranks)
        seats_of.setdefault(key, []).append(seat)
        places.setdefault(key, set()).update(_place(described.stages.get(rank)) for rank in ranks)
    names = _names(list(places.values()))
    roles = [
        MachineRole(
            name=name,
            seats=seat_rows(seats),
            representative=seats[0] if seats[0] > 0 or len(seats) == 1 else seats[1],
        )
        for name, seats in zip(names, seats_of.values(), strict=True)
    ]
    alone = [
        rank
        for rank in range(machines * slots)
        if not described.sources(rank, partial(_elsewhere, rank, slots), rank, 1)
    ]
    unreplicated = seat_rows(alone)
    if len(roles) > LISTED:
        many = set(islice((role.name for role in by_size(roles)), LISTED))
        listed = tuple(role for role in roles if role.name in many)
        return RolesFound(
            generation=generation, roles=listed, unlisted=len(roles) - LISTED, unreplicated=unreplicated
        )
    return RolesFound(generation=generation, roles=tuple(roles), unreplicated=unreplicated)


def _elsewhere(rank: int, slots: int, other: int) -> bool:
    """Whether another rank is on another machine."""
    return other // slots != rank // slots


def by_size(roles: Sequence[MachineRole]) -> list[MachineRole]:
    """Roles with the most seats first; of equal ones, that with the lowest seat."""
    return sorted(roles, key=lambda role: (-seat_count(role), role.seats[0].first))


def seat_rows(seats: Sequence[int]) -> tuple[SeatRow, ...]:
    """Ascending seats (or other numbers) as few rows: each takes as many as follow at the same distance."""
    rows: list[SeatRow] = []
    at = 0
    while at < len(seats):
        end = at + 1
        stride = seats[end] - seats[at] if end < len(seats) else 1
        while end < len(seats) and seats[end] - seats[end - 1] == stride:
            end += 1
        rows.append(SeatRow(first=seats[at], stride=stride, count=end - at))
        at = end
    return tuple(rows)


def seats_in(role: MachineRole) -> list[int]:
    """The seats of a role, ascending."""
    return [
        seat
        for row in role.seats
        for seat in range(row.first, row.first + row.stride * row.count, row.stride)
    ]


def seat_count(role: MachineRole) -> int:
    """Number of its seats."""
    return sum(row.count for row in role.seats)


def _place(stage: Stage | None) -> str:
    if stage is None:
        return ""
    index, size = stage
    return "first" if index == 0 else "last" if index == size - 1 else "middle"


def _names(places: Sequence[set[str]]) -> list[str]:
    """Names of roles by the places in a pipeline that their ranks have."""
    if len(places) == 1:
        return ["all"]
    if any(len(place) != 1 or "" in place for place in places):
        return [f"role-{number}" for number in range(1, len(places) + 1)]
    wanted = [next(iter(place)) for place in places]
    totals, numbers = Counter(wanted), Counter[str]()
    names = []
    for name in wanted:
        numbers[name] += 1
        names.append(name if totals[name] == 1 else f"{name}-{numbers[name]}")
    return names
