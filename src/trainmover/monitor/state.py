"""What the view of a cluster holds, and the questions about it.

What lives here: the record of one job, :class:`ClusterState`, as far as events have told of it.  What never
lives here: what an event changes in it (``changes``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from trainmover.events import catalogue as say
from trainmover.monitor.endings import Endings
from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.machines import MachineState, MachineView
from trainmover.monitor.protection import Protection
from trainmover.monitor.roles import RolesView

RATE_SAMPLES = 20
"""Step samples over which the rate is taken."""


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
class ClusterState:
    """State of one job; ``changes`` has what each event does to it.

    Attributes:
        phase: the job as a whole: waiting, starting, training, held, completed, failed.
        machines: latest life of each machine, by name.
        incidents: all incidents in the order in which they were opened, by id.
        step: last committed step index that a sample told of.
        metrics: the metrics of that step.
        roles: the machine roles of this generation, and their recordings.
        protection: what a loss would cost.
        memberships: every committed change of membership, in order.
        samples: (time, step) of the last step samples, for the rate.
        moves: when and why moves were asked for that nobody has answered yet, by machine.
        evidence: first sign of a trouble that is not an incident yet, by machine, unix seconds.
        endings: what decides how incidents end.
    """

    phase: Literal["waiting", "starting", "training", "held", "completed", "failed"] = "waiting"
    job: str = ""
    submitted: say.JobSubmitted | None = None
    submitted_at: float | None = None
    epoch: int = 0
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
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_SAMPLES))
    moves: dict[str, tuple[float, str]] = field(default_factory=dict)
    evidence: dict[str, float] = field(default_factory=dict)
    endings: Endings = field(default_factory=Endings)

    def recall_rate(self, samples: list[tuple[float, int]]) -> None:
        """Take the rate from these (time, step) instead of what was sampled."""
        self.samples = deque(samples, maxlen=RATE_SAMPLES)

    @property
    def generation(self) -> int:
        """The latest start from nothing; 0 before the first."""
        return self.endings.generation

    @property
    def started(self) -> bool:
        """This generation has committed its first steps."""
        return self.generation in self.endings.started

    @property
    def ended_at(self) -> float | None:
        """When the job ended, unix seconds; None while it runs."""
        return self.endings.over

    @property
    def steps_per_second(self) -> float | None:
        """Rate over the last samples; None while there are too few."""
        if len(self.samples) < 2:
            return None
        (first, low), (last, high) = self.samples[0], self.samples[-1]
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

    def named(self, incidents: tuple[str, ...]) -> list[IncidentView]:
        """Those of these incidents that are known."""
        return [self.incidents[name] for name in incidents if name in self.incidents]

    def with_epoch(self, epoch: int) -> list[IncidentView]:
        """Open incidents that this epoch is to end."""
        return [item for item in self.open_incidents if item.epoch == epoch]

    def claim(self, incidents: tuple[str, ...], generation: int) -> None:
        """In this generation something is done about these incidents."""
        for incident in self.named(incidents):
            self.endings.claim(incident, generation)

    def settle(self) -> None:
        """Close what has ended by what is known now, and complete what has."""
        for incident in self.incidents.values():
            machine = self.machines.get(incident.machine)
            self.endings.settle(incident, machine is not None and machine.state == "failed")

    def incident_of(self, machine: str) -> IncidentView | None:
        """The open incident of a machine that goes."""
        return next((item for item in self.open_incidents if item.machine == machine), None)

    def seat(self, machines: tuple[str, ...], state: MachineState, generation: int) -> None:
        """Who sits where from now on, by position."""
        self.layout = machines
        for position, name in enumerate(machines):
            machine = self.machines.get(name)
            if machine is not None:
                machine.position = machine.seat = position
                machine.generation = generation
                if machine.alive:
                    machine.state = state
