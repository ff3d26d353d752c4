"""The benchmark reads a report rightly: which incident is which, and what is within its limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import common, downtime
from trainmover.faults import FaultSpec


def report(downtimes: dict[int, float], digest: str = "d") -> dict[str, Any]:
    """A run's report in which machine n was down for so many seconds, with 0.4 s a step."""
    return {
        "digest": digest,
        "median_step_seconds": 0.4,
        "joiner_first_step_ratio": 1.1,
        "stayer_peak_memory_growth": 0.001,
        "incidents": [
            {
                "machine": f"m{machine}",
                "step": 20,
                "downtime_seconds": seconds,
                "downtime_steps": seconds / 0.4,
                "steps_lost": 0,
                "phases": {"detect": 0.1, "plan": None},
            }
            for machine, seconds in downtimes.items()
        ],
    }


def test_faults_are_spread_and_can_be_read() -> None:
    """The specs are what `trainmover run --fault` takes, in order, well before the last step."""
    specs = [FaultSpec.parse(text) for text in downtime.faults(112).values()]
    assert [(spec.kind, spec.machine, spec.step) for spec in specs] == [
        ("kill", "m1", 28),
        ("move", "m2", 56),
        ("stop", "m0", 84),
    ]


def test_an_incident_belongs_to_the_fault_of_its_machine() -> None:
    """Rows come in the order of the faults, whatever the order in the report."""
    rows = downtime.rows_of(0, report({0: 3.0, 2: 0.5, 1: 1.5}))
    assert [(row["fault"], row["downtime_seconds"]) for row in rows] == [
        ("kill", 1.5),
        ("move", 0.5),
        ("stop", 3.0),
    ]
    assert [row["limit_seconds"] for row in rows] == pytest.approx([1.8, 0.9, 3.8])


def test_a_missing_incident_ends_the_benchmark() -> None:
    """A fault that the report does not know of is an error, not a zero."""
    with pytest.raises(SystemExit, match=r"run 4: the report has no incident of m2 \(move\)"):
        downtime.rows_of(4, report({0: 1.0, 1: 1.0}))


def test_the_summary_takes_medians() -> None:
    """One slow run of three does not decide; a digest that differs shows."""
    runs = [
        report({1: 1.0, 2: 0.5, 0: 3.0}),
        report({1: 9.0, 2: 0.6, 0: 3.1}),
        report({1: 1.2, 2: 2.0, 0: 5.0}),
    ]
    rows = [row for number, item in enumerate(runs) for row in downtime.rows_of(number, item)]
    summary = downtime.summarize(rows)
    assert summary["kill"]["downtime_seconds"] == 1.2
    assert summary["kill"]["within_limit"]
    assert summary["move"]["downtime_seconds"] == 0.6
    assert summary["stop"]["phases"]["detect"] == 0.1
    assert summary["stop"]["phases"]["copy"] is None
    assert summary["same_bytes"]
    other = downtime.rows_of(3, report({0: 1.0, 1: 1.0, 2: 1.0}, digest="e"))
    assert not downtime.summarize(rows + other)["same_bytes"]


def test_writes_rows_summary_and_environment(tmp_path: Path) -> None:
    """Every benchmark's JSON has the same three parts."""
    path = tmp_path / "deep" / "out.json"
    common.write(path, [{"a": 1}], {"b": 2}, common.environment())
    found = json.loads(path.read_text())
    assert set(found) == {"rows", "summary", "environment"}
    assert found["environment"]["cores"] >= 1
    assert found["environment"]["torch"]


def test_a_failing_program_shows_the_end_of_its_log(tmp_path: Path) -> None:
    """What went wrong is in the message, with the command."""
    with pytest.raises(SystemExit, match=r"(?s)went wrong.*ended with code 3"):
        common.run(["sh", "-c", "echo went wrong; exit 3"], log=tmp_path / "log", limit=10)


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Nothing that a benchmark started outlives its limit."""
    with pytest.raises(SystemExit, match=r"took longer than 0 s"):
        common.run(["sleep", "60"], log=tmp_path / "log", limit=0.2)
