"""Switcher: whether an epoch comes about.

What lives here: the switch as everybody agrees on it, from ``switch.prepare`` to
``switch.committed`` or ``switch.aborted``, and the end of the job.  What never lives here: which
layout (planner), what a rank does to get there.

One switch at a time, and its phases are the table below.  Its rules:

- Only ranks of the *new* layout count, each by itself: prepared when it has its links, adopted
  when it works in the epoch and its state agrees with its replicas.  Reports that come before the
  plan are kept.
- All adopted means committed.  So does a committed step in that epoch (``training.started`` or
  ``training.resumed``): the vote of that step needed every rank, so it proves what a lost report
  would have said.
- A dead member of the new layout, the limit, or a newer plan abort it.  A leaver's death does not.
- A plan that was made on another epoch than the committed one is refused; one that has a machine
  known to be dead is not begun.  For both the planner makes a better one.
- What an earlier life has said of an epoch holds, though this one would not say it.
- What a rank reports costs the same in every job: reports are counted, and looked through when there
  are as many as ranks; of the plan's machines only those are looked at that something changed about.
- Ranks of vacant seats are not waited for.
- When every rank has finished all its steps the job is completed, whatever else was on its way.  It
  ended well when the ranks that had the same state in the first steps have the same at the end.  Who they are
  may be heard late: where digests differ, the end waits a little for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from trainmover.events.catalogue import (
    MAX_TEXT,
    Event,
    JobCompleted,
    JobFailed,
    JobSubmitted,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    PlanReady,
    RankDescribed,
    RankFinished,
    StandbyAssigned,
    SwitchAborted,
    SwitchAdopted,
    SwitchCommitted,
    SwitchPrepare,
    SwitchPrepared,
    TimerFired,
    TrainingResumed,
    TrainingStarted,
)
from trainmover.services.core import CancelTimer, Decider, Reaction, SetTimer, noted
from trainmover.services.tables import Table, first_trigger, mermaid
from trainmover.topology import Layout

LIMIT = 60.0
"""Seconds from ``switch.prepare`` to the last ``switch.adopted``."""

DESCRIBED_LIMIT = 10.0
"""Seconds for which a job's end waits for descriptions of ranks that are still on their way."""


class Switch(StrEnum):
    """Phase of the switch."""

    IDLE = "idle"
    PREPARING = "preparing"
    ADOPTING = "adopting"
    COMPLETED = "completed"


TABLE: Table[Switch] = {
    Switch.IDLE: {
        "all finished": Switch.COMPLETED,
        "stale plan": Switch.IDLE,
        "plan": Switch.PREPARING,
    },
    Switch.PREPARING: {
        "all finished": Switch.COMPLETED,
        "ended before": Switch.IDLE,
        "all adopted": Switch.IDLE,
        "member failed": Switch.IDLE,
        "superseded": Switch.IDLE,
        "limit": Switch.IDLE,
        "all prepared": Switch.ADOPTING,
    },
    Switch.ADOPTING: {
        "all finished": Switch.COMPLETED,
        "ended before": Switch.IDLE,
        "all adopted": Switch.IDLE,
        "member failed": Switch.IDLE,
        "superseded": Switch.IDLE,
        "limit": Switch.IDLE,
    },
    Switch.COMPLETED: {},
}


