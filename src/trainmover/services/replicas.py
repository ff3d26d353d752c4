"""Replicas: which seats pause together when a job shrinks, and whether they may.

What lives here: pure questions to a roster about data-parallel replicas.  What never lives here: when a
replica pauses or comes back (``standby``), and the layout of it (``planner``).

A replica is found, not configured.  Ranks that a process group ties together although no two of its members
have the same state (a pipeline, the parts of a split tensor) can only work together: they are one
replica.  In plain data parallelism every rank is one; where an optimizer is sharded over all ranks, all
ranks are the same one, and nothing can pause.  Seats pause as a whole, so replicas that share a machine pause
together.

A seat may pause when every rank of its replicas has its state on a seat that goes on, and when all ranks
share: they ask each step which shares of the batch are theirs (``rank.described``), or nobody would compute
those of the ones that pause.  In the first seconds one that records for all of its role may not pause,
either: no spare could ever be warm in that role.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trainmover.services.roster import Roster
from trainmover.topology import VACANT


def together(roster: Roster, seats: Iterable[int]) -> frozenset[int]:
    """The seats of all replicas that have a rank on one of these; all ranks must be described."""
    described, slots = roster.described, roster.slots
    found, todo = set(seats), list(seats)
    while todo:
        first = todo.pop() * slots
        for rank in range(first, first + slots):
            others = {other // slots for other in described.replica(rank)} - found
            found |= others
            todo += others
    return frozenset(found)


def why_no_pause(roster: Roster, seats: Collection[int]) -> str:
    """Why the replicas of these seats cannot pause; empty when they can.

    Args:
        roster: what is known.
        seats: seats that have lost their machines.
    """
    if roster.job is None or roster.job.on_exhausted != "shrink":
        return "the job was not started with --on-exhausted shrink"
    if not roster.all_described:
        return "its ranks have not described themselves yet"
    if not roster.described.all_share:
        return (
            "the script does not ask step.shares() which shares of the batch are its own, so nobody could "
            "compute those of a replica that pauses"
        )
    lost = {seat for seat, _ in roster.lost()}
    away = {*together(roster, seats), *roster.vacant, *lost}
    for role in roster.roles:
        if role.representative in away - lost and roster.recorded(role) == "awaited":
            machine = roster.seats.get(role.representative, VACANT)
            return (
                f"{machine} would leave before it has recorded the role {role.name}, which nobody else does"
            )
    for seat in sorted(together(roster, seats) - set(roster.vacant)):
        rank = roster.unsourced(seat, away, mirrors=False)
        if rank is not None:
            return f"with it the state of rank {rank} would be on no machine that goes on"
    return ""


def paused(roster: Roster) -> list[tuple[int, ...]]:
    """The vacant seats, those of them together that must be filled together; by lowest seat."""
    left, found = set(roster.vacant), []
    while left:
        unit = together(roster, [min(left)])
        found.append(tuple(sorted(unit)))
        left -= unit
    return found
