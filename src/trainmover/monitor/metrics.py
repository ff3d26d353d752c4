"""Figures for Prometheus: what ``/metrics`` says.

What lives here: the names, the units and what each figure is taken from.  What never lives here:
alert rules (``deploy/observe``).

Names follow Prometheus's conventions: a prefix, base units, ``_total`` for counters.  No figure has a
label per machine or rank, whose names come and go without end: machines are counted by state, steps
and incidents by kind.  Counters are made from the log, so a monitor that starts again counts on
where the last one was.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from trainmover.events import catalogue as say
from trainmover.monitor.chronicle import Chronicle, Fact
from trainmover.monitor.incidents import IncidentView, phases_of
from trainmover.monitor.machines import MachineState
from trainmover.monitor.series import METRICS, Point
from trainmover.version import __version__

PHASES = ("waiting", "starting", "training", "held", "completed", "failed")
STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
INCIDENT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)


def make_registry(chronicle: Chronicle, connected: Callable[[], bool]) -> CollectorRegistry:
    """Everything that is told; connect it before events are taken in.

    Args:
        connected: whether the bus is there now.
    """
    # When this process made a counter says nothing: what it counts is older.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Now(chronicle, connected))
    durations = Histogram(
        "trainmover_step_duration_seconds",
        "Time from the beginning of a step to its commit, as its first committer saw it.",
        registry=registry,
        buckets=STEP_BUCKETS,
    )
    ended = Counter(
        "trainmover_incidents",
        "Incidents that are over, by kind and by how they ended.",
        ["kind", "outcome"],
        registry=registry,
    )
    lasted = Histogram(
        "trainmover_incident_duration_seconds",
        "Time from the first sign of an incident to the first step after it.",
        ["kind"],
        registry=registry,
        buckets=INCIDENT_BUCKETS,
    )
    phases = Histogram(
        "trainmover_incident_phase_duration_seconds",
        "What the time of incidents was spent on.",
        ["kind", "phase"],
        registry=registry,
        buckets=INCIDENT_BUCKETS,
    )
    for kind in ("failure", "move", "grow"):
        lasted.labels(kind)
        for outcome in ("closed", "refused", "unfinished"):
            ended.labels(kind, outcome)

    def step(point: Point) -> None:
        durations.observe(point.seconds)

    def end(incident: IncidentView, facts: list[Fact]) -> None:
        ended.labels(incident.kind, incident.state).inc()
        if incident.state != "closed":
            return
        lasted.labels(incident.kind).observe(incident.between("opened", "resumed") or 0.0)
        for phase in phases_of(incident):
            phases.labels(incident.kind, phase.name.replace(" ", "_")).observe(phase.seconds)

    chronicle.on_step.append(step)
    chronicle.on_end.append(end)
    return registry


class _Now(Collector):
    """Figures that are read off the chronicle when they are asked for."""

    def __init__(self, chronicle: Chronicle, connected: Callable[[], bool]) -> None:
        self._chronicle = chronicle
        self._connected = connected

    def describe(self) -> Iterator[Metric]:
        """Names only; the registry would collect to find them."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client.registry.Collector``."""
        chronicle, view = self._chronicle, self._chronicle.view
        yield InfoMetricFamily(
            "trainmover_job",
            "The job that is watched.",
            {"training_job": view.job, "monitor_version": __version__},
        )
        yield _states("trainmover_job_phase", "1 for the phase that the job is in.", PHASES, {view.phase: 1})
        states = Count(machine.state for machine in view.machines.values())
        yield _states("trainmover_machines", "Machines by state.", get_args(MachineState), states)
        submitted = view.submitted
        yield _gauge(
            "trainmover_machines_wanted", "Seats of the layout.", submitted.machines if submitted else None
        )
        yield _gauge(
            "trainmover_standbys_wanted", "Spares to keep.", submitted.standbys if submitted else None
        )
        yield _gauge("trainmover_epoch", "Number of the layout.", view.epoch)
        yield _gauge("trainmover_generation", "Starts from nothing, the first one included.", view.generation)
        yield _gauge("trainmover_committed_step", "Index of the last committed step.", view.step)
        yield _gauge("trainmover_roles", "Roles of machines that were found.", view.roles.total)
        yield _states(
            "trainmover_incidents_open",
            "Incidents that are not over.",
            ("failure", "move", "grow"),
            Count(incident.kind for incident in view.open_incidents),
            label="kind",
        )
        points = chronicle.series.points
        yield _gauge(
            "trainmover_last_step_timestamp_seconds",
            "Unix time of the last committed step.",
            points[-1].time if points else None,
        )
        yield _gauge(
            "trainmover_last_event_timestamp_seconds",
            "Unix time of the last event in the log.",
            chronicle.last_event,
        )
        yield _gauge("trainmover_bus_connected", "1 while the monitor has the bus.", self._connected())
        metrics = GaugeMetricFamily(
            "trainmover_training_metric",
            "What the script logs of its steps, the last values.",
            labels=["name"],
        )
        for name, value in sorted(view.metrics.items())[:METRICS]:
            metrics.add_metric([name], value)
        yield metrics
        said = CounterMetricFamily("trainmover_events", "Events by type, samples included.", labels=["type"])
        for name in say.EVENTS:
            said.add_metric([name], chronicle.counts.get(name, 0))
        yield said


def _gauge(name: str, about: str, value: float | None) -> GaugeMetricFamily:
    """A figure; without a sample while it is not known."""
    return GaugeMetricFamily(name, about, value=None if value is None else float(value))


def _states(
    name: str, about: str, states: tuple[str, ...], counts: Mapping[Any, int], label: str = "state"
) -> GaugeMetricFamily:
    """A number for each state, those that are zero too: a series that vanishes cannot be alerted on."""
    family = GaugeMetricFamily(name, about, labels=[label])
    for state in states:
        family.add_metric([state], counts.get(state, 0))
    return family
