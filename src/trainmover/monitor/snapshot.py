"""A view as plain data: what the page, ``trainmover status --json`` and other programs get.

What lives here: pure functions from a view to dictionaries that JSON can hold.  What never lives
here: how they travel (``broadcast``, ``server``).
"""

from __future__ import annotations

import math
from typing import Any

from trainmover.events import catalogue as say
from trainmover.monitor.incidents import IncidentView, phases_of
from trainmover.monitor.view import ClusterView, MachineView


def view_as_json(view: ClusterView) -> dict[str, Any]:
    """A view for other programs."""
    return job_row(view) | {
        "machines": [machine_row(view, machine) for machine in view.by_position()],
        "roles": [
            role.model_dump(mode="json")
            | {
                "recorded_bytes": view.roles.sizes.get(role.name),
                "not_recorded": view.roles.failed.get(role.name),
            }
            for role in (view.roles.found.roles if view.roles.found is not None else ())
        ],
        "state": view.protection.summary(),
        "incidents": [incident_row(incident) for incident in view.incidents.values()],
        "submitted": None if view.submitted is None else view.submitted.model_dump(mode="json"),
    }


def job_row(view: ClusterView) -> dict[str, Any]:
    """The job as a whole."""
    rate = view.steps_per_second
    return {
        "job": view.job,
        "phase": view.phase,
        "reason": view.reason,
        "epoch": view.epoch,
        "generation": view.generation,
        "step": view.step,
        "metrics": {name: _finite(value) for name, value in view.metrics.items()},
        "steps_per_second": None if rate is None else round(rate, 4),
        "seats": None if view.submitted is None else view.submitted.machines,
        "standbys": None if view.submitted is None else view.submitted.standbys,
        "submitted_at": view.submitted_at,
        "ended_at": view.ended_at,
        "steps": view.steps,
        "digest": view.digest,
        "identical": view.identical,
    }


def machine_row(view: ClusterView, machine: MachineView) -> dict[str, Any]:
    """One machine; ``ranks`` are the states of its processes by slot."""
    role = view.roles.at(machine.position)
    return {
        "name": machine.name,
        "incarnation": machine.incarnation,
        "host": machine.host,
        "slots": machine.slots,
        "state": machine.state,
        "position": machine.position,
        "step": machine.step,
        "ranks": list(machine.ranks),
        "note": machine.note,
        "role": role.name if role is not None else None,
        "parked": machine.warmth.parked,
        "warming": machine.warmth.under_way,
        "warm_up_seconds": machine.warmth.seconds,
        "cpu_percent": round(machine.cpu_percent) if machine.beat is not None else None,
        "rss_mib": machine.rss_bytes >> 20 if machine.beat is not None else None,
    }


def incident_row(incident: IncidentView) -> dict[str, Any]:
    """One incident, its phases included."""
    return {
        "id": incident.id,
        "kind": incident.kind,
        "state": incident.state,
        "machine": incident.machine,
        "joiner": incident.joiner,
        "cause": incident.cause,
        "stage": incident.stage,
        "doing": incident.doing,
        "epoch": incident.epoch,
        "step": incident.step,
        "position": incident.position,
        "attempts": incident.attempts,
        "times": dict(incident.times),
        "phases": [[phase.name, phase.start, phase.end] for phase in phases_of(incident)],
    }


def fact_of_commit(event: say.SwitchCommitted) -> str:
    """Who goes and who comes in a switch, in as few characters as fit beside a mark on a curve."""
    if not event.incidents and not event.leavers:
        return event.kind
    names = [f"{leaver}→{joiner}" for leaver, joiner in zip(event.leavers, event.joiners, strict=False)]
    names += [f"{leaver}→" for leaver in event.leavers[len(event.joiners) :]]
    names += [f"→{joiner}" for joiner in event.joiners[len(event.leavers) :]]
    shown = ", ".join(names[:3]) or event.kind
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
