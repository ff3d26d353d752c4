"""How incidents end: the same whichever order the events come in, as after a log that stalled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.report import Report, build_report
from trainmover.monitor.view import ClusterView

ORDERS = 150
"""How many orders are tried."""

OLD = ("m0", "m1", "m2")
NEW = ("m3", "m4", "m5")


def told(report: Report) -> list[tuple[object, ...]]:
    """What the report says of each incident, by machine."""
    found: list[tuple[object, ...]] = []
    for item in report.incidents:
        assert item.downtime_seconds is not None, item
        downtime = round(item.downtime_seconds, 3)
        found.append((item.machine, item.kind, item.joiner, item.step, item.steps_lost, downtime))
    return sorted(found)


def orders(envelopes: Sequence[Envelope], first: int) -> list[list[Envelope]]:
    """The log in other orders, from its ``first`` envelope on; who joins is known before."""
    joined = [envelope for envelope in envelopes if isinstance(envelope.event, say.MachineJoined)]
    before = list(envelopes[:first])
    before += [envelope for envelope in joined if envelope not in before]
    rest = [envelope for envelope in envelopes[first:] if envelope not in joined]
    chance = random.Random(1)
    return [[*before, *chance.sample(rest, len(rest))] for _ in range(ORDERS)]


def same_in_any_order(story, first: int, expected: list[tuple[object, ...]]) -> None:
    story.facts.steps.sort(key=lambda fact: fact.end)
    assert told(build_report(story.envelopes, story.facts)) == expected
    for order in orders(story.envelopes, first):
        assert told(build_report(order, story.facts)) == expected


@pytest.fixture
def large(story):
    """Three machines and four spares; four steps are committed in epoch 1."""
    story = type(story)()
    story.begin(machines=3, spares=4, generation=1)
    story.started(2.5, generation=1)
    for rank, name in enumerate(OLD):
        story.steps(name, rank, 1, range(4), 2.5)
    return story


def lose(story, at: float, machine: str, incident: str) -> None:
    story.tell(at, say.MachineFailed(machine=machine, incarnation="a", reason="gone"), incident)


def start_again(story, at: float, generation: int, epoch: int, crew: Sequence[str], step: int) -> None:
    """Everything starts again from a checkpoint of ``step``."""
    for position, name in enumerate(crew):
        story.launch(at, name, position, generation)
    story.plan(at + 0.3, epoch, "start", tuple(crew), (), (), ())
    story.prepare(at + 0.4, epoch, "start", tuple(crew), (), (), ())
    story.commit(at + 0.6, epoch, "start", tuple(crew), (), (), (), 0)
    started = say.TrainingStarted(generation=generation, epoch=epoch, step=step + 1, groups={})
    story.tell(at + 1.5, started)
    for rank, name in enumerate(crew):
        story.steps(name, rank, epoch, range(step, 8), at + 1.2)


def test_all_machines_are_lost(large) -> None:
    """One while a switch for another is on its way: all three went back by two steps."""
    first = len(large.envelopes)
    lose(large, 4.7, "m0", "inc-0")
    large.assign(4.8, "inc-0", "failure", "m0", "m6")
    between = ("m6", "m1", "m2")
    large.plan(4.9, 2, "failure", between, ("m0",), ("m6",), ("inc-0",))
    large.prepare(5.0, 2, "failure", between, ("m0",), ("m6",), ("inc-0",))
    large.prepared(5.1, 2, 1, "m1")
    lose(large, 5.2, "m1", "inc-1")
    lose(large, 5.3, "m2", "inc-2")
    large.tell(5.4, say.SwitchAborted(epoch=2, incidents=("inc-0",), reason="m1 failed"), "inc-0")
    start_again(large, 5.5, 2, 3, NEW, 2)
    expected = [(old, "failure", new, 2, 2, 2.7) for old, new in zip(OLD, NEW, strict=True)]
    same_in_any_order(large, first, expected)


def test_one_survives_and_is_lost_after_the_others_have_gone_back(large) -> None:
    """Whoever had not learnt of the last vote starts again with the others; its own loss costs no step."""
    first = len(large.envelopes)
    lose(large, 4.7, "m0", "inc-0")
    lose(large, 4.8, "m1", "inc-1")
    start_again(large, 5.5, 2, 2, ("m3", "m4", "m2"), 2)
    middle = len(large.envelopes)
    lose(large, 11.0, "m2", "inc-2")
    now = ("m3", "m4", "m5")
    large.assign(11.1, "inc-2", "failure", "m2", "m5")
    large.plan(11.2, 3, "failure", now, ("m2",), ("m5",), ("inc-2",))
    large.prepare(11.3, 3, "failure", now, ("m2",), ("m5",), ("inc-2",))
    large.commit(11.5, 3, "failure", now, ("m2",), ("m5",), ("inc-2",), 8)
    large.tell(12.1, say.TrainingResumed(epoch=3, step=9))
    large.steps("m3", 0, 3, range(8, 10), 12.0)
    went_back = [("m0", "failure", "m3", 2, 2, 2.7), ("m1", "failure", "m4", 2, 2, 2.7)]
    expected = [*went_back, ("m2", "failure", "m5", 8, 0, 2.8)]
    same_in_any_order(large, first, expected)
    same_in_any_order(large, middle, expected)


def test_a_machine_is_replaced(story) -> None:
    """An ordinary switch: no step is lost."""
    first = len(story.envelopes)
    story.kill()
    same_in_any_order(story, first, [("m1", "failure", "m2", 4, 0, 2.0)])


def test_an_epoch_breaks_before_its_first_step(large) -> None:
    """The machine was replaced; that the next loss came at once is the next incident's."""
    first = len(large.envelopes)
    for number, (old, new) in enumerate((("m1", "m3"), ("m2", "m4"))):
        epoch, at, incident = 2 + number, 4.7 + number, f"inc-{number}"
        now = ("m0", "m3", "m2") if not number else ("m0", "m3", "m4")
        lose(large, at, old, incident)
        large.assign(at + 0.1, incident, "failure", old, new)
        large.plan(at + 0.2, epoch, "failure", now, (old,), (new,), (incident,))
        large.prepare(at + 0.3, epoch, "failure", now, (old,), (new,), (incident,))
        large.commit(at + 0.5, epoch, "failure", now, (old,), (new,), (incident,), 4)
    large.tell(6.6, say.TrainingResumed(epoch=3, step=5))
    large.steps("m0", 0, 3, range(4, 6), 6.5)
    expected = [("m1", "failure", "m3", 4, 0, 2.5), ("m2", "failure", "m4", 4, 0, 2.5)]
    same_in_any_order(large, first, expected)


