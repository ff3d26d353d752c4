"""Planner: what the next layout is, and which epoch it has.

What lives here: starting everything from nothing (a *generation*), and turning the assignments of
standby and the repairs of health into one layout with a new epoch.  What never lives here: who
failed, which spare is chosen, whether an epoch comes about.

The phases are a table, walked until no trigger holds.  Five rules are behind it.

- *Epochs only grow.*  An epoch that was named once is never named again, whatever became of it.
- *One plan for everything that is open.*  All open assignments (and a repair) go into one layout;
  only the move of a machine that still works waits while a neighbouring seat changes, because
  neighbours keep each other's private state, and while it is all that is left of a state.
- *No plan with a dead machine in it.*  While a machine of the resulting layout is dead, or one of
  its ranks has no endpoint, the planner waits: the missing assignment is on its way.
- *Replicas pause and come back whole.*  Where a seat stays empty (``standby.exhausted``) all seats of its
  data-parallel replica are vacated at once (``replicas``), and the next layout is one of fewer machines; they
  are filled again when there is a joiner for each.
- *Nothing to keep, nothing to repair.*  Until a generation has a committed step and its roles
  (``Roster.replaceable``), or when no member is left that has the state, a failure starts
  everything again with ``generation + 1``: spares are launched like everybody else.

A plan on its way stays as it is while its layout is alive; more assignments wait for its end.
When it has lost a machine, or another epoch was committed under it, it is superseded.

Deciding on a change costs what changes, however large the job: who is up is kept by ``fleet``, the
links come from ``topology.delta``, and ``plans`` makes the event of them.  Which groups there are,
and who has whose state, is what every rank said of itself once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from trainmover.services.core import CancelTimer, Decider, Reaction, SetTimer, incident_id, noted
from trainmover.services.crew import first_crew, next_crew, nothing_to_keep
from trainmover.services.fleet import Fleet
from trainmover.services.phases import TABLE, Change, Next, Phase, by_seat
from trainmover.services.plans import joiner_ranks, plan_of, start_of
from trainmover.services.replicas import paused, together, why_no_pause
from trainmover.services.roster import Life
from trainmover.services.tables import first_trigger
from trainmover.topology import VACANT, Groups, Layout, delta

__all__ = ["GATHER", "TABLE", "Phase", "PlannerCore"]

GATHER = 1.0
"""Seconds that a launch waits for the standbys too, so that machines get seats by name."""


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
        self._exhausted: dict[str, int] = {}
        self._repair: tuple[int, str] | None = None
        self._fleet = Fleet(self.roster)
        self._base: Layout | None = None
        self._held = -1

    # -- inputs ------------------------------------------------------------------------------------

    def _rank(self, event: RankStarted) -> None:
        self._fleet.note(event)

    def _described(self, event: RankDescribed) -> None:
        if self.roster.all_described:  # now, and not in the middle of an incident
            self._groups().links_total(self.roster.size * self.roster.slots, self.roster.slots)

    def _assigned(self, event: StandbyAssigned) -> None:
        if event.generation and event.generation != self.roster.generation:
            return
        known, joiner = self._changes.get(event.incident), (event.joiner, event.joiner_incarnation)
        seat = self.roster.seat_of(event.leaver) if event.position is None else event.position
        seat = known.seat if seat is None and known is not None else seat
        if seat is not None:
            # A spare has one seat to take: an earlier assignment of it was given up.
            others = {i: c for i, c in self._changes.items() if c.joiner != joiner and c.seat != seat}
            self._changes = others | {event.incident: Change(seat, joiner, event.position is not None)}
            self._exhausted.pop(event.incident, None)

    def _not_replaced(self, event: StandbyExhausted) -> None:
        if event.generation == self.roster.generation and event.incident not in self._changes:
            self._exhausted[event.incident] = event.position

    def _refused(self, event: MoveRefused) -> None:
        self._changes.pop(event.incident, None)

    def _asked_to_repair(self, event: LinkRepair) -> None:
        if self._repair is None or event.epoch > self._repair[0]:
            self._repair = (event.epoch, self.heard.incident or incident_id("repair", event.epoch))

    def _committed(self, event: SwitchCommitted) -> None:
        self.last_epoch = max(self.last_epoch, event.epoch)
        for incident, change in list(self._changes.items()):
            vacated = change.seat in self.roster.vacant and not change.back
            if self.roster.is_member(*change.joiner) or vacated:
                del self._changes[incident]
        for incident, seat in list(self._exhausted.items()):
            if not self.roster.dead(self.roster.seats.get(seat, VACANT)):
                del self._exhausted[incident]
        if self.roster.settled:
            _ = self._base_layout().positions  # made now, and not in the middle of an incident

    def _was_aborted(self, event: SwitchAborted) -> None:
        self._aborted.add(event.epoch)

    def _fired(self, event: TimerFired) -> None:
        self._waited = True

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
        plan, roster = self.plan, self.roster
        trigger = first_trigger(
            TABLE,
            self.phase,
            {
                "enough machines": lambda: 0 < roster.size <= roster.idle_count,
                "too few again": lambda: roster.idle_count < roster.size,
                "all are here": lambda: roster.idle_count >= roster.size + self._standbys,
                "waited enough": lambda: self._waited,
                "start again": lambda: nothing_to_keep(roster) and next_crew(roster) is not None,
                "all ranks are up": self._fleet.all_up,
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
                if self._changes or self._exhausted or roster.settled:
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
        self._exhausted.clear()
        self._repair = None
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

    def _due(self) -> dict[str, Change]:
        """The open changes that the next plan makes, by incident.

        Each seat keeps the private state of the seat before it (``guardian_of``), so a machine that
        still works is not replaced together with a neighbour: its move waits for the plan after.  It
        waits as well while a rank of it, or of a seat that changes, has its state from no other seat.
        """
        roster = self.roster
        due = {i: c for i, c in self._changes.items() if roster.dead(roster.seats.get(c.seat, VACANT))}
        due |= self._coming_back()
        seats = {change.seat for change in due.values()}
        for incident, change in self._changes.items():
            neighbours = {roster.next_taken(seat) for seat in seats}
            if incident in due or change.seat in roster.vacant or change.seat in neighbours:
                continue
            if roster.next_taken(change.seat) in seats or (change.seat + 1) % roster.size in seats:
                continue
            if joiner_ranks(roster, {*seats, change.seat}) is not None:
                due[incident] = change
                seats.add(change.seat)
        return due

    def _coming_back(self) -> dict[str, Change]:
        """The open assignments to vacant seats, of replicas that have a living joiner for every seat."""
        roster = self.roster
        open_to = {c.seat: (i, c) for i, c in self._changes.items() if c.joiner not in roster.gone}
        return {
            open_to[seat][0]: open_to[seat][1]
            for unit in (paused(roster) if roster.vacant and self._changes else ())
            if all(seat in open_to for seat in unit)
            for seat in unit
        }

    def _to_vacate(self, due: Mapping[str, Change]) -> frozenset[int] | None:
        """The seats whose replicas pause now; None where something has to be waited for."""
        roster, filled = self.roster, {change.seat for change in due.values()}
        lost = {seat for seat in self._exhausted.values() if seat not in filled}
        lost = {seat for seat in lost if roster.dead(roster.seats.get(seat, VACANT))}
        if not lost:
            return frozenset()
        if why_no_pause(roster, lost):
            return None
        return together(roster, lost) - frozenset(roster.vacant)

    def _needs_repair(self) -> bool:
        """A repair is wanted in the epoch that holds, or in one that was to follow it."""
        return self._repair is not None and self._repair[0] >= self.roster.epoch

    def _outdated(self, plan: PlanReady) -> bool:
        """The plan on its way cannot come about, or does not do what is wanted now."""
        seats, roster = plan.machines, self.roster
        lost = any(seats[seat : seat + 1] == (machine,) for seat, machine in roster.lost())
        lost = lost or any(roster.dead(machine) for machine in plan.joiners)
        broken = self._repair is not None and self._repair[0] >= plan.epoch
        return lost or broken or plan.base_epoch != self._base_epoch

    @property
    def _base_epoch(self) -> int:
        """Epoch that the next one follows; 0 when nothing of this generation is committed."""
        return self.roster.epoch if self.roster.settled else 0

    def _next(self) -> Next | None:
        """What makes the next layout, when something is to change and all of it lives."""
        roster = self.roster
        if self._changes or self._exhausted:
            if not roster.replaceable or not roster.all_described:
                return None
        elif not self._needs_repair():
            return None
        elif not roster.settled:
            return Next({}) if self._fleet.all_up() else None
        due = self._due()
        vacated = self._to_vacate(due)
        if vacated is None or not (due or vacated or self._needs_repair()):
            return None
        due = {incident: change for incident, change in due.items() if change.seat not in vacated}
        joiners = by_seat(due)
        names = {machine for machine, _ in joiners.values()}
        if not roster.full or len(names) != len(joiners):
            return None
        if any(seat not in joiners for name in names for seat in roster.seats_held(name)):
            return None
        leavers = {roster.seats[seat] for seat in (*joiners, *vacated)}
        if not self._fleet.all_up(leavers, joiners):
            return None
        if joiner_ranks(roster, sorted(joiners), vacated) is None:
            return None
        return Next(due, vacated)

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
        change, roster, base = self._next(), self.roster, self._base_layout()
        assert change is not None, "a change has every endpoint"
        joiners, vacated = by_seat(change.due), sorted(change.vacated)
        takers = {seat: machine for seat, (machine, _) in joiners.items()} | dict.fromkeys(vacated, VACANT)
        pairs = {seat: (base.machines[seat], machine) for seat, machine in takers.items()}
        if vacated or any(not leaver for leaver, _ in pairs.values()):
            layout = base.reseated(self._epoch(), takers)
        else:
            layout = base.replaced(self._epoch(), dict(pairs.values()))
        incidents = [*change.due]
        incidents += [i for i, seat in self._exhausted.items() if seat in change.vacated]
        if self._needs_repair() and self._repair is not None and self._repair[1] not in incidents:
            incidents.append(self._repair[1])
        kind: SwitchKind = "repair"
        if vacated:
            kind = "shrink"
        elif pairs:
            leavers = [leaver for leaver, _ in pairs.values()]
            kind = "failure" if any(map(roster.dead, leavers)) else "move" if all(leavers) else "grow"
        self._say_plan(
            plan_of(
                layout,
                base=self._base_epoch,
                kind=kind,
                generation=roster.generation,
                incidents=incidents,
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
