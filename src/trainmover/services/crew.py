"""The crew: which machines start from nothing, and on which positions.

What lives here: pure questions to a roster, asked by the planner before it launches.  What never
lives here: when to launch.

Positions are handed out by name, so that a job gets the same seats in every run, and a machine
that lives keeps its seat when everything starts again: its host has the data and the programs.
"""

from __future__ import annotations

import re

from trainmover.services.replicas import why_no_pause
from trainmover.services.roster import Life, Roster


def first_crew(roster: Roster) -> tuple[Life, ...]:
    """The machines of the first start, by position: the first by name of those that are here."""
    here = sorted(roster.idle(), key=lambda joined: natural(joined.machine))
    return tuple((joined.machine, joined.incarnation) for joined in here[: roster.size])


def nothing_to_keep(roster: Roster) -> bool:
    """A member is lost, and so is the state (or there was none worth a recovery yet).

    With a checkpoint to go back to, a state that is on no machine any more is such a case, too: that of
    a seat which standby holds for this reason, or the private state of one whose keeper, the next seat,
    is lost with it (unless its replica can pause).

    A role whose representative was lost before its recording was whole can never be warmed.  That
    happens in the seconds after the first steps, so starting again costs less than a hold.
    """
    lost = roster.lost()
    if not lost:
        return False
    return (
        not roster.replaceable
        or len(lost) == roster.taken
        or (roster.checkpointed and (roster.state_lost or _unkept(roster)))
        or any(_orphaned(roster, seat) for seat, _ in lost)
    )


def _unkept(roster: Roster) -> bool:
    seats = {seat for seat, _ in roster.lost()}
    unkept = {seat for seat in seats if roster.next_taken(seat) in seats}
    return bool(unkept) and bool(why_no_pause(roster, unkept))


def _orphaned(roster: Roster, seat: int) -> bool:
    role = roster.role_of(seat)
    return role is not None and roster.recorded(role) == "lost"


def next_crew(roster: Roster) -> tuple[Life, ...] | None:
    """Who starts again: living members keep their seats, spares take the empty ones.

    Returns:
        a life for each position; None while there are too few.
    """
    living = {
        machine: joined.incarnation
        for machine, joined in roster.joined.items()
        if not roster.is_over(machine, joined.incarnation) and joined.slots >= roster.slots
    }
    members = roster.members
    spares = iter(sorted(set(living) - set(members), key=natural))
    # A member that came back as another life is as good as a spare, after the others.
    back = iter([m for m in members if m in living and living[m] != roster.life(m)])
    crew: list[Life] = []
    for machine in members:
        alive = living.get(machine) == roster.life(machine) is not None
        taker = machine if alive else next(spares, None) or next(back, None)
        if taker is None:
            return None
        crew.append((taker, living[taker]))
    return tuple(crew)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which ``m2`` comes before ``m10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