def view_of(story) -> ClusterView:
    """What is known at the end."""
    view = ClusterView()
    for envelope in story.envelopes:
        view.apply(envelope)
    return view


def test_a_move_is_void_once_everything_starts_again(large) -> None:
    """It is over, was not carried out, and is no part of what the failure cost."""
    large.tell(4.2, say.MoveRequested(machine="m1", reason="maintenance"))
    large.assign(4.3, "inc-9", "move", "m1", "m6")
    lose(large, 4.7, "m0", "inc-0")
    lose(large, 4.8, "m2", "inc-2")
    start_again(large, 5.5, 2, 2, ("m3", "m1", "m5"), 2)
    assert view_of(large).open_incidents == ()
    assert view_of(large).incidents["inc-9"].doing.startswith("refused: everything was started again")
    report = build_report(large.envelopes, large.facts)
    assert [(item.machine, item.steps_lost) for item in report.incidents] == [("m0", 2), ("m2", 2)]


def test_a_machine_that_was_to_move_is_lost_with_the_others(large) -> None:
    """Then it is a failure like theirs, and cost what theirs did."""
    large.tell(4.2, say.MoveRequested(machine="m1", reason="maintenance"))
    large.assign(4.3, "inc-9", "move", "m1", "m6")
    for machine in OLD:
        lose(large, 4.7, machine, f"inc-{machine}")
    start_again(large, 5.5, 2, 2, NEW, 2)
    found = told(build_report(large.envelopes, large.facts))
    assert found == [(old, "failure", new, 2, 2, 2.7) for old, new in zip(OLD, NEW, strict=True)]


def test_an_end_is_an_end(large) -> None:
    """News of an attempt that was given up long ago changes nothing in what has ended."""
    lose(large, 4.7, "m0", "inc-0")
    lose(large, 4.8, "m1", "inc-1")
    start_again(large, 5.5, 2, 3, ("m3", "m4", "m2"), 2)
    before = told(build_report(large.envelopes, large.facts))
    large.generation = 1
    late: list[Callable[[], None]] = [
        lambda: large.tell(9.0, say.SwitchAborted(epoch=2, incidents=("inc-0",), reason="late"), "inc-0"),
        lambda: large.assign(9.1, "inc-0", "failure", "m0", "m6"),
        lambda: large.plan(9.2, 2, "failure", ("m6", "m1", "m2"), ("m0",), ("m6",), ("inc-0",)),
        lambda: large.prepare(9.3, 2, "failure", ("m6", "m1", "m2"), ("m0",), ("m6",), ("inc-0",)),
    ]
    for tell in late:
        tell()
        assert told(build_report(large.envelopes, large.facts)) == before


