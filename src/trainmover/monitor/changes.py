"""What each event changes in the view of a cluster: one small function per event, and the table of them.

What lives here: :data:`CHANGES`.  What never lives here: clocks, I/O, and what the view holds (``state``).

It tolerates repeated events, and samples that never come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.machines import MachineView
from trainmover.monitor.roles import RolesView
from trainmover.monitor.state import ClusterState, Membership


def _submitted(view: ClusterState, envelope: Envelope, event: say.JobSubmitted) -> None:
    view.submitted, view.submitted_at, view.phase = event, envelope.time, "starting"


def _completed(view: ClusterState, envelope: Envelope, event: say.JobCompleted) -> None:
    view.phase = "completed"
    view.steps, view.digest, view.identical = event.steps, event.digest, event.identical
    view.endings.end(envelope.time, completed=True)
    view.settle()


def _failed(view: ClusterState, envelope: Envelope, event: say.JobFailed) -> None:
    if view.phase != "completed":
        view.phase, view.reason = "failed", event.reason
        view.endings.end(envelope.time, completed=False)
        view.settle()


def _held(view: ClusterState, envelope: Envelope, event: say.JobHeld) -> None:
    view.phase = "held"
    for incident in view.named((event.incident,)):
        incident.held = event.reason


def _joined(view: ClusterState, envelope: Envelope, event: say.MachineJoined) -> None:
    known = view.machines.get(event.machine)
    if known is None or known.incarnation != event.incarnation:
        view.machines[event.machine] = MachineView(event.machine, event.incarnation, event.host, event.slots)


def _left(view: ClusterState, envelope: Envelope, event: say.MachineLeft) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None:
        machine.state, machine.position = "left", None
        machine.note = event.reason


def _suspected(view: ClusterState, envelope: Envelope, event: say.MachineSuspected) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None and machine.alive:
        machine.note = f"suspected: {event.reason}"
        view.evidence.setdefault(event.machine, envelope.time)


def _machine_failed(view: ClusterState, envelope: Envelope, event: say.MachineFailed) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is None:
        return
    position, machine.position = machine.position, None
    machine.state, machine.note = "failed", event.reason
    name = envelope.incident or f"{event.machine}-{event.incarnation}"
    if position is None and not view.endings.named(name):
        return
    incident = view.incidents.get(name) or view.incident_of(event.machine)
    if incident is None:
        incident = view.incidents[name] = IncidentView(name, "failure", event.machine)
        incident.generation = machine.generation
    if incident.position is None:
        incident.position = machine.seat
    if position is not None and incident.lost_in is None:
        incident.lost_in = view.epoch
    if not incident.cause and incident.kind == "failure":
        sign = view.evidence.pop(event.machine, None)
        incident.cause, incident.evidence = event.reason, sign
        incident.times["opened"] = min(envelope.time, sign) if sign is not None else envelope.time
        incident.times["detected"] = envelope.time
    view.settle()


def _rank_exited(view: ClusterState, envelope: Envelope, event: say.RankExited) -> None:
    if event.again:
        machine = _life(view, event.machine, event.incarnation)
        if machine is not None:
            machine.warmth.begin_again(event)
            machine.state = "warming" if machine.state == "parked" else machine.state
            machine.note = f"a rank ended in the role {event.role}; started again"
        return
    view.evidence.setdefault(event.machine, envelope.time)


def _lease_expired(view: ClusterState, envelope: Envelope, event: say.LeaseExpired) -> None:
    view.evidence.setdefault(event.machine, envelope.time)


def _lease_returned(view: ClusterState, envelope: Envelope, event: say.LeaseReturned) -> None:
    view.evidence.pop(event.machine, None)
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None and machine.alive:
        machine.note = ""


def _link_broken(view: ClusterState, envelope: Envelope, event: say.LinkBroken) -> None:
    view.evidence.setdefault(event.peer_machine, envelope.time)


def _link_unreached(view: ClusterState, envelope: Envelope, event: say.LinkUnreached) -> None:
    for machine in (event.machine, event.peer_machine):  # which of them goes is not known yet
        view.evidence.setdefault(machine, envelope.time)


def _launch(view: ClusterState, envelope: Envelope, event: say.MachineLaunch) -> None:
    before = view.generation
    if not view.endings.launch(event, envelope.time):
        return
    if view.generation > before:
        view.roles = RolesView()
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None:
        machine.position = machine.seat = event.position
        machine.generation = event.generation
        if machine.alive:
            machine.state = "starting"
    view.settle()
    if not view.started:
        view.phase = "starting"


def _roles(view: ClusterState, envelope: Envelope, event: say.RolesFound) -> None:
    if event.generation == view.generation:
        view.roles.found = event


def _recorded(
    view: ClusterState, envelope: Envelope, event: say.RecordingReady | say.RecordingFailed
) -> None:
    machine = view.machines.get(event.machine)
    if machine is not None and machine.position is not None and event.generation == view.generation:
        view.roles.note_recording(event, machine.position)


def _warm(view: ClusterState, envelope: Envelope, event: say.StandbyWarm) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None and machine.alive:
        machine.state = "warming"
        machine.warmth.warm(event)


def _parked(view: ClusterState, envelope: Envelope, event: say.StandbyParked) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is None:
        return
    machine.warmth.park(event)
    if machine.state == "warming" and machine.warmth.complete:
        machine.state, machine.note = "parked", ""


def _assigned(view: ClusterState, envelope: Envelope, event: say.StandbyAssigned) -> None:
    view.claim((event.incident,), event.generation)
    incident = view.incidents.get(event.incident)
    if incident is not None and (incident.state != "open" or 0 < event.generation < incident.since):
        return
    if incident is None:
        incident = view.incident_of(event.leaver) if event.leaver else None
        if incident is not None:
            del view.incidents[incident.id]
            incident.id = event.incident
        else:
            opened, cause = view.moves.pop(event.leaver, (envelope.time, ""))
            machine_or_seat = event.leaver or f"seat {event.position}"
            incident = IncidentView(event.incident, event.kind, machine_or_seat, cause=cause)
            incident.position, incident.generation = event.position, event.generation or view.generation
            incident.reach("opened", opened)
            incident.reach("detected", opened)
        view.incidents[event.incident] = incident
    incident.take_back("assigned")
    incident.joiner, incident.held = event.joiner, ""
    incident.reach("assigned", envelope.time)
    machine = _life(view, event.joiner, event.joiner_incarnation)
    if machine is not None and machine.alive:
        machine.state = "joining"
    if view.phase == "held":
        view.phase = "training"
    view.settle()


def _move_requested(view: ClusterState, envelope: Envelope, event: say.MoveRequested) -> None:
    view.moves.setdefault(event.machine, (envelope.time, event.reason))


def _move_refused(view: ClusterState, envelope: Envelope, event: say.MoveRefused) -> None:
    opened, cause = view.moves.pop(event.machine, (envelope.time, ""))
    incident = IncidentView(event.incident, "move", event.machine, cause=cause, state="refused")
    incident.held = event.reason
    incident.reach("opened", opened)
    view.incidents.setdefault(event.incident, incident)


def _plan(view: ClusterState, envelope: Envelope, event: say.PlanReady) -> None:
    view.endings.switch(event)
    view.claim(event.incidents, event.generation)
    for incident in _ended_by(view, event):
        incident.take_back("planned")
        incident.epoch = event.epoch
        incident.paused = event.kind == "shrink" and incident.joiner is None
        if incident.paused:
            incident.held = ""
        incident.reach("planned", envelope.time)
    view.settle()


def _ended_by(view: ClusterState, event: say.PlanReady | say.SwitchPrepare) -> list[IncidentView]:
    """The incidents that a switch is to end, unless they have ended, or something later is on its way."""
    return [
        incident
        for incident in view.named(event.incidents)
        if incident.state == "open" and (incident.epoch or 0) <= event.epoch and not incident.restart
    ]


def _prepare(view: ClusterState, envelope: Envelope, event: say.SwitchPrepare) -> None:
    view.endings.switch(event)
    view.claim(event.incidents, event.generation)
    for incident in _ended_by(view, event):
        present = sum(map(bool, event.machines))
        incident.prepare(event.epoch, present * event.ranks_per_machine, envelope.time)
    view.settle()


def _prepared(view: ClusterState, envelope: Envelope, event: say.SwitchPrepared) -> None:
    for incident in view.with_epoch(event.epoch):
        incident.note_prepared(event, envelope.time)


def _adopted(view: ClusterState, envelope: Envelope, event: say.SwitchAdopted) -> None:
    view.endings.adopt(event)
    for incident in view.with_epoch(event.epoch):
        incident.note_adopted(event, envelope.time)
    view.settle()


def _committed(view: ClusterState, envelope: Envelope, event: say.SwitchCommitted) -> None:
    view.endings.commit(event, envelope.time)
    view.claim(event.incidents, event.generation)
    if event.epoch >= view.epoch:
        view.epoch = event.epoch
        view.seat(event.machines, "training", event.generation or view.generation)
    present, seats = sum(map(bool, event.machines)), len(event.machines)
    view.memberships.append(Membership(event.step, event.epoch, event.kind, present, seats))
    view.memberships.sort(key=lambda membership: membership.epoch)
    for name in event.leavers:
        machine = view.machines.get(name)
        if machine is not None and name not in view.layout:
            machine.position = None
            if machine.alive:
                machine.state = "leaving"
    for incident in view.named(event.incidents):
        incident.reach("committed", envelope.time)
    view.evidence.clear()
    if view.phase != "completed":
        view.phase = "training"
    view.settle()


def _aborted(view: ClusterState, envelope: Envelope, event: say.SwitchAborted) -> None:
    for incident in view.named(event.incidents):
        if incident.state == "open" and incident.epoch == event.epoch and not incident.restart:
            incident.take_back("assigned")


def _started(view: ClusterState, envelope: Envelope, event: say.TrainingStarted) -> None:
    view.endings.train(event, envelope.time)
    view.settle()
    if view.phase == "starting" and view.started:
        view.phase = "training"


def _resumed(view: ClusterState, envelope: Envelope, event: say.TrainingResumed) -> None:
    view.endings.train(event, envelope.time)
    view.settle()


def _sample(view: ClusterState, envelope: Envelope, event: say.StepSample) -> None:
    machine = view.machines.get(event.machine)
    if machine is not None:
        machine.step = event.step
    if view.step is not None and event.step < view.step:
        if event.epoch < view.epoch:
            return
        view.samples.clear()
    if not view.samples or view.samples[-1][1] < event.step:
        view.samples.append((envelope.time, event.step))
    if view.step != event.step or not view.metrics:
        view.metrics = dict(event.metrics)
    view.step = event.step


def _beat(view: ClusterState, envelope: Envelope, event: say.Heartbeat) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None:
        machine.beat, machine.ranks = envelope.time, event.ranks
        machine.cpu_percent, machine.rss_bytes = event.cpu_percent, event.rss_bytes


def _life(view: ClusterState, name: str, incarnation: str) -> MachineView | None:
    machine = view.machines.get(name)
    return machine if machine is not None and machine.incarnation == incarnation else None


CHANGES: dict[type[say.Event], Callable[[ClusterState, Envelope, Any], None]] = {
    say.JobSubmitted: _submitted,
    say.JobCompleted: _completed,
    say.JobFailed: _failed,
    say.JobHeld: _held,
    say.MachineJoined: _joined,
    say.MachineLeft: _left,
    say.MachineSuspected: _suspected,
    say.MachineFailed: _machine_failed,
    say.MachineLaunch: _launch,
    say.LeaseExpired: _lease_expired,
    say.LeaseReturned: _lease_returned,
    say.RankExited: _rank_exited,
    say.LinkBroken: _link_broken,
    say.LinkUnreached: _link_unreached,
    say.RolesFound: _roles,
    say.RecordingReady: _recorded,
    say.RecordingFailed: _recorded,
    say.StandbyWarm: _warm,
    say.StandbyParked: _parked,
    say.StandbyAssigned: _assigned,
    say.MoveRequested: _move_requested,
    say.MoveRefused: _move_refused,
    say.PlanReady: _plan,
    say.SwitchPrepare: _prepare,
    say.SwitchPrepared: _prepared,
    say.SwitchAdopted: _adopted,
    say.SwitchCommitted: _committed,
    say.SwitchAborted: _aborted,
    say.TrainingStarted: _started,
    say.TrainingResumed: _resumed,
    say.StepSample: _sample,
    say.Heartbeat: _beat,
}
