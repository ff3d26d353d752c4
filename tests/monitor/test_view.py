"""The view of a cluster: what a sequence of events comes to."""

from __future__ import annotations

import pytest

from trainmover.events import catalogue as say
from trainmover.monitor.view import ClusterView


def view_of(story) -> ClusterView:
    view = ClusterView()
    for envelope in story.envelopes:
        view.apply(envelope)
    return view


def states(view: ClusterView) -> dict[str, str]:
    return {machine.name: machine.state for machine in view.by_position()}


def test_a_start_seats_the_members_and_leaves_the_spare(story) -> None:
    """After the first commit the members train by position and the spare is a spare."""
    view = view_of(story)
    assert states(view) == {"m0": "training", "m1": "training", "m2": "spare"}
    assert [machine.position for machine in view.by_position()] == [0, 1, None]
    assert (view.phase, view.epoch, view.layout) == ("training", 1, ("m0", "m1"))


def test_a_failure_is_followed_from_the_first_sign_to_the_first_step(story) -> None:
    """Every stage of a failure is noted with its time, and the seats change hands."""
    story.kill()
    view = view_of(story)
    (incident,) = view.closed_incidents
    assert (incident.kind, incident.machine, incident.joiner) == ("failure", "m1", "m2")
    times = {stage: round(time - story.ORIGIN, 2) for stage, time in incident.times.items()}
    assert times == {
        "opened": 4.7,
        "detected": 4.8,
        "assigned": 4.9,
        "planned": 4.95,
        "preparing": 5.0,
        "prepared": 5.3,
        "adopted": 5.7,
        "committed": 5.8,
        "resumed": 6.1,
    }
    assert states(view) == {"m0": "training", "m2": "training", "m1": "failed"}


@pytest.mark.parametrize(
    ("until", "doing"),
    [
        (4.8, "choosing a standby"),
        (4.9, "planning the new layout"),
        (4.95, "asking all ranks to prepare"),
        (5.25, "connecting beside training: 1 of 2 ranks"),
        (5.65, "switching and copying state: 1 of 2 ranks"),
        (5.7, "committing the new epoch"),
        (5.8, "running the first step"),
    ],
)
def test_an_open_incident_says_what_is_happening(story, until: float, doing: str) -> None:
    """At every moment a person is told what the incident waits for."""
    story.kill()
    view = ClusterView()
    for envelope in story.envelopes:
        if envelope.time <= story.ORIGIN + until:
            view.apply(envelope)
    (incident,) = view.open_incidents
    assert incident.doing == doing


def test_an_aborted_switch_starts_the_incident_again(story) -> None:
    """After an abort the next attempt counts, with its own epoch, joiner and times."""
    story.started(2.5)
    story.join(2.6, "m3")
    story.tell(4.0, say.MachineFailed(machine="m1", incarnation="a", reason="gone"), "inc-1")
    story.assign(4.1, "inc-1", "failure", "m1", "m2")
    story.prepare(4.2, 2, "failure", ("m0", "m2"), ("m1",), ("m2",), ("inc-1",))
    story.prepared(4.3, 2, 0, "m0")
    story.tell(4.4, say.MachineFailed(machine="m2", incarnation="a", reason="gone, too"), "inc-2")
    story.tell(4.5, say.SwitchAborted(epoch=2, incidents=("inc-1",), reason="m2 died"))
    story.assign(4.6, "inc-1", "failure", "m1", "m3")
    story.prepare(4.7, 3, "failure", ("m0", "m3"), ("m1",), ("m3",), ("inc-1",))
    (incident,) = view_of(story).open_incidents
    assert (incident.joiner, incident.epoch, incident.attempts) == ("m3", 3, 2)
    assert incident.prepared == {}
    assert round(incident.times["preparing"] - story.ORIGIN, 2) == 4.7


