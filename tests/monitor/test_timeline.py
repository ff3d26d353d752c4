"""The timeline and the picture of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmover.events.catalogue import EVENTS
from trainmover.monitor import facts
from trainmover.monitor.plot import draw_losses
from trainmover.monitor.report import build_report
from trainmover.monitor.timeline import build_timeline, natural


def test_a_trace_has_tracks_spans_and_points(story) -> None:
    """Steps are spans on their machine, incidents have their phases, bus events are points."""
    story.kill()
    trace = json.loads(json.dumps(build_timeline(story.envelopes, story.facts)))["traceEvents"]
    names = {event["args"]["name"] for event in trace if event["name"] == "process_name"}
    assert names == {"incidents", "standbys", "events", "machine m0", "machine m1", "machine m2"}
    spans = [event for event in trace if event["ph"] == "X"]
    assert all(event["dur"] >= 1 and event["ts"] >= 0 for event in spans)
    phases = [event["name"] for event in spans if event["cat"] == "phase"]
    assert phases == ["detect", "assign", "plan", "ask", "prepare", "switch and copy", "commit", "first step"]
    (whole,) = [event for event in spans if event["cat"] == "incident"]
    assert (whole["name"], whole["dur"]) == ("failure: m1 -> m2", 1_400_000)
    assert sum(event.get("cat") == "fault" for event in trace) == 1
    (warm,) = [event for event in spans if event["cat"] == "warm-up"]
    assert (warm["name"], warm["dur"]) == ("warm", 100_000)


def test_machines_are_ordered_as_people_count() -> None:
    """m10 comes after m9."""
    assert sorted(["m10", "m9", "helper", "m0"], key=natural) == ["helper", "m0", "m9", "m10"]


def test_a_picture_is_drawn(story, tmp_path: Path) -> None:
    """The loss curve with its incidents is a PNG file."""
    pytest.importorskip("matplotlib")
    story.kill()
    draw_losses(build_report(story.envelopes, story.facts), tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_every_event_of_a_story_has_a_line(story) -> None:
    """Any event can be told on one line; those that matter to a person as a sentence."""
    story.kill()
    story.complete()
    lines = [facts.line(envelope) for envelope in story.envelopes]
    assert all("\n" not in line for line in lines)
    assert any("machine m2 takes the place of m1 (failure) [inc-1]" in line for line in lines)
    assert any("epoch 2 is planned (failure, m1 -> m2): +0 -0 of 1 links" in line for line in lines)
    told = {type(envelope.event) for envelope in story.envelopes if facts.sentence(envelope.event)}
    assert told <= set(EVENTS.values())
