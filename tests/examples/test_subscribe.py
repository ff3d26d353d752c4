"""The external monitor agrees with the contract without importing it."""

from __future__ import annotations

import ast
from pathlib import Path

import msgpack
import pytest

from examples import subscribe
from trainmover.events import EVENTS, Envelope, Event, encode_message
from trainmover.events.catalogue import JobCompleted, MachineFailed, StandbyAssigned, StandbyWarm

START = 1_700_000_000.0


def line(monitor: subscribe.Monitor, event: Event, time: float, incident: str | None = None) -> str | None:
    """What the monitor makes of an event that TrainMover itself encoded."""
    envelope = Envelope(id=f"e{time}", source="test", time=time, job="demo", event=event, incident=incident)
    return monitor.line(*encode_message(envelope))


def test_needs_nothing_of_trainmover() -> None:
    """A subscriber installs nats-py, msgpack and pydantic, and no more."""
    tree = ast.parse(Path(subscribe.__file__).read_text(encoding="utf-8"))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {name.split(".")[0] for name in imported} & {
        "trainmover",
        "torch",
        "nats",
        "msgpack",
        "pydantic",
    }
    assert outside == {"nats", "msgpack", "pydantic"}


@pytest.mark.parametrize("kind", subscribe.CARED_FOR)
def test_knows_the_types_and_fields_of_the_catalogue(kind: str) -> None:
    """Each type that the monitor names exists in that version and has the fields that it needs."""
    name, version = kind.removeprefix("io.trainmover.").rsplit(".v", 1)
    real, mine = EVENTS[name], subscribe.CARED_FOR[kind]
    assert real.version == int(version)
    needed = {field for field, info in mine.model_fields.items() if info.is_required()}
    assert needed <= set(real.model_fields)


def test_times_an_incident_from_its_first_event() -> None:
    """Lines of one incident show the seconds since it began; other lines show none."""
    monitor = subscribe.Monitor()
    failed = MachineFailed(machine="m1", incarnation="a", reason="signal 9")
    assigned = StandbyAssigned(
        incident="inc-1", kind="failure", leaver="m1", joiner="s0", joiner_incarnation="b"
    )
    lines = [
        line(monitor, failed, START, "inc-1"),
        line(monitor, assigned, START + 0.25, "inc-1"),
        line(monitor, JobCompleted(steps=9, digest="d", identical=True), START + 3),
    ]
    assert lines == [
        "22:13:20  demo  machine.failed     m1 failed: signal 9  [inc-1 +0.00 s]",
        "22:13:20  demo  standby.assigned   s0 will take the place of m1  [inc-1 +0.25 s]",
        "22:13:23  demo  job.completed      9 steps",
    ]


def test_passes_over_what_it_does_not_care_for() -> None:
    """Other events are no concern of this monitor."""
    event = StandbyWarm(
        machine="s0",
        incarnation="a",
        generation=1,
        recordings=("x",),
        world_size=3,
        ranks_per_machine=1,
        positions=(0,),
    )
    assert line(subscribe.Monitor(), event, START) is None


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb({"machine": 3}), msgpack.packb([1])])
def test_says_what_it_cannot_read(body: bytes) -> None:
    """A message that breaks the contract becomes a line, not an end of the program."""
    headers = {"ce-type": "io.trainmover.machine.failed.v1", "ce-time": "2026-01-01T00:00:00Z"}
    said = subscribe.Monitor().line(headers, body)
    assert said is not None
    assert said.startswith("cannot read io.trainmover.machine.failed.v1: ")
