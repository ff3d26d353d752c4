"""The figures of report.json, computed from facts that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmover.events import catalogue as say
from trainmover.monitor.report import build_report, reduced
from trainmover.monitor.steps import StepFacts, VoidFact, read_steps
from trainmover.monitor.view import Membership


def report_of(story):
    story.facts.steps.sort(key=lambda fact: fact.end)
    return build_report(story.envelopes, story.facts)


def test_a_job_that_failed_before_its_first_epoch_has_a_report() -> None:
    """Nothing was trained, nothing stood vacant, and that is a report too."""
    report = build_report([], StepFacts())
    assert (report.steps, report.reduced_steps, report.incidents) == (0, 0, [])


def test_a_failure_in_figures(story) -> None:
    """Downtime is from the last commit before to the first after; phases follow the events."""
    story.kill()
    story.complete()
    report = report_of(story)
    (incident,) = report.incidents
    # Step 3 was committed at 4.0 s, step 4 at 6.0 s; a step takes half a second.
    assert incident.downtime_seconds == pytest.approx(2.0)
    assert incident.downtime_steps == pytest.approx(4.0)
    assert (incident.steps_lost, incident.attempts_void) == (0, 1)
    assert (incident.step, incident.machine, incident.joiner) == (4, "m1", "m2")
    assert incident.phases == pytest.approx(
        {"detect": 0.2, "plan": 0.2, "prepare": 0.3, "copy": 0.4, "switch": 0.02}, abs=1e-3
    )
    assert report.joiner_first_step_ratio == pytest.approx(1.0)
    assert report.stayer_peak_memory_growth == pytest.approx(0.01)
    assert (report.seed, report.steps, report.digest) == (5, 6, "d" * 64)
    assert report.losses == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]
    assert report.problems == []


def test_the_file_has_exactly_the_agreed_fields(story) -> None:
    """report.json is JSON with the fields that the benchmarks read, and no others."""
    story.kill()
    found = json.loads(json.dumps(report_of(story).as_json()))
    assert set(found) == {
        "seed",
        "steps",
        "digest",
        "losses",
        "median_step_seconds",
        "joiner_first_step_ratio",
        "stayer_peak_memory_growth",
        "incidents",
        "recordings",
        "memberships",
        "reduced_steps",
        "state",
    }
    assert set(found["incidents"][0]) == {
        "id",
        "kind",
        "machine",
        "joiner",
        "step",
        "downtime_seconds",
        "downtime_steps",
        "steps_lost",
        "attempts_void",
        "phases",
    }


def test_a_step_that_was_rolled_forward_counts_before_the_switch(story) -> None:
    """A survivor that commits step 4 only during the switch does not shorten the downtime."""
    story.kill()
    # m1 had committed step 4 before it died; m0 rolls forward and writes it down during the switch.
    story.facts.voids.clear()
    story.facts.steps = [fact for fact in story.facts.steps if fact.epoch == 1]
    story.steps("m1", 1, 1, [4], 4.5)
    story.steps("m0", 0, 1, [4], 5.7)
    story.steps("m0", 0, 2, [5], 6.5)
    for place, envelope in enumerate(story.envelopes):
        if isinstance(envelope.event, say.SwitchAdopted):
            event = envelope.event.model_copy(update={"step": 5})
            story.envelopes[place] = type(envelope)(
                id=envelope.id, source="rank", time=envelope.time, job="job", event=event
            )
    (incident,) = report_of(story).incidents
    assert incident.downtime_seconds == pytest.approx(2.0)
    assert (incident.step, incident.steps_lost) == (5, 0)


def test_what_a_frozen_machine_writes_when_it_wakes_is_no_commit(story) -> None:
    """A machine that was replaced and wakes up later does not move the last step before the switch."""
    story.kill()
    story.steps("m1", 1, 1, [4], 8.5)
    (incident,) = report_of(story).incidents
    assert incident.downtime_seconds == pytest.approx(2.0)
    assert incident.steps_lost == 0


def test_a_start_again_counts_what_was_done_twice(story) -> None:
    """When there was nothing to keep, steps that had been committed by some are lost."""
    story.steps("m0", 0, 1, [0], 2.5)
    story.tell(3.0, say.MachineFailed(machine="m1", incarnation="a", reason="gone"), "inc-1")
    story.launch(3.1, "m0", 0, 1)
    story.launch(3.1, "m2", 1, 1)
    story.commit(3.4, 2, "start", ("m0", "m2"), (), ("m0", "m2"), (), 0)
    story.started(4.0, generation=1, epoch=2)
    story.steps("m0", 0, 2, range(3), 3.9)
    (incident,) = report_of(story).incidents
    assert (incident.steps_lost, incident.joiner) == (1, "m2")
    assert incident.downtime_seconds == pytest.approx(1.4)
    assert incident.phases["copy"] is None
    assert incident.phases["prepare"] == pytest.approx(0.9)


def test_different_losses_for_one_step_are_a_problem(story) -> None:
    """A rank that commits a step twice must come to the same loss, or the reader is told."""
    story.steps("m0", 0, 1, [0, 1], 2.5)
    story.steps("m2", 0, 2, [1], 3.5)
    story.facts.steps[-1] = type(story.facts.steps[-1])(
        **{name: getattr(story.facts.steps[-1], name) for name in story.facts.steps[-1].__slots__}
        | {"loss": 9.5}
    )
    assert report_of(story).problems == ["rank 0 committed step 1 with different losses: 9.0, 9.5"]


def test_a_run_without_any_step_still_has_a_report(story) -> None:
    """A run that ended before its first step gives empty figures, not an error."""
    report = report_of(story)
    assert (report.losses, report.median_step_seconds, report.digest) == ([], None, None)


def test_half_a_line_and_unknown_lines_are_passed_over(tmp_path: Path) -> None:
    """Step files of killed processes may end anywhere; other kinds of lines may come later."""
    lines = [
        {"kind": "void", "step": 3, "epoch": 1, "time": 5.0},
        {"kind": "weather", "sun": True},
        {"kind": "step", "step": 1},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + '\n{"kind": "step", "st'
    (tmp_path / "m0-0-77.jsonl").write_text(text)
    (tmp_path / "notes.txt").write_text("not a step file")
    facts = read_steps(tmp_path)
    assert facts.voids == [VoidFact("m0", 0, 3, 1, 5.0)]
    assert facts.steps == []


def test_steps_at_reduced_strength_are_counted() -> None:
    """From the switch that left a seat vacant to the one that filled the last, whatever came between."""

    def then(step: int, kind: str, present: int) -> Membership:
        return Membership(step, step + 1, kind, present, 4)

    whole, shrunk = then(0, "start", 4), then(10, "shrink", 3)
    assert reduced([whole], 50) == []
    assert reduced([whole, shrunk], 50) == [(10, 50)]
    history = [whole, shrunk, then(20, "shrink", 2), then(25, "failure", 2), then(30, "grow", 4)]
    assert reduced(history, 50) == [(10, 30)]
    assert reduced([*history, then(40, "shrink", 3), then(40, "grow", 4)], 50) == [(10, 30)]


def test_a_switch_that_vacates_a_seat_is_in_the_report(story) -> None:
    """Who trained from which step on; the incident ended without a joiner, the next one without a leaver."""
    story = type(story)()
    story.begin(machines=3, spares=0)
    failed = say.MachineFailed(machine="m1", incarnation="a", reason="killed")
    story.tell(4.0, failed, "inc-1")
    story.plan(4.1, 2, "shrink", ("m0", "", "m2"), ("m1",), (), ("inc-1",))
    story.prepare(4.2, 2, "shrink", ("m0", "", "m2"), ("m1",), (), ("inc-1",))
    story.commit(4.5, 2, "shrink", ("m0", "", "m2"), ("m1",), (), ("inc-1",), 4)
    story.tell(4.6, say.TrainingResumed(epoch=2, step=5))
    story.join(5.0, "m3")
    assigned = say.StandbyAssigned(
        incident="inc-2", kind="grow", leaver="", joiner="m3", joiner_incarnation="a", position=1
    )
    story.tell(6.0, assigned, "inc-2")
    story.plan(6.05, 3, "grow", ("m0", "m3", "m2"), (), ("m3",), ("inc-2",))
    story.prepare(6.1, 3, "grow", ("m0", "m3", "m2"), (), ("m3",), ("inc-2",))
    story.commit(6.4, 3, "grow", ("m0", "m3", "m2"), (), ("m3",), ("inc-2",), 9)
    story.tell(6.5, say.TrainingResumed(epoch=3, step=10))
    story.tell(7.0, say.JobCompleted(steps=20, digest="d", identical=True))
    report = report_of(story)
    told = [(item["step"], item["kind"], item["present"]) for item in report.memberships]
    assert told == [(0, "start", 3), (4, "shrink", 2), (9, "grow", 3)]
    assert report.reduced_steps == 5
    found = [(item.kind, item.machine, item.joiner) for item in report.incidents]
    assert found == [("shrink", "m1", None), ("grow", "seat 1", "m3")]
