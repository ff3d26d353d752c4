"""The cluster as its events tell it: a pure reducer from events to what a person wants to know.

What lives here: :class:`ClusterView` and the table of what each event changes in it.  What never
lives here: clocks, I/O, colours.  The live display, ``trainmover status`` and the report feed it
the same events, from the bus or from a recorded log, so they cannot tell different stories.

It tolerates repeated and unknown events, and samples that never come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.machines import MachineState, MachineView
from trainmover.monitor.protection import Protection
from trainmover.monitor.roles import RolesView

__all__ = ["ClusterView", "MachineState", "MachineView"]

RATE_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Membership:
    """Who trains from a step on.

    Attributes:
        step: the first step.
        epoch, kind: of the switch.
        present: number of seats that somebody has.
        seats: number of all seats.
    """

    step: int
    epoch: int
    kind: str
    present: int
    seats: int


@dataclass(slots=True)
class ClusterView:
    """State of one job, built by :meth:`apply` from its events in any sensible order.

    Attributes:
        phase: the job as a whole: waiting, starting, training, held, completed, failed.
        machines: latest life of each machine, by name.
        incidents: all incidents in the order in which they were opened, by id.
        step: last committed step index that a sample told of.
        metrics: the metrics of that step.
        roles: the machine roles of this generation, and their recordings.
        protection: what a loss would cost.
        memberships: every committed change of membership, in order.
    """

    phase: Literal["waiting", "starting", "training", "held", "completed", "failed"] = "waiting"
    job: str = ""
    submitted: say.JobSubmitted | None = None
    submitted_at: float | None = None
    ended_at: float | None = None
    epoch: int = 0
    generation: int = 0
    started: bool = False
    layout: tuple[str, ...] = ()
    machines: dict[str, MachineView] = field(default_factory=dict)
    incidents: dict[str, IncidentView] = field(default_factory=dict)
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    identical: bool | None = None
    steps: int | None = None
    reason: str = ""
    roles: RolesView = field(default_factory=RolesView)
    protection: Protection = field(default_factory=Protection)
    memberships: list[Membership] = field(default_factory=list)
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_SAMPLES))
    _moves: dict[str, tuple[float, str]] = field(default_factory=dict)
    _evidence: dict[str, float] = field(default_factory=dict)

    def apply(self, envelope: Envelope) -> None:
        """Take one event in."""
        self.job = self.job or envelope.job
        if getattr(envelope.event, "generation", self.generation) >= self.generation:
            self.protection.note(envelope.event)
        change = _CHANGES.get(type(envelope.event))
        if change is not None:
            change(self, envelope, envelope.event)

    @staticmethod
    def changed_by(envelope: Envelope) -> bool:
        """Whether an event of this type can change a view at all."""
        return type(envelope.event) in _CHANGES

    def recall_rate(self, samples: list[tuple[float, int]]) -> None:
        """Take the rate from these (time, step) instead of what was sampled."""
        self._samples = deque(samples, maxlen=RATE_SAMPLES)

    @property
    def steps_per_second(self) -> float | None:
        """Rate over the last samples; None while there are too few."""
        if len(self._samples) < 2:
            return None
        (first, low), (last, high) = self._samples[0], self._samples[-1]
        return (high - low) / (last - first) if last > first and high > low else None

    @property
    def open_incidents(self) -> tuple[IncidentView, ...]:
        """Incidents that are not over."""
        return tuple(item for item in self.incidents.values() if item.state == "open")

    @property
    def closed_incidents(self) -> tuple[IncidentView, ...]:
        """Incidents that ended with training going on."""
        return tuple(item for item in self.incidents.values() if item.state == "closed")

    def by_position(self) -> list[MachineView]:
        """Machines for a table: members first by position, then spares, then the gone."""

        def order(machine: MachineView) -> tuple[int, int, str]:
            seat = machine.position if machine.position is not None else 1 << 30
            return (0 if machine.alive else 1, seat, machine.name)

        return sorted(self.machines.values(), key=order)

    def _of(self, incidents: tuple[str, ...]) -> list[IncidentView]:
        return [self.incidents[name] for name in incidents if name in self.incidents]

    def _with_epoch(self, epoch: int) -> list[IncidentView]:
        return [item for item in self.open_incidents if item.epoch == epoch]

    def _incident_of(self, machine: str) -> IncidentView | None:
        return next((item for item in self.open_incidents if item.machine == machine), None)

    def _seat(self, machines: tuple[str, ...], state: MachineState) -> None:
        self.layout = machines
        for position, name in enumerate(machines):
            machine = self.machines.get(name)
            if machine is not None:
                machine.position = position
                if machine.alive:
                    machine.state = state


# -- what each event changes ---------------------------------------------------------------------


def _submitted(view: ClusterView, envelope: Envelope, event: say.JobSubmitted) -> None:
    view.submitted, view.submitted_at, view.phase = event, envelope.time, "starting"


def _completed(view: ClusterView, envelope: Envelope, event: say.JobCompleted) -> None:
    view.phase, view.ended_at = "completed", envelope.time
    view.steps, view.digest, view.identical = event.steps, event.digest, event.identical


def _failed(view: ClusterView, envelope: Envelope, event: say.JobFailed) -> None:
    if view.phase != "completed":
        view.phase, view.ended_at, view.reason = "failed", envelope.time, event.reason


def _held(view: ClusterView, envelope: Envelope, event: say.JobHeld) -> None:
    view.phase = "held"
    for incident in view._of((event.incident,)):
        incident.held = event.reason


def _joined(view: ClusterView, envelope: Envelope, event: say.MachineJoined) -> None:
    known = view.machines.get(event.machine)
    if known is None or known.incarnation != event.incarnation:
        view.machines[event.machine] = MachineView(event.machine, event.incarnation, event.host, event.slots)


def _left(view: ClusterView, envelope: Envelope, event: say.MachineLeft) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None:
        machine.state, machine.position = "left", None
        machine.note = event.reason


def _suspected(view: ClusterView, envelope: Envelope, event: say.MachineSuspected) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None and machine.alive:
        machine.note = f"suspected: {event.reason}"
        view._evidence.setdefault(event.machine, envelope.time)


def _machine_failed(view: ClusterView, envelope: Envelope, event: say.MachineFailed) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is None:
        return
    position, machine.position = machine.position, None
    machine.state, machine.note = "failed", event.reason
    if position is None or view._incident_of(event.machine) is not None:
        return
    name = envelope.incident or f"{event.machine}-{event.incarnation}"
    sign = view._evidence.pop(event.machine, None)
    incident = IncidentView(name, "failure", event.machine, cause=event.reason, evidence=sign)
    incident.position = position
    incident.reach("opened", min(envelope.time, sign) if sign is not None else envelope.time)
    incident.reach("detected", envelope.time)
    view.incidents[name] = incident


def _rank_exited(view: ClusterView, envelope: Envelope, event: say.RankExited) -> None:
    if event.again:
        machine = _life(view, event.machine, event.incarnation)
        if machine is not None:
            machine.warmth.begin_again(event)
            machine.state = "warming" if machine.state == "parked" else machine.state
            machine.note = f"a rank ended in the role {event.role}; started again"
        return
    view._evidence.setdefault(event.machine, envelope.time)


def _lease_expired(view: ClusterView, envelope: Envelope, event: say.LeaseExpired) -> None:
    view._evidence.setdefault(event.machine, envelope.time)


def _lease_returned(view: ClusterView, envelope: Envelope, event: say.LeaseReturned) -> None:
    view._evidence.pop(event.machine, None)
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None and machine.alive:
        machine.note = ""


def _link_broken(view: ClusterView, envelope: Envelope, event: say.LinkBroken) -> None:
    view._evidence.setdefault(event.peer_machine, envelope.time)


def _launch(view: ClusterView, envelope: Envelope, event: say.MachineLaunch) -> None:
    if event.generation > view.generation:
        view.generation, view.started = event.generation, False
        view.roles = RolesView()
        for incident in view.open_incidents:
            if incident.kind == "failure":
                incident.take_back("assigned")  # what was planned for it is void
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None:
        machine.state, machine.position = "starting", event.position
    for incident in view.open_incidents:
        if incident.kind == "failure" and not view.started and "planned" not in incident.times:
            incident.restart = True
            incident.held = ""
            if incident.position == event.position:
                incident.joiner = event.machine
            incident.reach("assigned", envelope.time)
    view.phase = "starting"


def _roles(view: ClusterView, envelope: Envelope, event: say.RolesFound) -> None:
    if event.generation == view.generation:
        view.roles.found = event


def _recorded(view: ClusterView, envelope: Envelope, event: say.RecordingReady | say.RecordingFailed) -> None:
    machine = view.machines.get(event.machine)
    if machine is not None and machine.position is not None and event.generation == view.generation:
        view.roles.note_recording(event, machine.position)


def _warm(view: ClusterView, envelope: Envelope, event: say.StandbyWarm) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None and machine.alive:
        machine.state = "warming"
        machine.warmth.warm(event)


def _parked(view: ClusterView, envelope: Envelope, event: say.StandbyParked) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is None:
        return
    machine.warmth.park(event)
    if machine.state == "warming" and machine.warmth.complete:
        machine.state, machine.note = "parked", ""


def _assigned(view: ClusterView, envelope: Envelope, event: say.StandbyAssigned) -> None:
    incident = view.incidents.get(event.incident)
    if incident is None:
        incident = view._incident_of(event.leaver) if event.leaver else None
        if incident is not None:
            del view.incidents[incident.id]
            incident.id = event.incident
        else:
            opened, cause = view._moves.pop(event.leaver, (envelope.time, ""))
            machine_or_seat = event.leaver or f"seat {event.position}"
            incident = IncidentView(event.incident, event.kind, machine_or_seat, cause=cause)
            incident.position = event.position
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


def _move_requested(view: ClusterView, envelope: Envelope, event: say.MoveRequested) -> None:
    view._moves.setdefault(event.machine, (envelope.time, event.reason))


def _move_refused(view: ClusterView, envelope: Envelope, event: say.MoveRefused) -> None:
    opened, cause = view._moves.pop(event.machine, (envelope.time, ""))
    incident = IncidentView(event.incident, "move", event.machine, cause=cause, state="refused")
    incident.held = event.reason
    incident.reach("opened", opened)
    view.incidents.setdefault(event.incident, incident)


def _plan(view: ClusterView, envelope: Envelope, event: say.PlanReady) -> None:
    for incident in view._of(event.incidents):
        incident.take_back("planned")
        incident.epoch = event.epoch
        incident.paused = event.kind == "shrink" and incident.joiner is None
        if incident.paused:
            incident.held = ""
        incident.reach("planned", envelope.time)


def _prepare(view: ClusterView, envelope: Envelope, event: say.SwitchPrepare) -> None:
    for incident in view._of(event.incidents):
        present = sum(map(bool, event.machines))
        incident.prepare(event.epoch, present * event.ranks_per_machine, envelope.time)


def _prepared(view: ClusterView, envelope: Envelope, event: say.SwitchPrepared) -> None:
    for incident in view._with_epoch(event.epoch):
        incident.note_prepared(event, envelope.time)


def _adopted(view: ClusterView, envelope: Envelope, event: say.SwitchAdopted) -> None:
    for incident in view._with_epoch(event.epoch):
        incident.note_adopted(event, envelope.time)


def _committed(view: ClusterView, envelope: Envelope, event: say.SwitchCommitted) -> None:
    view.epoch = max(view.epoch, event.epoch)
    view._seat(event.machines, "training")
    present, seats = sum(map(bool, event.machines)), len(event.machines)
    view.memberships.append(Membership(event.step, event.epoch, event.kind, present, seats))
    for name in event.leavers:
        machine = view.machines.get(name)
        if machine is not None:
            machine.position = None
            if machine.alive:
                machine.state = "leaving"
    for incident in view._of(event.incidents):
        incident.reach("committed", envelope.time)
    view._evidence.clear()
    if view.phase != "completed":
        view.phase = "training"


def _aborted(view: ClusterView, envelope: Envelope, event: say.SwitchAborted) -> None:
    for incident in view._of(event.incidents):
        incident.take_back("assigned")


def _started(view: ClusterView, envelope: Envelope, event: say.TrainingStarted) -> None:
    view.started = True
    for incident in view.open_incidents:
        if incident.restart:
            incident.step, incident.epoch = max(0, event.step - 1), event.epoch
            incident.reach("resumed", envelope.time)
            incident.state = "closed"
    if view.phase == "starting":
        view.phase = "training"


def _resumed(view: ClusterView, envelope: Envelope, event: say.TrainingResumed) -> None:
    for incident in view._with_epoch(event.epoch):
        incident.reach("resumed", envelope.time)
        incident.state = "closed"


def _sample(view: ClusterView, envelope: Envelope, event: say.StepSample) -> None:
    machine = view.machines.get(event.machine)
    if machine is not None:
        machine.step = event.step
    if view.step is not None and event.step < view.step:
        if event.epoch < view.epoch:
            return
        view._samples.clear()
    if not view._samples or view._samples[-1][1] < event.step:
        view._samples.append((envelope.time, event.step))
    if view.step != event.step or not view.metrics:
        view.metrics = dict(event.metrics)
    view.step = event.step


def _beat(view: ClusterView, envelope: Envelope, event: say.Heartbeat) -> None:
    machine = _life(view, event.machine, event.incarnation)
    if machine is not None:
        machine.beat, machine.ranks = envelope.time, event.ranks
        machine.cpu_percent, machine.rss_bytes = event.cpu_percent, event.rss_bytes


def _life(view: ClusterView, name: str, incarnation: str) -> MachineView | None:
    machine = view.machines.get(name)
    return machine if machine is not None and machine.incarnation == incarnation else None


_CHANGES: dict[type[say.Event], Callable[[ClusterView, Envelope, Any], None]] = {
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
