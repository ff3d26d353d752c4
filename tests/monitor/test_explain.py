"""Explanations of recorded incidents: the chain is whole, ordered, and says who decided on what."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.events.log import read_log
from trainmover.monitor.explain import Decision, Explanation, Fact, bounded, explain, find, incidents_of

FOLDER = Path(__file__).resolve().parents[2] / "events" / "recordings"


def log(name: str) -> list[Envelope]:
    """The events of a recording."""
    return [record.envelope for record in read_log(FOLDER / f"{name}.tmlog")]


def explained(name: str, which: str) -> Explanation:
    """The explanation of one incident of a recording."""
    envelopes = log(name)
    return explain(envelopes, find(envelopes, which))


def story(explanation: Explanation) -> list[str]:
    """Who said what, in order; decisions that only moved something are left out."""
    lines: list[str] = []
    for item in explanation.chain:
        if isinstance(item, Fact):
            lines.append(item.envelope.type)
        else:
            lines += [f"{item.service}: {envelope.type}" for envelope in item.said]
    return lines


def in_order(lines: list[str], *wanted: str) -> bool:
    """Whether these lines are there in this order, with others between them."""
    rest = iter(lines)
    return all(line in rest for line in wanted)


CHAIN = (
    "standby: standby.assigned",
    "planner: plan.ready",
    "switcher: switch.prepare",
    "switch.prepared",
    "switch.adopted",
    "switcher: switch.committed",
    "training.resumed",
)


def test_a_kill_is_told_from_the_first_sign_to_the_first_step() -> None:
    """Evidence, verdict, assignment, plan, switch, step: each after the other, nothing of other incidents."""
    explanation = explained("kill", "m1")
    assert in_order(story(explanation), "link.broken", "machine.probed", "health: machine.failed", *CHAIN)
    times = [item.time for item in explanation.chain]
    assert times == sorted(times)
    assert "machine.launch" not in str(story(explanation))
    assert explanation.phases[0][0] == "detect"
    assert not any(decision.changed for decision in explanation.decisions)


def test_decisions_name_their_inputs() -> None:
    """The commit rests on what every rank reported, the assignment on a spare that was known to be warm."""
    decisions = {
        envelope.type: decision
        for decision in explained("kill", "m1").decisions
        for envelope in decision.said
    }
    committed = decisions["switch.committed"]
    types = [envelope.type for envelope in (committed.because, *committed.inputs)]
    assert types.count("switch.adopted") == 3
    assert [trigger for _, trigger, _ in committed.moves] == ["all adopted"]
    failed = decisions["machine.failed"]
    assert failed.because.type == "machine.probed"
    assert [trigger for _, trigger, _ in failed.moves] == ["absent"]
    assigned = decisions["standby.assigned"]
    warm = [e for e in (assigned.because, *assigned.inputs, *assigned.knew) if e.type == "standby.parked"]
    assert [envelope.machine for envelope in warm] == ["m3"]


def test_a_move_begins_with_its_request() -> None:
    """Nothing failed: the first fact is the wish, and standby waits for a warm spare."""
    explanation = explained("move", "m2")
    assert story(explanation)[0] == "move.requested"
    assert in_order(story(explanation), "move.requested", *CHAIN)
    assert "machine.failed" not in str(story(explanation))


def test_an_aborted_switch_is_told_with_all_its_attempts() -> None:
    """Two joiners die in their switches: their verdicts, the aborts and the next attempts are there."""
    explanation = explained("aborted", "m1")
    lines = story(explanation)
    assert lines.count("health: machine.failed") == 3
    assert lines.count("switcher: switch.aborted") == 2
    assert lines.count("planner: plan.ready") == 3
    assert explanation.view is not None
    assert explanation.view.attempts == 3


def test_a_start_from_a_checkpoint_is_told_to_its_first_step() -> None:
    """Where no machine has the state, the chain goes on through the new generation."""
    lines = story(explained("checkpoint", "m0"))
    assert in_order(
        lines, "planner: machine.launch", "planner: plan.ready", "checkpoint.loaded", "training.started"
    )


def test_a_job_that_ends_is_told_with_its_reason() -> None:
    """Without a standby the last decision is the end of the job."""
    assert story(explained("held", "m1"))[-1] == "standby: job.failed"


def test_incidents_are_found_by_id_beginning_machine_and_last() -> None:
    """What people type is enough; what fits nothing is answered with what there is."""
    envelopes = log("kill")
    (name,) = [name for name, about in incidents_of(envelopes).items() if about.startswith("failure of m1")]
    assert find(envelopes, name) == find(envelopes, name[:7]) == find(envelopes, "m1") == name
    assert find(envelopes, "last") in incidents_of(envelopes)
    with pytest.raises(
        ConfigError, match=f"no incident 'm9' in this log; there are:\n  {name}  failure of m1, m3 comes"
    ):
        find(envelopes, "m9")
    with pytest.raises(ConfigError, match="there is none"):
        find([], "last")


def test_many_reports_are_shortened() -> None:
    """Of more facts of one type in a row the first ones and the last stay; decisions all stay."""
    explanation = explained("kill", "m1")
    short = bounded(explanation, 1)
    assert short.decisions == explanation.decisions
    rows = [item for item in short.chain if isinstance(item, Fact) and item.envelope.type == "switch.adopted"]
    assert len(rows) <= 2
    assert all(isinstance(item, Fact | Decision) for item in short.chain)