class SwitcherCore(Decider):
    """Carries one switch at a time through its phases; see the module."""

    name: ClassVar[str] = "switcher"
    SAYS: ClassVar[tuple[type[Event], ...]] = (SwitchPrepare, SwitchCommitted, SwitchAborted, JobCompleted)

    def __init__(self, limit: float = LIMIT) -> None:
        super().__init__()
        self.limit = limit
        self.phase = Switch.IDLE
        self.plan: PlanReady | None = None
        self._next: PlanReady | None = None
        self._generation = 0
        self._done = 0
        self._ranks: list[int] = []
        self._prepared: dict[int, dict[int, str]] = {}
        self._adopted: dict[int, dict[int, SwitchAdopted]] = {}
        self._trained: dict[int, int] = {}
        self._expired: set[int] = set()
        self._late = False
        self._finished: dict[int, RankFinished] = {}
        self._layout = Layout(0, (), 1)
        self._lost: set[str] = set()

    # -- inputs ------------------------------------------------------------------------------------

    def _launched(self, event: MachineLaunch) -> None:
        if self.roster.generation > self._generation:
            self._generation = self.roster.generation
            self._finished.clear()

    def _planned(self, event: PlanReady) -> None:
        newest = max((p.epoch for p in (self.plan, self._next) if p is not None), default=0)
        if event.epoch > max(newest, self._done):
            self._next = event

    def _was_ended(self, event: SwitchCommitted | SwitchAborted) -> None:
        """What an earlier life has said of an epoch holds, though this one would not say it."""
        self._done = max(self._done, event.epoch)
        if self._next is not None and self._next.epoch <= self._done:
            self._next = None

    def _was_prepared(self, event: SwitchPrepared) -> None:
        if event.epoch > self._done:
            self._prepared.setdefault(event.epoch, {})[event.rank] = event.machine

    def _was_adopted(self, event: SwitchAdopted) -> None:
        if event.epoch > self._done:
            self._adopted.setdefault(event.epoch, {})[event.rank] = event

    def _stepped(self, event: TrainingStarted | TrainingResumed) -> None:
        if event.epoch > self._done:
            self._trained[event.epoch] = event.step

    def _rank_finished(self, event: RankFinished) -> None:
        self._finished[event.rank] = event
        if self._all_finished() and self._unclear():
            self.do(SetTimer("described", self.now + DESCRIBED_LIMIT))

    def _fired(self, event: TimerFired) -> None:
        if event.name == "described":
            self._late = True
        else:
            self._expired.add(int(event.name.removeprefix("limit:")))

    HEARS: ClassVar[Mapping[type[Event], Reaction]] = {
        JobSubmitted: noted,
        JobCompleted: noted,
        JobFailed: noted,
        MachineJoined: noted,
        MachineLeft: noted,
        MachineFailed: noted,
        StandbyAssigned: noted,
        RankDescribed: noted,
        MachineLaunch: _launched,
        PlanReady: _planned,
        SwitchCommitted: _was_ended,
        SwitchAborted: _was_ended,
        SwitchPrepared: _was_prepared,
        SwitchAdopted: _was_adopted,
        TrainingStarted: _stepped,
        TrainingResumed: _stepped,
        RankFinished: _rank_finished,
        TimerFired: _fired,
    }

    # -- settling ----------------------------------------------------------------------------------

    def advance(self) -> bool:
        """One transition, if a trigger of the phase holds."""
        self._look_at_touched()
        plan, coming = self.plan, self._next
        trigger = first_trigger(
            TABLE,
            self.phase,
            {
                "all finished": lambda: self._all_finished() and not self._unclear(),
                "stale plan": lambda: coming is not None and bool(self._why_stale(coming)),
                "plan": lambda: coming is not None and not self._dead(coming),
                "ended before": lambda: plan is not None and plan.epoch <= self._done,
                "all adopted": lambda: plan is not None and self._all_adopted(plan),
                "member failed": lambda: plan is not None and bool(self._lost),
                "superseded": lambda: coming is not None,
                "limit": lambda: plan is not None and plan.epoch in self._expired,
                "all prepared": lambda: plan is not None and self._all_prepared(plan),
            },
        )
        if trigger is None:
            return False
        self.phase = TABLE[self.phase][trigger]
        match trigger:
            case "all finished":
                self._complete()
            case "plan":
                assert coming is not None, "a plan is there to be prepared"
                self._prepare(coming)
            case "stale plan":
                assert coming is not None, "a stale plan is one"
                self._next = None
                self._say_aborted(coming, self._why_stale(coming))
            case "all adopted":
                assert plan is not None, "a switch has a plan"
                self._commit(plan)
            case "ended before":
                assert plan is not None, "a switch has a plan"
                self._close(plan)
            case "member failed" | "superseded" | "limit":
                assert plan is not None, "a switch has a plan"
                self._abort(plan, trigger)
            case _:
                pass
        return True

    def _why_stale(self, plan: PlanReady) -> str:
        """Why a plan was made for what does not hold any more; empty when it was not."""
        roster = self.roster
        if plan.generation < roster.generation:
            return f"it is of generation {plan.generation}, but {roster.generation} was launched"
        if plan.generation > roster.generation:
            return ""
        base = roster.epoch if roster.settled else 0
        return "" if plan.base_epoch == base else f"it follows epoch {plan.base_epoch}, but {base} holds"

    def _dead(self, plan: PlanReady) -> list[str]:
        return [machine for machine in plan.machines if self.roster.dead(machine)]

    def _look_at_touched(self) -> None:
        """Which machines of the switch's layout are dead, brought up to date where anything changed."""
        for machine in self.roster.take_touched():
            if machine in self._layout.positions and self.roster.dead(machine):
                self._lost.add(machine)
            else:
                self._lost.discard(machine)

    def _unprepared(self, plan: PlanReady) -> list[int]:
        return self._missing(self._prepared.get(plan.epoch, {}))

    def _unadopted(self, plan: PlanReady) -> list[int]:
        adopted = self._adopted.get(plan.epoch, {})
        return self._missing({rank: event.machine for rank, event in adopted.items()})

    def _missing(self, said: Mapping[int, str]) -> list[int]:
        """Ranks of the layout that nobody spoke for, or another machine than the one that they sit on."""
        layout = self._layout
        return [rank for rank in self._ranks if said.get(rank) != layout.machine_of(rank)]

    def _all_prepared(self, plan: PlanReady) -> bool:
        said = self._prepared.get(plan.epoch, {})
        return len(said) >= len(self._ranks) and not self._unprepared(plan)

    def _all_adopted(self, plan: PlanReady) -> bool:
        if plan.epoch in self._trained:
            return True
        said = self._adopted.get(plan.epoch, {})
        return len(said) >= len(self._ranks) and not self._unadopted(plan)

    # -- one switch --------------------------------------------------------------------------------

    def _prepare(self, plan: PlanReady) -> None:
        self.plan, self._next = plan, None
        self._layout, self._lost = Layout(plan.epoch, plan.machines, plan.ranks_per_machine), set()
        self._ranks = self._layout.present
        self.do(SetTimer(f"limit:{plan.epoch}", self.now + self.limit))
        self.say(
            SwitchPrepare(
                epoch=plan.epoch,
                kind=plan.kind,
                generation=plan.generation,
                incidents=plan.incidents,
                machines=plan.machines,
                ranks_per_machine=plan.ranks_per_machine,
                leavers=plan.leavers,
                joiners=plan.joiners,
                endpoints=plan.endpoints,
                endpoint_ranks=plan.endpoint_ranks,
                limit_seconds=self.limit,
                joiner_ranks=plan.joiner_ranks,
            ),
            _incident(plan),
        )

    def _commit(self, plan: PlanReady) -> None:
        steps = [adopted.step for adopted in self._adopted.get(plan.epoch, {}).values()]
        step = max(steps) if steps else self._trained[plan.epoch]
        self._close(plan)
        self.say(
            SwitchCommitted(
                epoch=plan.epoch,
                kind=plan.kind,
                incidents=plan.incidents,
                machines=plan.machines,
                leavers=plan.leavers,
                joiners=plan.joiners,
                step=step,
                generation=plan.generation,
            ),
            _incident(plan),
        )

    def _abort(self, plan: PlanReady, trigger: str) -> None:
        match trigger:
            case "member failed":
                reason = f"{', '.join(self._dead(plan))} failed before the epoch was committed"
            case "superseded":
                reason = f"epoch {self._next.epoch if self._next else '?'} takes its place"
            case _:
                reason = self._what_is_missing(plan)
        self._close(plan)
        self._say_aborted(plan, reason)

    def _what_is_missing(self, plan: PlanReady) -> str:
        unprepared, unadopted = self._unprepared(plan), self._unadopted(plan)
        what, ranks = ("prepared", unprepared) if unprepared else ("adopted", unadopted)
        names = ", ".join(f"{rank} ({self._layout.machine_of(rank)})" for rank in ranks[:16])
        return f"not {what} within {self.limit:g} s: rank {names}{' and more' if len(ranks) > 16 else ''}"

    def _say_aborted(self, plan: PlanReady, reason: str) -> None:
        self._done = max(self._done, plan.epoch)
        self.say(
            SwitchAborted(epoch=plan.epoch, incidents=plan.incidents, reason=reason[:MAX_TEXT]),
            _incident(plan),
        )

    def _close(self, plan: PlanReady) -> None:
        """Forget what belongs to this epoch and earlier ones."""
        self.plan = None
        self._done = max(self._done, plan.epoch)
        self.do(CancelTimer(f"limit:{plan.epoch}"))
        for facts in (self._prepared, self._adopted, self._trained):
            for epoch in [epoch for epoch in facts if epoch <= plan.epoch]:
                del facts[epoch]

    # -- the end of the job ------------------------------------------------------------------------

    def _all_finished(self) -> bool:
        roster, finished = self.roster, self._finished
        if not 0 < roster.taken * roster.slots <= len(finished):
            return False
        vacant = frozenset(roster.vacant)
        ranks = (rank for rank in range(roster.size * roster.slots) if rank // roster.slots not in vacant)
        return all(rank in finished for rank in ranks)

    def _unclear(self) -> bool:
        """The digests differ, and who had the same state in the first steps is not all known yet."""
        if self._late or self.roster.all_described:
            return False
        return not self.roster.described.agree(self._digests())

    def _digests(self) -> dict[int, str]:
        """What the ranks of taken seats ended with."""
        vacant, slots = self.roster.vacant, self.roster.slots
        finished = {rank: said for rank, said in self._finished.items() if rank // slots not in vacant}
        return {rank: said.digest for rank, said in sorted(finished.items())}

    def _complete(self) -> None:
        if self.plan is not None:
            self.do(CancelTimer(f"limit:{self.plan.epoch}"))
        digests = self._digests()
        self.say(
            JobCompleted(
                steps=max(self._finished[rank].step for rank in digests),
                digest=_digest_of(list(digests.values())),
                identical=self.roster.described.agree(digests),
            )
        )


def _digest_of(digests: list[str]) -> str:
    """One digest for all ranks: theirs where it is the same, else one over theirs, by rank."""
    if len(set(digests)) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _incident(plan: PlanReady) -> str | None:
    return plan.incidents[0] if plan.incidents else None


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    return mermaid(TABLE, Switch.IDLE)
