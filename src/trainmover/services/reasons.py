"""Reasons: how a rank ended, and why a seat is not filled, in words for the operator.

What lives here: pure functions from what is known of a rank or a seat to a sentence that says what happened,
to whom, and what to do.  What never lives here: the decision.
"""

from __future__ import annotations

from trainmover.events.catalogue import MAX_TEXT, JobFailed, JobHeld, LeaseExpired, RankExited
from trainmover.services.replicas import why_no_pause
from trainmover.services.roster import Roster
from trainmover.services.warming import Warming

UNANSWERED = {"absent": "nobody listens under its name", "silent": "does not answer a probe", "alive": ""}
"""What a probe's answer says against a machine."""

_NO_BEAT = "no heartbeat for"


def no_beat(event: LeaseExpired) -> str:
    """How a lease expired."""
    return f"{_NO_BEAT} {event.silent_seconds:.2f} s (limit {event.limit_seconds:.2f} s)"


def is_silence(reason: str) -> bool:
    """A machine was declared dead because nothing was heard of it, and for nothing else."""
    return reason.startswith((_NO_BEAT, *filter(None, UNANSWERED.values())))


def how_it_ended(event: RankExited) -> str:
    """What ended a rank's process."""
    end = f"signal {event.signal}" if event.signal is not None else f"code {event.code}"
    text = f"{event.mode} rank process of slot {event.slot} (pid {event.pid}) ended by {end}"
    return (f"{text}: {event.error.strip()}" if event.error.strip() else text)[:MAX_TEXT]


def script_error(event: RankExited, when: str) -> str:
    """Why a job fails whose script raises."""
    head = f"the script raised {when}; last on {event.machine}, slot {event.slot}, exit code {event.code}: "
    return (head + event.error.strip())[:MAX_TEXT]


def why_unsourced(roster: Roster, seat: int) -> str:
    """Why nobody could get this seat's state; empty when somebody can."""
    rank = roster.unsourced(seat) if roster.all_described else None
    if rank is None:
        return ""
    what = f"the state of rank {rank} is on no other machine that lives"
    if roster.mirrored(rank):
        keeper = roster.seats.get(roster.next_taken(seat), "")
        return (
            f"{what}: {keeper or 'the next one'}, which kept its mirror, is lost as well; a second "
            "data-parallel replica of it, or a checkpoint (--checkpoint-every), would have it"
        )
    if refused := roster.why_not_mirrored(rank):
        return f"{what}, and it could not be mirrored: {refused}"
    mirror = "" if roster.job is None or roster.job.state == "mirror" else " or a mirror (--state mirror)"
    return f"{what}; a second data-parallel replica of it, on another machine,{mirror} would have it"


def why_uncovered(roster: Roster, warming: Warming, seat: int) -> str:
    """Why no spare can be warm in this seat's role; empty when one can, now or later."""
    role = roster.role_of(seat)
    if role is not None:
        why = warming.why_not(role)
        return f"no spare can be warm in the role {role.name}: {why}" if why else ""
    if not roster.roles:
        return ""
    return f"position {seat} has a role of its own among too many: nothing was recorded for it"


def held(roster: Roster, warming: Warming, incident: str, seat: int, leaver: str) -> JobHeld | JobFailed:
    """What there is to say when a seat stays empty: the job waits, or fails where it says so."""
    fails = roster.job is not None and roster.job.on_exhausted == "fail"
    shrinks = roster.job is not None and roster.job.on_exhausted == "shrink"
    stays = f"; its replica cannot pause: {why_no_pause(roster, [seat])}" if shrinks else ""
    where = f"{leaver} (position {seat})"
    lost = why_unsourced(roster, seat)
    for why in (lost, why_uncovered(roster, warming, seat)):
        if not why:
            continue
        reason = f"nobody can take the place of {where}: {why}{'' if lost else stays}"[:MAX_TEXT]
        if fails and not (lost and roster.checkpointed):
            return JobFailed(reason=reason)
        return JobHeld(incident=incident, reason=reason, generation=roster.generation, lost=bool(lost))
    reason = f"no standby is left to take the place of {where}{stays}"
    if fails:
        return JobFailed(reason=f"{reason}; start the job with more standbys")
    again = roster.joined.get(leaver)
    back = again is not None and (leaver, again.incarnation) not in roster.gone
    advice = (
        f"{leaver} is back, but its place still has that name: start it under another one"
        if back
        else "training waits at its boundary; `trainmover machine` adds one"
    )
    return JobHeld(incident=incident, reason=f"{reason}: {advice}")


def why_no_move(roster: Roster, warming: Warming, machine: str) -> str:
    """Why a member cannot move now, whoever would take its place; empty when it can."""
    seat = roster.seat_of(machine)
    if not roster.seated(machine) or seat is None:
        members = ", ".join(filter(None, roster.members)) or "no machine yet"
        return f"{machine} has no seat in the job; members are {members}"[:MAX_TEXT]
    if roster.dead(machine):
        return f"{machine} is being replaced already"
    if roster.taken == 1:
        return f"{machine} is the job's only machine: nobody else has its state"
    if not roster.replaceable:
        return f"no spare can be warm yet: generation {roster.generation} has not recorded its first steps"
    for why in (why_unsourced(roster, seat), why_uncovered(roster, warming, seat)):
        if why:
            return f"{machine} cannot be replaced: {why}"[:MAX_TEXT]
    return ""
