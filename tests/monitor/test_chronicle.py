"""The chronicle: what a monitor remembers, and the way back."""

from __future__ import annotations

import pytest

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor import chronicle as module
from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.series import POINTS, Point, Series, points_of
from trainmover.monitor.view import ClusterView


def told(story, **options) -> Chronicle:
    chronicle = Chronicle(**options)
    for envelope in story.envelopes:
        chronicle.apply(envelope)
    return chronicle


def sample(story, at: float, step: int, epoch: int = 1, machine: str = "m0") -> Envelope:
    event = say.StepSample(
        machine=machine, rank=0, epoch=epoch, step=step, seconds=0.5, metrics={"loss": 3.0}, peak_rss_bytes=1
    )
    return Envelope(id=f"s-{machine}-{step}", source=machine, time=story.ORIGIN + at, job="job", event=event)


def test_facts_are_numbered_and_say_how_they_are_meant(story) -> None:
    """Every event with a sentence is a fact, in the order of the log, with its level."""
    story.kill()
    chronicle = told(story)
    numbers = [fact.number for fact in chronicle.facts]
    assert numbers == list(range(1, len(numbers) + 1))
    levels = {fact.type: fact.level for fact in chronicle.facts}
    assert levels["machine.failed"] == "bad"
    assert levels["link.broken"] == "warn"
    assert levels["training.resumed"] == "good"
    assert levels["plan.ready"] == "info"
    assert {fact.type for fact in chronicle.facts_of("inc-1")} == {"machine.failed", "standby.assigned"}


def test_changes_of_membership_are_marks(story) -> None:
    """Each committed switch is a mark with its step and who changed."""
    story.kill()
    first, second = told(story).marks
    assert (first.kind, first.text) == ("start", "start")
    assert (second.kind, second.text, second.step) == ("failure", "m1→m2", 4)


@pytest.mark.parametrize("chapter", [4, 1024])
def test_the_way_back_is_what_the_view_was(story, chapter: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment the view is the same as one that had heard only so much."""
    monkeypatch.setattr(module, "CHAPTER", chapter)
    monkeypatch.setattr(module, "PER_MACHINE", 0)
    story.kill()
    story.complete()
    chronicle = told(story)
    for moment in (0.2, 1.2, 2.0, 4.85, 5.25, 5.8, 6.1, 100.0):
        plain = ClusterView()
        for envelope in story.envelopes:
            if envelope.time <= story.ORIGIN + moment:
                plain.apply(envelope)
        then = chronicle.at(story.ORIGIN + moment)
        assert (then.phase, then.epoch, then.layout) == (plain.phase, plain.epoch, plain.layout)
        states = {name: machine.state for name, machine in plain.machines.items()}
        assert {name: machine.state for name, machine in then.machines.items()} == states
        stages = {name: (item.state, item.stage) for name, item in plain.incidents.items()}
        assert {name: (item.state, item.stage) for name, item in then.incidents.items()} == stages


def test_before_the_beginning_there_is_nothing(story) -> None:
    """A moment before the job is an empty view."""
    assert told(story).at(story.ORIGIN - 1).phase == "waiting"


def test_the_oldest_chapters_go(story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: what is too old cannot be looked at, what is new can."""
    monkeypatch.setattr(module, "CHAPTER", 1)
    monkeypatch.setattr(module, "PER_MACHINE", 0)
    monkeypatch.setattr(module, "CHAPTERS", 3)
    story.kill()
    chronicle = told(story)
    assert len(chronicle._chapters) == 3
    assert chronicle.first is not None
    assert chronicle.first > story.ORIGIN + 4
    assert chronicle.at(story.ORIGIN + 100).epoch == 2


def test_steps_belong_to_the_moment(story) -> None:
    """Step, loss and rate of an earlier moment are those of then, though samples are not in the log."""
    chronicle = told(story)
    for step in range(8):
        chronicle.apply(sample(story, 3.0 + 0.5 * step, step))
    then = chronicle.at(story.ORIGIN + 4.6)
    assert (then.step, then.metrics) == (3, {"loss": 3.0})
    assert then.steps_per_second == pytest.approx(2.0)
    assert chronicle.at(story.ORIGIN + 2.5).step is None


def test_an_incident_that_is_over_is_told_once(story) -> None:
    """With its final name, its stages and its facts."""
    chronicle = Chronicle()
    ended = []
    chronicle.on_end.append(lambda incident, facts: ended.append((incident.id, incident.state, len(facts))))
    story.kill()
    story.tell(7.0, say.MoveRefused(machine="m0", incident="inc-2", reason="no standby"), "inc-2")
    for envelope in story.envelopes:
        chronicle.apply(envelope)
    story.complete()
    chronicle.apply(story.envelopes[-1])
    assert ended == [("inc-1", "closed", 2), ("inc-2", "refused", 1)]


def test_every_machine_samples_a_step_and_it_is_one_point(story) -> None:
    """The first to tell of a step makes the point; a step done again in a later epoch is another."""
    series = Series()
    for at, step, epoch, machine in ((1, 0, 1, "m0"), (1.1, 0, 1, "m1"), (2, 1, 1, "m1"), (3, 1, 2, "m0")):
        envelope = sample(story, at, step, epoch, machine)
        series.sample(envelope.time, envelope.event)
    assert [(point.step, point.epoch) for point in series.points] == [(0, 1), (1, 1), (1, 2)]


def test_a_long_curve_is_coarse_at_its_beginning_and_whole_at_its_end() -> None:
    """When there are too many points, the older half loses every second one."""
    series = Series()
    for step in range(3 * POINTS):
        series.add(Point(float(step), step, 1, 1.0, {}))
    steps = [point.step for point in series.points]
    assert len(steps) <= POINTS
    assert steps[-1000:] == list(range(3 * POINTS - 1000, 3 * POINTS))
    assert steps[0] == 0
    assert steps == sorted(steps)


def test_points_of_a_finished_run_come_from_its_step_files(story) -> None:
    """Each step at its first commit, from whatever rank wrote it; recalled points do not double samples."""
    story.kill()
    points = list(points_of(story.facts))
    assert [(point.step, point.epoch) for point in points] == [
        (0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2),
    ]  # fmt: skip
    chronicle = told(story)
    chronicle.recall(points)
    chronicle.recall(points)
    assert len(chronicle.series.points) == 6
    assert chronicle.view.step == 5


def test_a_figure_that_is_no_number_is_none_in_json() -> None:
    """NaN is not JSON."""
    assert Point(1.0, 2, 3, 0.5, {"loss": float("nan")}).as_json() == [1.0, 2, 3, 0.5, {"loss": None}]
