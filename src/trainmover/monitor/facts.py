"""Events as one-line facts, for logs, pipes and ``trainmover events tail``.

What lives here: a sentence per event, and which events a person wants to hear of by default.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope

NAMES_SHOWN = 16
"""How many machines a sentence names."""


def sentence(event: say.Event) -> str | None:
    """The fact in a few words; None for events that are of no interest by themselves."""
    tell = _SENTENCES.get(type(event))
    return tell(event) if tell is not None else None


def line(envelope: Envelope) -> str:
    """Any event on one line: time, type, who, what."""
    clock = f"{datetime.fromtimestamp(envelope.time).astimezone():%H:%M:%S.%f}"[:-3]
    text = sentence(envelope.event)
    if text is None:
        fields = envelope.event.model_dump(mode="json")
        text = " ".join(f"{name}={_short(value)}" for name, value in fields.items())
    incident = f" [{envelope.incident}]" if envelope.incident else ""
    return f"{clock} {envelope.type:<18} {envelope.source}: {text}{incident}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _many(names: tuple[str, ...]) -> str:
    shown = ", ".join(name or "(vacant)" for name in names[:NAMES_SHOWN]) or "none"
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown


def _who(plan: say.PlanReady) -> str:
    return f", {_many(plan.leavers)} -> {_many(plan.joiners)}" if plan.leavers or plan.joiners else ""


def _in(role: str) -> str:
    return f" in the role {role}" if role not in ("", "all") else ""


def _roles(event: say.RolesFound) -> str:
    if len(event.roles) == 1:
        return "all machines have the same role"
    shown = ", ".join(role.name for role in event.roles[:8])
    more = len(event.roles) + event.unlisted - 8
    return f"machines have the roles {shown}{f' and {more} more' if more > 0 else ''}"


_SENTENCES: dict[type[say.Event], Callable[[Any], str]] = {
    say.JobSubmitted: lambda e: (
        f"{e.script} on {e.machines} machines x {e.ranks_per_machine}, {e.standbys} standbys, seed {e.seed}"
    ),
    say.JobHeld: lambda e: f"the job holds{_because(e.reason)}",
    say.JobCompleted: lambda e: f"completed: {e.steps} steps, digest {e.digest[:16]}",
    say.JobFailed: lambda e: f"the job failed{_because(e.reason)}",
    say.MachineJoined: lambda e: f"machine {e.machine} joined (pid {e.pid}, {e.slots} slots)",
    say.MachineLeft: lambda e: f"machine {e.machine} left{_because(e.reason)}",
    say.MachineLaunch: lambda e: f"machine {e.machine} starts its ranks at position {e.position}",
    say.MachineSuspected: lambda e: f"machine {e.machine} is suspected{_because(e.reason)}",
    say.MachineFailed: lambda e: f"machine {e.machine} is declared dead{_because(e.reason)}",
    say.LeaseExpired: lambda e: (
        f"machine {e.machine} has been silent for {e.silent_seconds:.2f} s (limit {e.limit_seconds:.2f} s)"
    ),
    say.LeaseReturned: lambda e: f"machine {e.machine} is heard again after {e.silent_seconds:.2f} s",
    say.LeaseStalled: lambda e: f"machine {e.machine} slot {e.slot} is {e.state}",
    say.RankExited: lambda e: (
        f"rank process {e.pid} on {e.machine} slot {e.slot} ended"
        f" ({f'signal {e.signal}' if e.signal is not None else f'code {e.code}'})"
        f"{_because(e.error.strip().splitlines()[-1]) if e.error.strip() else ''}"
        f"{'; it is started again' if e.again else ''}"
    ),
    say.LinkBroken: lambda e: f"rank {e.rank} lost rank {e.peer} on {e.peer_machine}{_because(e.reason)}",
    say.LinkUnreached: lambda e: (
        f"rank {e.rank} on {e.machine} has not reached rank {e.peer} on {e.peer_machine} for "
        f"{e.seconds:.0f} s{_because(e.reason)}"
    ),
    say.LinkReached: lambda e: (
        f"rank {e.rank} on {e.machine} has reached rank {e.peer} on {e.peer_machine} after all"
    ),
    say.LinkRepair: lambda e: f"links are made again in a new epoch{_because(e.reason)}",
    say.MoveRequested: lambda e: (
        f"machine {e.machine} shall move{f' to {e.to}' if e.to else ''}{_because(e.reason)}"
    ),
    say.MoveRefused: lambda e: f"machine {e.machine} does not move{_because(e.reason)}",
    say.RankDescribed: lambda e: f"rank {e.rank} on {e.machine} is in {len(e.groups)} groups",
    say.RolesFound: _roles,
    say.RecordingReady: lambda e: f"{e.machine} slot {e.slot} has recorded {e.steps} steps, {e.bytes} bytes",
    say.RecordingFailed: lambda e: f"{e.machine} slot {e.slot} has not recorded{_because(e.reason)}",
    say.StandbyWarm: lambda e: f"machine {e.machine} warms up as a standby{_in(e.role)}",
    say.StandbyParked: lambda e: f"machine {e.machine} slot {e.slot} is warm and parked{_in(e.role)}",
    say.StandbyAssigned: lambda e: (
        f"machine {e.joiner} takes the place of {e.leaver} ({e.kind}){_in(e.role)}"
        if e.leaver
        else f"machine {e.joiner} takes the vacant seat {e.position}{_in(e.role)}"
    ),
    say.StandbyExhausted: lambda e: (
        f"no spare is left for position {e.position} ({e.machine}): its replica pauses"
    ),
    say.StandbyReplenish: lambda e: f"one more standby is wanted{_because(e.reason)}",
    say.PlanReady: lambda e: (
        f"epoch {e.epoch} is planned ({e.kind}{_who(e)}):"
        f" +{len(e.links_added)} -{len(e.links_dropped)} of {e.links_total} links"
    ),
    say.SwitchPrepare: lambda e: f"all ranks prepare epoch {e.epoch}",
    say.SwitchCommitted: lambda e: f"epoch {e.epoch} is committed at step {e.step}: {_many(e.machines)}",
    say.SwitchAborted: lambda e: f"epoch {e.epoch} is given up{_because(e.reason)}",
    say.TrainingStarted: lambda e: f"training started in epoch {e.epoch}",
    say.TrainingResumed: lambda e: f"training goes on in epoch {e.epoch}",
    say.CheckpointSaved: lambda e: (
        f"checkpoint of step {e.step}: {e.bytes} bytes, whole after {e.seconds:.2f} s; training waited "
        f"{1000 * e.copy_seconds:.0f} ms"
    ),
    say.MirrorWhole: lambda e: (
        f"the state of rank {e.rank} on {e.machine} is mirrored at rank {e.guardian} from step {e.step} on: "
        f"{e.image_bytes + e.changes_bytes} bytes a step"
    ),
    say.MirrorFailed: lambda e: (
        f"the state of rank {e.rank} on {e.machine} is not mirrored{_because(e.reason)}"
    ),
    say.CheckpointFailed: lambda e: (
        f"rank {e.rank} on {e.machine} could not write the checkpoint of step {e.step}{_because(e.reason)}"
    ),
    say.CheckpointLoaded: lambda e: (
        f"generation {e.generation} goes on from the checkpoint of step {e.step}"
        + (f" (newer ones were refused: {'; '.join(e.refused)})" if e.refused else "")
    ),
    say.DeadLetter: lambda e: f"undecodable message on {e.subject}: {e.reason}",
}
