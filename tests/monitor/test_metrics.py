"""What Prometheus gets: names, units, and no label per machine."""

from __future__ import annotations

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.metrics import make_registry


def figures(story) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    chronicle = Chronicle()
    registry = make_registry(chronicle, lambda: True)
    for envelope in story.envelopes:
        chronicle.apply(envelope)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for item in family.samples:
            if item.name.startswith("trainmover_"):
                found[item.name, tuple(sorted(item.labels.items()))] = item.value
    return found


def test_the_figures_of_an_incident(story) -> None:
    """A failure that is over is counted, with its duration and its phases."""
    story.kill()
    told = figures(story)
    failure = ("kind", "failure")
    assert told["trainmover_incidents_total", (failure, ("outcome", "closed"))] == 1
    assert told["trainmover_incident_duration_seconds_count", (failure,)] == 1
    assert round(told["trainmover_incident_duration_seconds_sum", (failure,)], 3) == 1.4
    copied = ("phase", "switch_and_copy")
    assert told["trainmover_incident_phase_duration_seconds_count", (failure, copied)] == 1
    assert told["trainmover_incidents_open", (failure,)] == 0
    assert told["trainmover_machines", (("state", "training"),)] == 2
    assert told["trainmover_machines", (("state", "failed"),)] == 1
    assert told["trainmover_job_phase", (("state", "training"),)] == 1
    assert told["trainmover_events_total", (("type", "machine.failed"),)] == 1


def test_names_follow_the_conventions_and_no_label_is_a_machine(story) -> None:
    """Base units and suffixes; labels have values from lists that are written in the code."""
    story.kill()
    told = figures(story)
    for name, labels in told:
        assert re.fullmatch(r"trainmover_[a-z_]+", name)
        assert {label for label, _ in labels} <= {
            "kind", "outcome", "phase", "state", "type", "le", "name", "training_job", "monitor_version",
        }  # fmt: skip
        assert not {value for label, value in labels if label != "name"} & {"m0", "m1", "m2"}
    assert not any(name.endswith("_milliseconds") for name, _ in told)


def test_a_monitor_that_starts_again_counts_the_same(story) -> None:
    """Counters come from the log, so another life of the monitor has the same."""
    story.kill()
    assert figures(story) == figures(story)
