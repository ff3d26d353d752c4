"""Planner: what the next layout is, and which epoch it has.

What lives here: starting everything from nothing (a *generation*), and turning the assignments of
standby and the repairs of health into one layout with a new epoch.  What never lives here: who
failed, which spare is chosen, whether an epoch comes about.

The phases are a table, walked until no trigger holds.  Four rules are behind it.

- *Epochs only grow.*  An epoch that was named once is never named again, whatever became of it.
- *One plan for everything that is open.*  All open assignments (and a repair) go into one layout;
  only the move of a machine that still works waits while a neighbouring seat changes, because
  neighbours keep each other's private state.
- *No plan with a dead machine in it.*  While a machine of the resulting layout is dead, or one of
  its ranks has no endpoint, the planner waits: the missing assignment is on its way.
- *Nothing to keep, nothing to repair.*  Until a generation has a committed step and a recording
  (``Roster.replaceable``), or when no member is left that has the state, a failure starts
  everything again with ``generation + 1``: spares are launched like everybody else.

A plan on its way stays as it is while its layout is alive; more assignments wait for its end.
When it has lost a machine, or another epoch was committed under it, it is superseded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from trainmover.events.catalogue import (
    Endpoint,
    Event,
    JobCompleted,
    JobFailed,
    JobHeld,
    JobSubmitted,
    LinkName,
    LinkRepair,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    MoveRefused,
    PlanReady,
    RankStarted,
    RecordingReady,
    StandbyAssigned,
    SwitchAborted,
    SwitchCommitted,
    SwitchKind,
    TimerFired,
    TrainingStarted,
)
from trainmover.services.core import CancelTimer, Decider, Reaction, SetTimer, incident_id, noted
from trainmover.services.crew import first_crew, next_crew, nothing_to_keep
from trainmover.services.roster import Life
from trainmover.services.tables import Table, first_trigger
from trainmover.topology import Delta, Layout, SeatedLink, delta

GATHER = 1.0
"""Seconds that a launch waits for the standbys too, so that machines get seats by name."""

RECORDERS = 2
"""Positions whose ranks record: the first, and one that is not the first."""


class Phase(StrEnum):
    """Where the planner is."""

    IDLE = "idle"
    GATHERING = "gathering"
    LAUNCHED = "launched"
    PLANNED = "planned"
    STEADY = "steady"


TABLE: Table[Phase] = {
    Phase.IDLE: {
        "enough machines": Phase.GATHERING,
    },
    Phase.GATHERING: {
        "too few again": Phase.IDLE,
        "all are here": Phase.LAUNCHED,
        "waited enough": Phase.LAUNCHED,
    },
    Phase.LAUNCHED: {
        "start again": Phase.LAUNCHED,
        "all ranks are up": Phase.PLANNED,
    },
    Phase.PLANNED: {
        "start again": Phase.LAUNCHED,
        "committed": Phase.STEADY,
        "aborted": Phase.STEADY,
        "aborted start": Phase.LAUNCHED,
        "superseded": Phase.PLANNED,
    },
    Phase.STEADY: {
        "start again": Phase.LAUNCHED,
        "change is complete": Phase.PLANNED,
    },
}


@dataclass(frozen=True, slots=True)
class Change:
    """An open assignment: this life takes that seat."""

    seat: int
    joiner: Life


class PlannerCore(Decider):
    """Launches, and makes every next layout; see the module."""

    name: ClassVar[str] = "planner"
    SAYS: ClassVar[tuple[type[Event], ...]] = (MachineLaunch, PlanReady, JobHeld, JobFailed)

    def __init__(self, gather: float = GATHER) -> None:
        super().__init__()
        self.gather = gather
        self.phase = Phase.IDLE
        self.plan: PlanReady | None = None
        self.last_epoch = 0
        self._waited = False
        self._aborted: set[int] = set()
        self._changes: dict[str, Change] = {}
        self._repair: tuple[int, str] | None = None
        self._endpoints: dict[tuple[Life, int], dict[int, Endpoint]] = {}
        self._groups: dict[str, tuple[int, ...]] = {}
        self._held = 0

    # -- inputs ------------------------------------------------------------------------------------

    def _rank(self, event: RankStarted) -> None:
        life = (event.machine, event.incarnation)
        self._endpoints.setdefault((life, event.generation), {})[event.slot] = event.endpoint

    def _started(self, event: TrainingStarted) -> None:
        if event.generation == self.roster.generation:
            world = self.roster.size * self.roster.slots
            # What a rank says is not trusted to fit: a group of ranks that are not there is none.
            self._groups = {
                name: ranks for name, ranks in event.groups.items() if all(rank < world for rank in ranks)
            }

    def _assigned(self, event: StandbyAssigned) -> None:
        if event.generation and event.generation != self.roster.generation:
            return
        known = self._changes.get(event.incident)
        seat = self.roster.seat_of(event.leaver)
        seat = known.seat if seat is None and known is not None else seat
        if seat is not None:
            self._changes[event.incident] = Change(seat, (event.joiner, event.joiner_incarnation))

    def _refused(self, event: MoveRefused) -> None:
        self._changes.pop(event.incident, None)

    def _asked_to_repair(self, event: LinkRepair) -> None:
        if self._repair is None or event.epoch > self._repair[0]:
            self._repair = (event.epoch, self.heard.incident or incident_id("repair", event.epoch))

    def _committed(self, event: SwitchCommitted) -> None:
        self.last_epoch = max(self.last_epoch, event.epoch)
        for incident, change in list(self._changes.items()):
            if self.roster.is_member(*change.joiner):
                del self._changes[incident]

    def _was_aborted(self, event: SwitchAborted) -> None:
        self._aborted.add(event.epoch)

    def _fired(self, event: TimerFired) -> None:
        self._waited = True

    HEARS: ClassVar[Mapping[type[Event], Reaction]] = {
        JobSubmitted: noted,
        JobCompleted: noted,
        JobFailed: noted,
        MachineJoined: noted,
        MachineLeft: noted,
        MachineFailed: noted,
        RecordingReady: noted,
        RankStarted: _rank,
        TrainingStarted: _started,
        StandbyAssigned: _assigned,
        MoveRefused: _refused,
        LinkRepair: _asked_to_repair,
        SwitchCommitted: _committed,
        SwitchAborted: _was_aborted,
        TimerFired: _fired,
    }

    # -- settling ----------------------------------------------------------------------------------

    def advance(self) -> bool:
        """One transition, if a trigger of the phase holds."""
        plan, roster = self.plan, self.roster
        trigger = first_trigger(
            TABLE,
            self.phase,
            {
                "enough machines": lambda: 0 < roster.size <= len(roster.idle()),
                "too few again": lambda: len(roster.idle()) < roster.size,
                "all are here": lambda: len(roster.idle()) >= roster.size + self._standbys,
                "waited enough": lambda: self._waited,
                "start again": lambda: nothing_to_keep(roster) and next_crew(roster) is not None,
                "all ranks are up": lambda: self._first_layout() is not None,
                "committed": lambda: plan is not None and roster.settled and roster.epoch >= plan.epoch,
                "aborted start": lambda: (
                    plan is not None and plan.kind == "start" and plan.epoch in self._aborted
                ),
                "aborted": lambda: plan is not None and plan.kind != "start" and plan.epoch in self._aborted,
                "superseded": lambda: plan is not None and self._outdated(plan) and self._next() is not None,
                "change is complete": lambda: self._next() is not None,
            },
        )
        if trigger is None:
            return self._hold()
        self.phase = TABLE[self.phase][trigger]
        match trigger:
            case "enough machines":
                self._waited = False
                self.do(SetTimer("gather", self.now + self.gather))
            case "too few again":
                self.do(CancelTimer("gather"))
            case "all are here" | "waited enough":
                self.do(CancelTimer("gather"))
                self._launch(first_crew(self.roster))
            case "start again":
                crew = next_crew(self.roster)
                assert crew is not None, "everything starts again with enough machines"
                self._launch(crew)
            case "all ranks are up":
                self._say_start()
            case "change is complete" | "superseded":
                if self._changes or roster.settled:
                    self._say_change()
                else:
                    self._say_start()
            case _:
                self.plan = None
        return True

    # -- starting from nothing ---------------------------------------------------------------------

    @property
    def _standbys(self) -> int:
        return self.roster.job.standbys if self.roster.job is not None else 0

    def _launch(self, crew: Iterable[Life]) -> None:
        self.plan = None
        self._changes.clear()
        self._repair = None
        self._groups = {}
        generation = self.roster.generation + 1
        for position, (machine, incarnation) in enumerate(tuple(crew)):
            self.say(
                MachineLaunch(
                    machine=machine,
                    incarnation=incarnation,
                    position=position,
                    world_size=self.roster.size * self.roster.slots,
                    ranks_per_machine=self.roster.slots,
                    generation=generation,
                    record=position < RECORDERS,
                )
            )

    def _hold(self) -> bool:
        """Say once per generation that a fresh start waits for machines."""
        roster = self.roster
        if self.phase in (Phase.IDLE, Phase.GATHERING) or self._held == roster.generation:
            return False
        if not nothing_to_keep(roster):
            return False
        self._held = roster.generation
        lost = next(machine for machine in roster.members if roster.dead(machine))
        incident = incident_id(lost, roster.life(lost))
        reason = (
            f"{lost} was lost before there was anything to keep, and too few machines are left to start again"
        )
        if len([m for m in roster.members if roster.dead(m)]) == roster.size:
            reason = "every machine of the job was lost, and too few others are left to start again"
        if roster.job is not None and roster.job.on_exhausted == "fail":
            self.say(JobFailed(reason=f"{reason}; start the job with more standbys"), incident)
        else:
            self.say(JobHeld(incident=incident, reason=f"{reason}; `trainmover machine` adds one"), incident)
        return True

    # -- layouts -----------------------------------------------------------------------------------

    def _endpoints_of(self, seated: Iterable[Life]) -> tuple[Endpoint, ...] | None:
        """Endpoints by rank, when every rank has one and every machine lives."""
        found: list[Endpoint] = []
        for life in seated:
            slots = self._endpoints.get((life, self.roster.generation), {})
            if life in self.roster.gone or any(slot not in slots for slot in range(self.roster.slots)):
                return None
            found += [slots[slot] for slot in range(self.roster.slots)]
        return tuple(found)

    def _first_layout(self) -> tuple[Endpoint, ...] | None:
        return self._endpoints_of((m, self.roster.life(m) or "") for m in self.roster.members)

    def _due(self) -> dict[str, Change]:
        """The open changes that the next plan makes, by incident.

        Each seat keeps the private state of the seat before it (``guardian_of``), so a machine that
        still works is not replaced together with a neighbour: its move waits for the plan after.
        """
        roster, size = self.roster, self.roster.size
        lost = {i: c for i, c in self._changes.items() if roster.dead(roster.seats[c.seat])}
        due = dict(lost)
        for incident, change in self._changes.items():
            neighbours = {(change.seat - 1) % size, (change.seat + 1) % size}
            if incident not in lost and not neighbours & {other.seat for other in due.values()}:
                due[incident] = change
        return due

    def _seated(self) -> dict[int, Life]:
        """Who sits where after all changes that are due."""
        seated = {seat: (m, self.roster.life(m) or "") for seat, m in self.roster.seats.items()}
        seated.update({change.seat: change.joiner for change in self._due().values()})
        return seated

    def _needs_repair(self) -> bool:
        """A repair is wanted in the epoch that holds, or in one that was to follow it."""
        return self._repair is not None and self._repair[0] >= self.roster.epoch

    def _outdated(self, plan: PlanReady) -> bool:
        """The plan on its way cannot come about, or does not do what is wanted now."""
        lost = any(self.roster.dead(machine) for machine in plan.machines)
        broken = self._repair is not None and self._repair[0] >= plan.epoch
        return lost or broken or plan.base_epoch != self._base_epoch

    @property
    def _base_epoch(self) -> int:
        """Epoch that the next one follows; 0 when nothing of this generation is committed."""
        return self.roster.epoch if self.roster.settled else 0

    def _next(self) -> tuple[Endpoint, ...] | None:
        """Endpoints of the next layout, when there is something to change and all of it lives."""
        roster = self.roster
        if self._changes:
            if not roster.replaceable:
                return None
        elif not self._needs_repair():
            return None
        elif not roster.settled:
            return self._first_layout()
        seated = self._seated()
        if len({machine for machine, _ in seated.values()}) != roster.size:
            return None
        return self._endpoints_of(seated[seat] for seat in sorted(seated))

    def _epoch(self) -> int:
        self.last_epoch = max(self.last_epoch, self.roster.epoch) + 1
        return self.last_epoch

    def _say_start(self) -> None:
        endpoints = self._first_layout()
        assert endpoints is not None, "a start has every endpoint"
        layout = Layout(self._epoch(), self.roster.members, self.roster.slots)
        self._say_plan(layout, 0, "start", (), (), (), endpoints, delta(None, layout, self._groups))

    def _say_change(self) -> None:
        endpoints = self._next()
        assert endpoints is not None, "a change has every endpoint"
        roster, base = self.roster, Layout(self.roster.epoch, self.roster.members, self.roster.slots)
        due = self._due()
        pairs = {base.machines[change.seat]: change.joiner[0] for change in due.values()}
        layout = base.replaced(self._epoch(), pairs)
        incidents = [*due]
        if self._needs_repair() and self._repair is not None and self._repair[1] not in incidents:
            incidents.append(self._repair[1])
        kind: SwitchKind = "repair"
        if pairs:
            kind = "failure" if any(roster.dead(leaver) for leaver in pairs) else "move"
        difference = delta(base, layout, self._groups)
        self._say_plan(
            layout, self._base_epoch, kind, incidents, pairs, pairs.values(), endpoints, difference
        )

    def _say_plan(
        self,
        layout: Layout,
        base: int,
        kind: SwitchKind,
        incidents: Iterable[str],
        leavers: Iterable[str],
        joiners: Iterable[str],
        endpoints: tuple[Endpoint, ...],
        difference: Delta,
    ) -> None:
        incidents = tuple(incidents)
        self.plan = PlanReady(
            epoch=layout.epoch,
            base_epoch=base,
            kind=kind,
            generation=self.roster.generation,
            incidents=incidents,
            machines=layout.machines,
            ranks_per_machine=layout.ranks_per_machine,
            leavers=tuple(leavers),
            joiners=tuple(joiners),
            endpoints=endpoints,
            links_added=_names(difference.added),
            links_dropped=_names(difference.dropped),
            links_total=difference.total,
        )
        self.say(self.plan, incidents[0] if incidents else None)


def _names(links: Iterable[SeatedLink]) -> tuple[LinkName, ...]:
    found = sorted({seated.link for seated in links})
    return tuple(
        LinkName(group=link.group, channel=link.channel, low=link.low, high=link.high) for link in found
    )
