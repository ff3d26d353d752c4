"""Planner: what the next layout is, and which epoch it has.

What lives here: starting everything from nothing (a *generation*), and turning the assignments of
standby and the repairs of health into one layout with a new epoch.  What never lives here: who
failed, which spare is chosen, whether an epoch comes about.

The phases are a table, walked until no trigger holds.  Two rules are behind it; what is to change, and
what of it goes into one plan, is asked of ``changes``, which has rules of its own.

- *Epochs only grow.*  An epoch that was named once is never named again, whatever became of it.
- *Nothing to keep, nothing to repair.*  Until a generation has a committed step and its roles
  (``Roster.replaceable``), or when no member is left that has the state, a failure starts
  everything again with ``generation + 1``: spares are launched like everybody else.

A plan on its way stays as it is while its layout is alive; more assignments wait for its end.
When it has lost a machine, or another epoch was committed under it, it is superseded.  Where plan after plan
is given up, the next one waits a little, and ever longer.

Deciding on a change costs what changes, however large the job: who is up is kept by ``fleet``, the
links come from ``topology.delta``, and ``plans`` makes the event of them.  Which groups there are,
and who has whose state, is what every rank said of itself once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import ClassVar

from trainmover.events.catalogue import (
    CheckpointSaved,
    Endpoint,
    Event,
    JobCompleted,
    JobFailed,
    JobHeld,
    JobSubmitted,
    LinkRepair,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    MirrorFailed,
    MirrorWhole,
    MoveRefused,
    PlanReady,
    RankDescribed,
    RankStarted,
    RecordingFailed,
    RecordingReady,
    RolesFound,
    StandbyAssigned,
    StandbyExhausted,
    SwitchAborted,
    SwitchCommitted,
    SwitchKind,
    TimerFired,
    TrainingStarted,
)
from trainmover.services.changes import Changes, by_seat
from trainmover.services.core import CancelTimer, Decider, Reaction, SetTimer, incident_id, noted
from trainmover.services.crew import first_crew, next_crew, nothing_to_keep
from trainmover.services.fleet import Fleet
from trainmover.services.plans import joiner_ranks, plan_of, start_of
from trainmover.services.roster import Life
from trainmover.services.tables import Table, first_trigger
from trainmover.topology import VACANT, Groups, Layout, delta

GATHER = 1.0
"""Seconds that a launch waits for the standbys too, so that machines get seats by name."""

AT_ONCE = 3
"""Plans in a row that are given up, after each of which the next one is made at once."""

REST, REST_MOST = 0.25, 30.0
"""Seconds before the one after that; twice as long each further time."""


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
        "change is complete": Phase.PLANNED,
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
        self._fleet = Fleet(self.roster)
        self._changes = Changes(self.roster, self._fleet)
        self._base: Layout | None = None
        self._held = -1
        self._in_vain = 0
        self._resting = False

    # -- inputs ------------------------------------------------------------------------------------

    def _rank(self, event: RankStarted) -> None:
        self._fleet.note(event)

    def _described(self, event: RankDescribed) -> None:
        if self.roster.all_described:  # now, and not in the middle of an incident
            self._groups().links_total(self.roster.size * self.roster.slots, self.roster.slots)

    def _assigned(self, event: StandbyAssigned) -> None:
        self._changes.assigned(event)

    def _not_replaced(self, event: StandbyExhausted) -> None:
        self._changes.exhausted(event)

    def _refused(self, event: MoveRefused) -> None:
        self._changes.refused(event.incident)

    def _asked_to_repair(self, event: LinkRepair) -> None:
        self._changes.repair(event, self.heard.incident or incident_id("repair", event.epoch))

    def _committed(self, event: SwitchCommitted) -> None:
        self.last_epoch = max(self.last_epoch, event.epoch)
        self._go_on()
        self._changes.committed()
        if self.roster.settled:
            _ = self._base_layout().positions  # made now, and not in the middle of an incident

    def _was_aborted(self, event: SwitchAborted) -> None:
        self._aborted.add(event.epoch)
        if self.plan is None or self.plan.epoch != event.epoch:
            return
        self._in_vain += 1
        if self._in_vain >= AT_ONCE:
            # Somebody knows something else (a service that lost events, say): what is said twice a
            # millisecond helps nobody.
            self._resting = True
            rest = min(REST_MOST, REST * 2 ** min(self._in_vain - AT_ONCE, 16))
            self.do(SetTimer("rest", self.now + rest))

    def _fired(self, event: TimerFired) -> None:
        if event.name == "rest":
            self._resting = False
        else:
            self._waited = True

    def _go_on(self) -> None:
        """The next plan has another base: what was in vain is over."""
        self._in_vain = 0
        if self._resting:
            self._resting = False
            self.do(CancelTimer("rest"))

    HEARS: ClassVar[Mapping[type[Event], Reaction]] = {
        JobSubmitted: noted,
        JobCompleted: noted,
        JobFailed: noted,
        JobHeld: noted,
        CheckpointSaved: noted,
        MirrorWhole: noted,
        MirrorFailed: noted,
        MachineJoined: noted,
        MachineLeft: noted,
        MachineFailed: noted,
        RankDescribed: _described,
        RolesFound: noted,
        RecordingReady: noted,
        RecordingFailed: noted,
        RankStarted: _rank,
        TrainingStarted: noted,
        StandbyAssigned: _assigned,
        StandbyExhausted: _not_replaced,
        MoveRefused: _refused,
        LinkRepair: _asked_to_repair,
        SwitchCommitted: _committed,
        SwitchAborted: _was_aborted,
        TimerFired: _fired,
    }

    # -- settling ----------------------------------------------------------------------------------

    def advance(self) -> bool:
        """One transition, if a trigger of the phase holds."""
        self._fleet.refresh()
        plan, roster, changes = self.plan, self.roster, self._changes
        trigger = first_trigger(
            TABLE,
            self.phase,
            {
                "enough machines": lambda: 0 < roster.size <= roster.idle_count,
                "too few again": lambda: roster.idle_count < roster.size,
                "all are here": lambda: roster.idle_count >= roster.size + self._standbys,
                "waited enough": lambda: self._waited,
                "start again": lambda: nothing_to_keep(roster) and next_crew(roster) is not None,
                "all ranks are up": lambda: not self._resting and self._fleet.all_up(),
                "committed": lambda: plan is not None and roster.settled and roster.epoch >= plan.epoch,
                "aborted start": lambda: (
                    plan is not None and plan.kind == "start" and plan.epoch in self._aborted
                ),
                "aborted": lambda: plan is not None and plan.kind != "start" and plan.epoch in self._aborted,
                "superseded": lambda: (
                    plan is not None and changes.outdated(plan) and changes.next() is not None
                ),
                "change is complete": lambda: not self._resting and changes.next() is not None,
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
                if self._changes.of_seats or roster.settled:
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
        self._go_on()
        self._changes.clear()
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
                    record=True,
                )
            )

    def _hold(self) -> bool:
        """Say that a fresh start waits for machines: once, as long as it does."""
        roster = self.roster
        said = self._held == roster.generation
        if self.phase is Phase.IDLE:
            return not said and self._hold_unlaunched()
        if self.phase is Phase.GATHERING:
            return False
        if not nothing_to_keep(roster):
            # What was held may have gone on, and may be held again.
            self._held = -1 if said else self._held
            return False
        if said:
            return False
        self._held = roster.generation
        _, lost = roster.lost()[0]
        incident = incident_id(lost, roster.life(lost))
        what = "and its state with it" if roster.replaceable else "before there was anything to keep"
        reason = f"{lost} was lost {what}, and too few machines are left to start again"
        if len(roster.lost()) == roster.taken:
            reason = "every machine of the job was lost, and too few others are left to start again"
        if roster.job is not None and roster.job.on_exhausted == "fail":
            self.say(JobFailed(reason=f"{reason}; start the job with more standbys"), incident)
        else:
            self.say(JobHeld(incident=incident, reason=f"{reason}; `trainmover machine` adds one"), incident)
        return True

    def _hold_unlaunched(self) -> bool:
        """Machines were lost before the first launch: who waits for it should know."""
        roster = self.roster
        if not roster.gone or roster.idle_count >= roster.size:
            return False
        self._held = roster.generation
        machine, life = min(roster.gone)
        reason = (
            f"{machine} was lost before the first launch, and {roster.idle_count} machines are too few for "
            f"{roster.size}: more are needed; `trainmover machine` adds one"
        )
        incident = incident_id(machine, life)
        self.say(JobHeld(incident=incident, reason=reason), incident)
        return True

    # -- layouts -----------------------------------------------------------------------------------

    def _groups(self) -> Groups:
        """The groups of all ranks; none before everybody told of his."""
        roster = self.roster
        return roster.described.groups(roster.size * roster.slots) if roster.all_described else Groups()

    def _base_layout(self) -> Layout:
        """The layout of the members; the same object until they change."""
        epoch, members, slots = self.roster.epoch, self.roster.members, self.roster.slots
        if self._base is None or self._base.machines is not members or self._base.epoch != epoch:
            self._base = Layout(epoch, members, slots)
        return self._base

    def _epoch(self) -> int:
        self.last_epoch = max(self.last_epoch, self.roster.epoch) + 1
        return self.last_epoch

    def _say_start(self) -> None:
        layout = Layout(self._epoch(), self.roster.members, self.roster.slots)
        self._say_plan(
            plan_of(
                layout,
                base=0,
                kind="start",
                generation=self.roster.generation,
                incidents=(),
                changes={},
                change=start_of(layout, self._groups()),
                endpoint_of=self._endpoints({}),
            )
        )

    def _say_change(self) -> None:
        change, roster, base = self._changes.next(), self.roster, self._base_layout()
        assert change is not None, "a change has every endpoint"
        joiners, vacated = by_seat(change.due), sorted(change.vacated)
        takers = {seat: machine for seat, (machine, _) in joiners.items()} | dict.fromkeys(vacated, VACANT)
        pairs = {seat: (base.machines[seat], machine) for seat, machine in takers.items()}
        if vacated or any(not leaver for leaver, _ in pairs.values()):
            layout = base.reseated(self._epoch(), takers)
        else:
            layout = base.replaced(self._epoch(), dict(pairs.values()))
        kind: SwitchKind = "repair"
        if vacated:
            kind = "shrink"
        elif pairs:
            leavers = [leaver for leaver, _ in pairs.values()]
            kind = "failure" if any(map(roster.dead, leavers)) else "move" if all(leavers) else "grow"
        self._say_plan(
            plan_of(
                layout,
                base=self._changes.base_epoch,
                kind=kind,
                generation=roster.generation,
                incidents=self._changes.incidents(change),
                changes=pairs,
                change=delta(base, layout, self._groups(), seats=takers),
                endpoint_of=self._endpoints(joiners),
                joiner_ranks=joiner_ranks(roster, sorted(joiners), vacated) or (),
            )
        )

    def _endpoints(self, joiners: Mapping[int, Life]) -> Callable[[int], Endpoint]:
        """Where a rank of a layout listens that has these joiners."""
        roster, fleet = self.roster, self._fleet

        def endpoint_of(rank: int) -> Endpoint:
            seat, slot = divmod(rank, roster.slots)
            machine = roster.seats[seat]
            return fleet.at(joiners.get(seat) or (machine, roster.life(machine) or ""), seat, slot)

        return endpoint_of

    def _say_plan(self, plan: PlanReady) -> None:
        self.plan = plan
        self.say(plan, plan.incidents[0] if plan.incidents else None)