def test_a_move_is_timed_from_the_request(story) -> None:
    """A move opens when it is asked for; one that is refused says why."""
    story.started(2.5)
    story.tell(3.0, say.MoveRequested(machine="m0", reason="maintenance"))
    story.assign(3.1, "inc-m", "move", "m0", "m2")
    story.tell(3.2, say.MoveRequested(machine="m9"))
    story.tell(3.3, say.MoveRefused(machine="m9", incident="inc-x", reason="no such machine"))
    view = view_of(story)
    move, refused = view.incidents.values()
    assert (move.kind, move.cause, round(move.times["opened"] - story.ORIGIN, 2)) == (
        "move",
        "maintenance",
        3.0,
    )
    assert (refused.state, refused.doing) == ("refused", "refused: no such machine")


def test_a_leaver_that_dies_does_not_open_a_second_incident(story) -> None:
    """The death of a machine that is being moved away belongs to its move."""
    story.started(2.5)
    story.tell(3.0, say.MoveRequested(machine="m0"))
    story.assign(3.1, "inc-m", "move", "m0", "m2")
    story.tell(3.2, say.MachineFailed(machine="m0", incarnation="a", reason="gone"), "inc-f")
    assert list(view_of(story).incidents) == ["inc-m"]


def test_a_failure_with_nothing_to_keep_is_a_new_start(story) -> None:
    """Before anything is committed a failure ends with the start of the next generation."""
    story.tell(3.0, say.MachineFailed(machine="m1", incarnation="a", reason="gone"), "inc-1")
    story.launch(3.1, "m0", 0, 1)
    story.launch(3.1, "m2", 1, 1)
    story.prepare(3.2, 2, "start", ("m0", "m2"), (), ("m0", "m2"), ())
    story.commit(3.4, 2, "start", ("m0", "m2"), (), ("m0", "m2"), (), 0)
    story.started(3.9, generation=1, epoch=2)
    (incident,) = view_of(story).closed_incidents
    assert (incident.restart, incident.joiner, incident.epoch) == (True, "m2", 2)


def test_a_held_job_says_so_until_somebody_comes(story) -> None:
    """job.held shows in the job and its incident, and goes when a standby is assigned."""
    story.started(2.5)
    story.tell(3.0, say.MachineFailed(machine="m1", incarnation="a", reason="gone"), "inc-1")
    story.tell(3.1, say.JobHeld(incident="inc-1", reason="no standby is left"))
    view = view_of(story)
    assert (view.phase, view.open_incidents[0].doing) == ("held", "held: no standby is left")
    story.assign(3.2, "inc-1", "failure", "m1", "m2")
    assert view_of(story).phase == "training"


def test_samples_give_step_loss_and_rate(story) -> None:
    """Step samples give the last step, its metrics and the rate; beats give what a machine sees."""
    for step in range(4):
        story.tell(
            3 + step / 2,
            say.StepSample(
                machine="m0",
                rank=0,
                epoch=1,
                step=step,
                seconds=0.5,
                metrics={"loss": 4.0 - step},
                peak_rss_bytes=1,
            ),
        )
    story.tell(
        5.0,
        say.Heartbeat(
            machine="m0",
            incarnation="a",
            sequence=0,
            ranks=("running",),
            step=3,
            cpu_percent=50.0,
            rss_bytes=1 << 20,
        ),
    )
    view = view_of(story)
    assert (view.step, view.metrics, view.steps_per_second) == (3, {"loss": 1.0}, 2.0)
    assert (view.machines["m0"].cpu_percent, view.machines["m0"].ranks) == (50.0, ("running",))


def test_events_of_an_earlier_life_change_nothing(story) -> None:
    """What is said of another incarnation of a machine is not said of this one."""
    story.tell(3.0, say.MachineFailed(machine="m1", incarnation="older", reason="gone"), "inc-1")
    story.tell(3.0, say.MachineLeft(machine="m0", incarnation="older", reason="fenced"))
    view = view_of(story)
    assert view.incidents == {}
    assert states(view)["m0"] == "training"


def test_the_same_log_twice_gives_the_same_view(story) -> None:
    """Applying every event twice changes nothing: the bus may repeat itself."""
    story.kill()
    story.complete()
    once = view_of(story)
    story.envelopes = [envelope for envelope in story.envelopes for _ in range(2)]
    twice = view_of(story)
    assert states(once) == states(twice)
    assert once.closed_incidents[0].times == twice.closed_incidents[0].times
    assert (twice.phase, twice.digest, twice.steps) == ("completed", "d" * 64, 6)
