"""The report: what a run came to, from its event log and what its ranks wrote down.

What lives here: the figures of ``report.json`` and how each is computed.  Pure: facts in, report
out; reading and writing files is the caller's.

Definitions, the same for failures and moves:

* A step is *committed* at the earliest time at which any rank wrote it down.
* The *epoch* of an incident is the one that ended it.  The last step before is the last one
  committed in an earlier epoch, the first after is the first one that the new epoch committed.
  ``downtime_seconds`` is the time between these two commits, so it holds one ordinary step, too.
* ``detect`` runs from the fault (as the rank that carried it out wrote; else the first sign of it)
  to ``machine.failed``; ``plan`` to ``switch.prepare``; ``prepare`` to the last rank's links;
  ``copy`` is the longest that any rank took for the state, ``switch`` the longest that a stayer
  took for going over (agreeing at the boundary and exchanging links, without the copy).
* ``steps_lost`` counts committed steps that had to be done again: 0, unless the job had to start
  from nothing or to go back to a checkpoint.  ``attempts_void`` counts steps whose attempt was thrown
  away before it was committed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from trainmover.events.envelope import Envelope
from trainmover.monitor.incidents import IncidentView
from trainmover.monitor.steps import StepFact, StepFacts
from trainmover.monitor.view import ClusterView, Membership

SETTLED_STEPS = 3
"""A stayer's memory after a switch is looked at after this many steps of the new epoch."""


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """One incident of ``report.json``; what never happened is None."""

    id: str
    kind: str
    machine: str
    joiner: str | None
    step: int | None
    downtime_seconds: float | None
    downtime_steps: float | None
    steps_lost: int
    attempts_void: int
    phases: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Report:
    """``report.json``; ``problems`` is for the reader of the terminal and not in the file.

    ``recordings`` are the bytes of what spares are warmed with, by role.  ``memberships`` tells who trained
    from which step on; ``reduced_steps`` counts the steps that were done while seats were vacant.  ``state``
    says what became of state that no other machine has (``policy``), and what a loss would have cost.
    """

    seed: int
    steps: int
    digest: str | None
    losses: list[float | None]
    median_step_seconds: float | None
    joiner_first_step_ratio: float | None
    stayer_peak_memory_growth: float | None
    incidents: list[IncidentReport]
    recordings: dict[str, int] = field(default_factory=dict)
    memberships: list[dict[str, Any]] = field(default_factory=list)
    reduced_steps: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """What goes into the file."""
        found = asdict(self)
        del found["problems"]
        return found


def build_report(envelopes: Iterable[Envelope], facts: StepFacts) -> Report:
    """The report of a run from its log (in order) and its step files."""
    view = ClusterView()
    for envelope in envelopes:
        view.apply(envelope)
    problems = _conflicts(facts.steps)
    if view.identical is False:
        problems.append("the replicas ended with different digests")
    typical = _median_step(facts.steps)
    over = [incident for incident in view.incidents.values() if incident.state != "refused"]
    losses = _losses(facts.steps)
    steps = view.steps if view.steps is not None else len(losses)
    return Report(
        seed=view.submitted.seed if view.submitted is not None else 0,
        steps=steps,
        digest=view.digest or None,
        losses=losses,
        median_step_seconds=typical,
        joiner_first_step_ratio=_worst(_first_step_ratio(item, facts.steps, typical) for item in over),
        stayer_peak_memory_growth=_worst(_memory_growth(item, facts.steps) for item in over),
        incidents=[_incident(item, facts, typical) for item in over],
        recordings=view.roles.sizes,
        memberships=[asdict(membership) for membership in view.memberships],
        state=view.protection.summary(),
        reduced_steps=sum(last - first for first, last in reduced(view.memberships, steps)),
        problems=problems,
    )


def reduced(memberships: Sequence[Membership], steps: int) -> list[tuple[int, int]]:
    """The steps that were done while seats were vacant: first, and the one after the last, of each stretch.

    Args:
        memberships: in the order of the switches; each holds until the next.
        steps: number of steps of the run.
    """
    found: list[tuple[int, int]] = []
    ends = [membership.step for membership in memberships[1:]] + [steps]
    # A job that failed before its first epoch has no membership, only an end.
    for membership, end in zip(memberships, ends, strict=False):
        if membership.present == membership.seats or end <= membership.step:
            continue
        if found and found[-1][1] == membership.step:
            found[-1] = (found[-1][0], end)
        else:
            found.append((membership.step, end))
    return found


def _median_step(steps: Sequence[StepFact]) -> float | None:
    """Median over the lowest rank's steps that are nobody's first."""
    usual = [fact for fact in steps if not fact.first]
    if not usual:
        return None
    lowest = min(fact.rank for fact in usual)
    return median(fact.seconds for fact in usual if fact.rank == lowest)


def _losses(steps: Sequence[StepFact]) -> list[float | None]:
    """Loss by step, of the lowest rank that wrote one; of its last commit when there are several."""
    best: dict[int, StepFact] = {}
    for fact in steps:
        known = best.get(fact.step)
        if known is None or fact.rank <= known.rank:
            best[fact.step] = fact
    found: list[float | None] = [None] * (max(best, default=-1) + 1)
    for step, fact in best.items():
        if fact.loss is not None and math.isfinite(fact.loss):
            found[step] = fact.loss
    return found