def test_what_is_open_when_the_job_ends(large) -> None:
    """It stays unfinished, whether the job completed or failed, and is no longer shown as going on."""
    large.tell(4.2, say.MoveRequested(machine="m1", reason="maintenance"))
    large.assign(4.3, "inc-9", "move", "m1", "m6")
    assert [item.id for item in view_of(large).open_incidents] == ["inc-9"]
    completed = say.JobCompleted(steps=4, digest="d" * 64, identical=True)
    for end in (completed, say.JobFailed(reason="the script raised")):
        ended = type(large)()
        ended.envelopes = list(large.envelopes)
        ended.tell(5.0, end)
        view = view_of(ended)
        assert view.open_incidents == ()
        assert (view.incidents["inc-9"].state, view.incidents["inc-9"].doing) == (
            "unfinished",
            "the job ended first",
        )


def test_a_machine_lost_after_the_last_step(story) -> None:
    """It was replaced, there was no step left to do, and the job completed: that is its end."""
    lose(story, 4.7, "m1", "inc-1")
    story.assign(4.8, "inc-1", "failure", "m1", "m2")
    story.plan(4.9, 2, "failure", ("m0", "m2"), ("m1",), ("m2",), ("inc-1",))
    story.commit(5.0, 2, "failure", ("m0", "m2"), ("m1",), ("m2",), ("inc-1",), 4)
    story.tell(5.5, say.JobCompleted(steps=4, digest="d" * 64, identical=True))
    (incident,) = view_of(story).closed_incidents
    assert (incident.joiner, incident.step, incident.between("detected", "resumed")) == (
        "m2",
        4,
        pytest.approx(0.8),
    )


def test_a_machine_whose_seat_goes_with_another_incident(large) -> None:
    """A joiner is lost right after its switch: no switch names its incident, which ends with the seat."""
    lose(large, 4.7, "m1", "inc-1")
    large.assign(4.8, "inc-1", "failure", "m1", "m3")
    large.plan(4.9, 2, "failure", ("m0", "m3", "m2"), ("m1",), ("m3",), ("inc-1",))
    large.commit(5.0, 2, "failure", ("m0", "m3", "m2"), ("m1",), ("m3",), ("inc-1",), 4)
    lose(large, 5.1, "m3", "inc-3")
    large.assign(5.2, "inc-1", "failure", "m3", "m4")
    large.plan(5.3, 3, "failure", ("m0", "m4", "m2"), ("m3",), ("m4",), ("inc-1",))
    assert "inc-3" in {item.id for item in view_of(large).open_incidents}
    large.commit(5.5, 3, "failure", ("m0", "m4", "m2"), ("m3",), ("m4",), ("inc-1",), 4)
    large.tell(5.6, say.TrainingResumed(epoch=3, step=5))
    closed = {item.id: (item.epoch, item.joiner) for item in view_of(large).closed_incidents}
    assert closed["inc-3"] == (3, "m4")
    assert view_of(large).open_incidents == ()


def test_a_start_that_broke_after_its_first_step(large) -> None:
    """It ended what it was made for, though it was lost itself before training was under way."""
    lose(large, 4.7, "m0", "inc-0")
    lose(large, 4.8, "m1", "inc-1")
    for position, name in enumerate(("m3", "m4", "m2")):
        large.launch(5.5, name, position, 2)
    large.plan(5.8, 2, "start", ("m3", "m4", "m2"), (), (), ())
    large.commit(6.0, 2, "start", ("m3", "m4", "m2"), (), (), (), 0)
    large.tell(6.2, say.TrainingResumed(epoch=2, step=3))
    for name, incident in (("m3", "inc-3"), ("m4", "inc-4")):
        lose(large, 6.5, name, incident)
    start_again(large, 7.0, 3, 3, ("m5", "m6", "m2"), 2)
    epochs = {item.id: (item.epoch, item.step) for item in view_of(large).closed_incidents}
    assert epochs == {"inc-0": (2, 2), "inc-1": (2, 2), "inc-3": (3, 2), "inc-4": (3, 2)}
