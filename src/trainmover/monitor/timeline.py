"""The timeline: a run as a trace that Perfetto and chrome://tracing open.

What lives here: facts and events turned into Chrome's trace event format (JSON object form).  One
process per machine with one track per slot (steps, void attempts, switches, faults), one for the
incidents with their phases, one for the warm-ups of standbys by role, one for the bus with a track per
speaker.  Times are microseconds
since the first thing that happened.

Source: "Trace Event Format", Google, 2016 (events of phase X, i and M).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmover.events.catalogue import StandbyParked, StandbyWarm
from trainmover.events.envelope import Envelope
from trainmover.monitor.incidents import STAGES, IncidentView, phases_of
from trainmover.monitor.steps import StepFacts
from trainmover.monitor.view import ClusterView

INCIDENTS, BUS, STANDBYS, FIRST_MACHINE = 1, 2, 3, 10
UNTOLD = frozenset({"journal.copy", "journal.entry", "timer.fired"})
"""Events that only services need; they would hide the others."""


def build_timeline(envelopes: Sequence[Envelope], facts: StepFacts) -> dict[str, Any]:
    """The trace of a run; ``json.dump`` it into a file and open that."""
    view = ClusterView()
    for envelope in envelopes:
        view.apply(envelope)
    trace = _Trace(_origin(envelopes, facts))
    _machines(trace, facts)
    trace.process(INCIDENTS, "incidents", 0)
    for track, incident in enumerate(view.incidents.values()):
        _incident(trace, track, incident)
    _standbys(trace, envelopes)
    _bus(trace, envelopes)
    return {"traceEvents": trace.events, "displayTimeUnit": "ms"}


class _Trace:
    def __init__(self, origin: float) -> None:
        self.origin = origin
        self.events: list[dict[str, Any]] = []

    def process(self, pid: int, name: str, order: int) -> None:
        self.events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        self.events.append(
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}
        )

    def track(self, pid: int, tid: int, name: str) -> None:
        self.events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})

    def span(self, pid: int, tid: int, name: str, start: float, end: float, kind: str, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "name": name,
                "cat": kind,
                "pid": pid,
                "tid": tid,
                "ts": self._micros(start),
                "dur": max(1, self._micros(end) - self._micros(start)),
                "args": args,
            }
        )

    def point(self, pid: int, tid: int, name: str, time: float, kind: str, **args: Any) -> None:
        self.events.append(
            {
                "ph": "i",
                "s": "t",
                "name": name,
                "cat": kind,
                "pid": pid,
                "tid": tid,
                "ts": self._micros(time),
                "args": args,
            }
        )

    def _micros(self, time: float) -> int:
        return max(0, round((time - self.origin) * 1e6))


def _origin(envelopes: Sequence[Envelope], facts: StepFacts) -> float:
    times = [envelope.time for envelope in envelopes] + [fact.start for fact in facts.steps]
    return min(times, default=0.0)


def _machines(trace: _Trace, facts: StepFacts) -> None:
    tracks = {(fact.machine, fact.slot) for fact in facts.steps}
    tracks |= {(fact.machine, fact.slot) for fact in facts.voids}
    tracks |= {(fact.machine, fact.slot) for fact in facts.faults}
    numbers = {
        name: number for number, name in enumerate(sorted({m for m, _ in tracks}, key=natural), FIRST_MACHINE)
    }
    for name, number in numbers.items():
        trace.process(number, f"machine {name}", number)
    for name, slot in sorted(tracks):
        trace.track(numbers[name], slot, f"slot {slot}")
    for step in facts.steps:
        trace.span(
            numbers[step.machine],
            step.slot,
            f"step {step.step}",
            step.start,
            step.end,
            "step",
            epoch=step.epoch,
            rank=step.rank,
            loss=step.loss,
            first=step.first,
        )
    for void in facts.voids:
        trace.point(
            numbers[void.machine], void.slot, f"step {void.step} void", void.time, "void", epoch=void.epoch
        )
    for fault in facts.faults:
        trace.point(numbers[fault.machine], fault.slot, fault.spec, fault.time, "fault", step=fault.step)
    for switch in facts.switches:
        if (switch.machine, switch.slot) in tracks:
            trace.span(
                numbers[switch.machine],
                switch.slot,
                f"switch to epoch {switch.epoch}",
                switch.start,
                switch.end,
                "switch",
                step=switch.step,
                copy_seconds=switch.copy_seconds,
                joiner=switch.joiner,
            )


def _incident(trace: _Trace, track: int, incident: IncidentView) -> None:
    reached = [(stage, incident.times[stage]) for stage in STAGES if stage in incident.times]
    if not reached:
        return
    trace.track(INCIDENTS, track, f"{incident.kind} of {incident.machine}")
    name = f"{incident.kind}: {incident.machine} -> {incident.joiner or 'nobody'}"
    trace.span(
        INCIDENTS,
        track,
        name,
        reached[0][1],
        reached[-1][1],
        "incident",
        id=incident.id,
        cause=incident.cause,
        epoch=incident.epoch,
        step=incident.step,
        attempts=incident.attempts,
    )
    for phase in phases_of(incident):
        trace.span(INCIDENTS, track, phase.name, phase.start, phase.end, "phase")


def _standbys(trace: _Trace, envelopes: Sequence[Envelope]) -> None:
    """From the request to be warm in a role to the last slot that is parked in it."""
    begun: dict[tuple[str, str, int, str], float] = {}
    parked: dict[tuple[str, str, int, str], tuple[float, dict[str, float]]] = {}
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, StandbyWarm | StandbyParked):
            key = (event.machine, event.incarnation, event.generation, event.role)
            if isinstance(event, StandbyWarm):
                begun.setdefault(key, envelope.time)
            elif key in begun:
                parked[key] = envelope.time, event.seconds
    if not parked:
        return
    trace.process(STANDBYS, "standbys", 2)
    tracks: dict[str, int] = {}
    for key, (end, seconds) in parked.items():
        machine, _, _, role = key
        if machine not in tracks:
            tracks[machine] = len(tracks)
            trace.track(STANDBYS, tracks[machine], machine)
        name = f"warm {role}" if role else "warm"
        trace.span(STANDBYS, tracks[machine], name, begun[key], end, "warm-up", seconds=seconds)


def _bus(trace: _Trace, envelopes: Sequence[Envelope]) -> None:
    trace.process(BUS, "events", 1)
    tracks: dict[str, int] = {}
    for envelope in envelopes:
        if envelope.type in UNTOLD:
            continue
        speaker = "/".join(envelope.source.split("/")[:2])
        if speaker not in tracks:
            tracks[speaker] = len(tracks)
            trace.track(BUS, tracks[speaker], speaker)
        trace.point(
            BUS,
            tracks[speaker],
            envelope.type,
            envelope.time,
            "event",
            id=envelope.id,
            incident=envelope.incident,
            cause=envelope.cause,
            event=envelope.event.model_dump(mode="json"),
        )


def natural(name: str) -> tuple[str, int]:
    """Sort key that puts m10 after m9."""
    digits = len(name) - len(name.rstrip("0123456789"))
    return (name[: len(name) - digits], int(name[-digits:])) if digits else (name, -1)