def _conflicts(steps: Sequence[StepFact]) -> list[str]:
    """Steps that the same rank committed with different losses: the bytes were not kept."""
    seen: dict[tuple[int, int], set[float]] = {}
    for fact in steps:
        if fact.loss is not None and not math.isnan(fact.loss):
            seen.setdefault((fact.step, fact.rank), set()).add(fact.loss)
    return [
        f"rank {rank} committed step {step} with different losses: {', '.join(map(repr, sorted(losses)))}"
        for (step, rank), losses in sorted(seen.items())
        if len(losses) > 1
    ]


def _incident(incident: IncidentView, facts: StepFacts, typical: float | None) -> IncidentReport:
    before, after = _around(incident, facts.steps)
    start = fault_time(incident, facts)
    downtime = None if after is None else after - (before if before is not None else start)
    return IncidentReport(
        id=incident.id,
        kind=incident.outcome,
        machine=incident.machine,
        joiner=incident.joiner,
        step=incident.step,
        downtime_seconds=downtime,
        downtime_steps=downtime / typical if downtime is not None and typical else None,
        steps_lost=len(_committed_again(incident, facts)),
        attempts_void=len(_made_void(incident, facts, start)),
        phases=_phases(incident, start),
    )


def fault_time(incident: IncidentView, facts: StepFacts) -> float:
    """When the trouble began: as the rank that carried the fault out wrote, else the first sign."""
    opened = incident.times.get("opened", 0.0)
    detected = incident.times.get("detected", opened)
    if incident.kind == "failure":
        times = [
            fact.time
            for fact in facts.faults
            if fact.machine == incident.machine
            and fact.time <= detected
            and fact.spec.startswith(("kill:", "stop:"))
        ]
        if times:
            return max(times)
    return opened


def _around(incident: IncidentView, steps: Sequence[StepFact]) -> tuple[float | None, float | None]:
    """Commit times of the last step before and of the first step after an incident."""
    epoch = incident.epoch
    if epoch is None or ("committed" not in incident.times and not incident.restart):
        return None, None
    goes_on = incident.step or 0
    earliest: dict[int, float] = {}
    after: float | None = None
    for fact in steps:
        if fact.epoch < epoch and not _too_late(incident, fact):
            earliest[fact.step] = min(fact.end, earliest.get(fact.step, fact.end))
        elif fact.epoch >= epoch and fact.step >= goes_on:
            after = fact.end if after is None else min(after, fact.end)
    return max(earliest.values(), default=None), after


def _committed_again(incident: IncidentView, facts: StepFacts) -> set[int]:
    """Steps of an earlier epoch that the incident's epoch did once more."""
    goes_on = incident.step
    if incident.epoch is None or goes_on is None:
        return set()
    return {
        fact.step
        for fact in facts.steps
        if fact.epoch < incident.epoch and fact.step >= goes_on and not _too_late(incident, fact)
    }


def _too_late(incident: IncidentView, fact: StepFact) -> bool:
    """True for what a machine that was declared dead wrote afterwards, when it woke up."""
    detected = incident.times.get("detected")
    if incident.kind != "failure" or detected is None or fact.machine != incident.machine:
        return False
    return fact.epoch < (incident.epoch or 0) and fact.end > detected


def _made_void(incident: IncidentView, facts: StepFacts, start: float) -> set[int]:
    """Steps whose attempt was written off on the way to the incident's epoch."""
    if incident.epoch is None:
        return set()
    return {
        fact.step
        for fact in facts.voids
        # The attempt is written off when the new epoch is there already, or before.
        if fact.epoch <= incident.epoch and start <= fact.time <= incident.times.get("resumed", math.inf)
    }


def _phases(incident: IncidentView, start: float) -> dict[str, float | None]:
    detected = incident.times.get("detected")
    detect = None if detected is None else max(0.0, detected - start)
    if incident.restart:
        launch = incident.between("detected", "assigned")
        again = incident.between("assigned", "resumed")
        return {"detect": detect, "plan": launch, "prepare": again, "copy": None, "switch": None}
    adopted = incident.adopted.values()
    # A joiner goes over as soon as it is prepared and then waits for the boundary: what the switch
    # costs is what it costs a stayer.
    stayers = [event for event in adopted if event.machine != incident.joiner] or list(adopted)
    return {
        "detect": detect,
        "plan": incident.between("detected", "preparing"),
        "prepare": incident.between("preparing", "prepared"),
        "copy": max((event.copy_seconds for event in adopted), default=None),
        "switch": max((event.switch_seconds for event in stayers), default=None),
    }


def _first_step_ratio(
    incident: IncidentView, steps: Sequence[StepFact], typical: float | None
) -> float | None:
    if incident.restart or incident.epoch is None or not typical:
        return None
    firsts = [
        fact.seconds
        for fact in steps
        if fact.first and fact.machine == incident.joiner and fact.epoch == incident.epoch
    ]
    return max(firsts) / typical if firsts else None


def _memory_growth(incident: IncidentView, steps: Sequence[StepFact]) -> float | None:
    """Largest relative growth of any stayer's peak memory from before the switch to just after."""
    if incident.restart or incident.epoch is None or incident.step is None:
        return None
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for fact in steps:
        if fact.epoch < incident.epoch:
            before[fact.pid] = max(fact.rss, before.get(fact.pid, 0))
        elif fact.step < incident.step + SETTLED_STEPS:
            after[fact.pid] = max(fact.rss, after.get(fact.pid, 0))
    return _worst(after[pid] / before[pid] - 1.0 for pid in after if before.get(pid))


def _worst(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)
