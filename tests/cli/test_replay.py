"""``trainmover events show``, ``export`` and ``replay``: every source, every way to look."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trainmover.cli.app import app
from trainmover.events.log import read_log
from trainmover.events.nats_bus import NatsBus
from trainmover.events.server import NatsServer

KILL = Path(__file__).resolve().parents[2] / "events" / "recordings" / "kill.tmlog"


def events(*arguments: str | Path) -> Result:
    """Call ``trainmover events`` in this process."""
    return CliRunner().invoke(app, ["events", *map(str, arguments)])


def test_replay_tells_the_counts_and_no_difference() -> None:
    """One line for a log that replays the same, or one JSON object for tools."""
    plain = events("replay", KILL)
    assert plain.exit_code == 0
    assert plain.output.rstrip().endswith("0 differences")
    told = json.loads(events("replay", KILL, "--json").output)
    assert told["same"] is True
    assert told["differences"] == []
    assert set(told["services"]) == {"health", "standby", "planner", "switcher"}
    assert all(counts["inputs"] for counts in told["services"].values())


def test_replay_of_one_service_until_an_event() -> None:
    """--service and --until bound what is fed."""
    failed = next(r.envelope for r in read_log(KILL) if r.envelope.type == "machine.failed")
    whole = json.loads(events("replay", KILL, "--service", "health", "--json").output)
    part = json.loads(events("replay", KILL, "--service", "health", "--until", failed.id, "--json").output)
    assert set(whole["services"]) == set(part["services"]) == {"health"}
    assert part["services"]["health"]["inputs"] < whole["services"]["health"]["inputs"]
    assert part["services"]["health"]["outputs"] == 1
    early = events("replay", KILL, "--until", "2026-01-01T00:00:00Z", "--json")
    assert all(counts["inputs"] == 0 for counts in json.loads(early.output)["services"].values())


def test_an_incident_is_explained_for_people_and_for_tools() -> None:
    """The text has decisions, inputs, moves and where the time went; the JSON has the same chain."""
    text = events("replay", KILL, "--explain", "m1").output
    for words in (
        "failure of m1, m3 takes its place",
        "because  machine.probed by health: machine m1 was asked: absent",
        "moves    health: asked → failed (absent)",
        "says     switch.committed  epoch 2 is committed",
        "knowing",
        "where the time went",
        "training.resumed",
    ):
        assert words in text, text
    told = json.loads(events("replay", KILL, "--explain", "m1", "--json").output)
    assert (told["kind"], told["machine"], told["joiner"], told["state"]) == ("failure", "m1", "m3", "closed")
    services = [item["service"] for item in told["chain"] if "service" in item]
    assert services[0] == "health"
    assert set(services) == {"health", "standby", "planner", "switcher"}
    assert all(seconds >= 0 for seconds in told["phases"].values())
    known = {record.envelope.id for record in read_log(KILL)}
    assert {name for item in told["chain"] if "service" in item for name in item["inputs"]} <= known


def test_steps_are_all_printed_in_a_pipe() -> None:
    """Without a terminal nothing is asked; with --json every decision is a line."""
    text = events("replay", KILL, "--step").output
    assert "moves    switch: adopting → idle (all adopted)" in text
    assert "Enter next" not in text
    lines = [json.loads(line) for line in events("replay", KILL, "--step", "--json").output.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    only = events("replay", KILL, "--step", "--json", "--incident", "m1").output.splitlines()
    assert 0 < len(only) < len(lines)


def test_steps_are_gone_through_in_a_terminal() -> None:
    """Enter shows the next, i the next one of an incident, q ends."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "trainmover.cli", "events", "replay", str(KILL), "--step"]
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""

    def until(words: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + 30
        while words not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(mine, 4096)

    try:
        until(b"> ")
        assert b"Enter next, i next of an incident" in shown
        assert b"machine.failed" not in shown
        shown = b""
        os.write(mine, b"\n")
        until(b"> ")
        shown = b""
        os.write(mine, b"i\n")
        until(b"> ")
        assert b"machine.failed" in shown
        os.write(mine, b"q\n")
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        os.close(mine)


def test_show_prints_events_and_one_with_its_relations() -> None:
    """The log by area or incident, as lines or JSON; one event with all fields, cause and effects."""
    lines = events("show", KILL).output.splitlines()
    assert not any("journal.entry" in line for line in lines)
    assert len(events("show", KILL, "--all").output.splitlines()) > len(lines)
    machines = [
        json.loads(line) for line in events("show", KILL, "--area", "machine", "--json").output.splitlines()
    ]
    assert {item["type"].split(".")[0] for item in machines} == {"machine"}
    assert "switch.committed" in events("show", KILL, "--incident", "m1").output
    failed = next(item for item in machines if item["type"] == "machine.failed")
    one = events("show", KILL, "--id", failed["id"]).output
    assert 'machine: "m1"' in one
    assert "because of" in one
    told = json.loads(events("show", KILL, "--id", failed["id"], "--json").output)
    assert told["data"] == failed["data"]
    (plan,) = (r.envelope for r in read_log(KILL) if r.envelope.type == "plan.ready" and r.envelope.incident)
    assert "switch.prepare" in events("show", KILL, "--id", plan.id).output.split("caused", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", KILL, "--explain", "m9"), "no incident 'm9' in this log; there are:"),
        (("replay", KILL, "--until", "nothing"), "no service has heard or said 'nothing'"),
        (("replay", KILL, "--service", "weather"), "no service weather"),
        (("show", KILL, "--area", "weather"), "no area weather"),
        (("show", KILL, "--id", "x"), "no event has the id 'x'"),
        (("show", "/nowhere"), "there is no event log at /nowhere"),
        (("show", "nats://127.0.0.1:9"), "say which job with --job"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    """Unknown incidents, events, services and sources are told with what to do."""
    result = events(*arguments)
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_a_live_stream_and_a_killed_run_are_sources_too(tmp_path: Path) -> None:
    """The same log from a bus, from a run's folder, and from the store that a killed run has left."""
    records = read_log(KILL)
    job = records[0].envelope.job
    run = tmp_path / "run"
    run.mkdir()
    copy = tmp_path / "copy.tmlog"

    async def say_it_all(url: str) -> None:
        bus = await NatsBus.connect(url, job, "test")
        for record in records:
            await bus.publish(record.envelope)
        await bus.flush(30.0)
        await bus.close()

    with NatsServer(run / "bus") as server:
        asyncio.run(say_it_all(server.url))
        live = events("export", copy, server.url, "--job", job)
        assert live.output == f"{len(records)} events in {copy}\n"
        assert events("replay", server.url, "--job", job).exit_code == 0
    assert [r.envelope for r in read_log(copy)] == [r.envelope for r in records]
    left = events("replay", run)
    assert left.exit_code == 0, left.output
    shutil.copy(copy, run / "events.tmlog")
    assert events("replay", run).output == left.output
