"""The command line itself: help, wrong input, decoding; what it starts is tested in tests/cluster."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
from rich.console import Console
from typer.testing import CliRunner

from trainmover.cli import display, run, tables
from trainmover.cli.app import app
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import write_log
from trainmover.monitor.report import IncidentReport, Report
from trainmover.monitor.view import ClusterView


def call(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "trainmover.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def envelope(event: say.Event, at: float = 10.0, number: int = 0) -> Envelope:
    return Envelope(id=f"e{number}", source="test", time=at, job="job", event=event)


JOINED = say.MachineJoined(machine="m0", incarnation="a", host="h", slots=1, pid=1)


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "demo",
        "status",
        "move",
        "monitor",
        "top",
        "service",
        "machine",
        "submit",
        "wait",
        "credentials",
        "decode",
        "events tail",
        "events export",
        "events replay",
    ],
)
def test_every_command_has_a_help(command: str) -> None:
    """Each command explains itself and exits with 0."""
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_wrong_input_is_one_sentence_and_code_2(tmp_path: Path) -> None:
    """What the user got wrong is told without a traceback, with exit code 2."""
    wrong = call("run", "--fault", "explode:machine=1,step=2", "train.py")
    assert wrong.returncode == 2
    assert b"the kinds are kill, move, stop, slow" in wrong.stderr
    assert b"Traceback" not in wrong.stderr
    assert call("run", "--machines", "0", "train.py").returncode == 2
    assert call("events", "replay", str(tmp_path)).returncode == 2
    assert call("service", "weather").returncode == 2


def test_a_bus_that_is_not_there_is_told(tmp_path: Path) -> None:
    """With an address nobody listens at, the exit code is 1 and the sentence says what to check."""
    result = call("status", "--bus", "nats://127.0.0.1:9", "--job", "job")
    assert result.returncode == 1
    assert b"trainmover: " in result.stderr
    assert b"Traceback" not in result.stderr


def test_decode_turns_msgpack_into_json() -> None:
    """decode reads one message from stdin, as the nats command line pipes it."""
    good = call("decode", stdin=msgpack.packb({"machine": "m1", "body": b"\x00\xff"}))
    assert good.returncode == 0
    assert good.stdout == b'{"machine": "m1", "body": "00ff"}\n'
    bad = call("decode", stdin=b"\xc1")
    assert bad.returncode == 1
    assert b"Traceback" not in bad.stderr


def test_options_after_the_script_are_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything after SCRIPT goes to the script, even what looks like an option of ours."""
    script = tmp_path / "train.py"
    script.write_text("")
    seen = []
    monkeypatch.setattr(run, "_drive", lambda config, *_, **__: seen.append(config) or 0)
    arguments = ["run", "--machines", "3", "--fault", "kill:machine=1,step=2", str(script)]
    result = CliRunner().invoke(app, [*arguments, "--seed", "9", "--machines", "5"])
    assert result.exit_code == 0
    assert (seen[0].machines, seen[0].seed) == (3, 0)
    assert seen[0].args == ("--seed", "9", "--machines", "5")
    assert str(seen[0].faults[0]) == "kill:machine=m1,step=2"


def test_how_standbys_are_warmed_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory, place and size of recordings are options; a size has a unit, a folder becomes absolute."""
    script = tmp_path / "train.py"
    script.write_text("")
    seen = []
    monkeypatch.setattr(run, "_drive", lambda config, *_, **__: seen.append(config) or 0)
    monkeypatch.chdir(tmp_path)
    arguments = [
        "run",
        "--standby-memory",
        "sequential",
        "--recordings",
        "kept",
        "--recording-limit",
        "1.5 GiB",
        "--warmup-steps",
        "3",
    ]
    assert CliRunner().invoke(app, [*arguments, str(script)]).exit_code == 0
    assert CliRunner().invoke(app, ["run", "--recordings", "s3://bucket/x", str(script)]).exit_code == 0
    assert (seen[0].standby_memory, seen[0].recordings) == ("sequential", str(tmp_path / "kept"))
    assert (seen[0].recording_limit_bytes, seen[0].warmup_steps) == (3 * 2**29, 3)
    assert (seen[1].standby_memory, seen[1].recordings) == ("resident", "s3://bucket/x")
    assert (seen[1].recording_limit_bytes, seen[1].warmup_steps) == (2 * 2**30, 2)


def test_the_demo_kills_and_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo runs the packaged example with one kill and one later move."""
    seen = []
    monkeypatch.setattr(run, "_drive", lambda config, *_, **__: seen.append(config) or 0)
    assert CliRunner().invoke(app, ["demo", "--steps", "40"]).exit_code == 0
    (config,) = seen
    assert [str(spec) for spec in config.faults] == ["kill:machine=m1,step=16", "move:machine=m2,step=30"]
    assert (config.machines, config.standbys, config.script.name) == (3, 1, "train_gpt.py")
    assert config.script.is_file()


def test_a_log_is_exported_and_replayed(tmp_path: Path) -> None:
    """A run's log can be copied out of its folder, and a log without services has no differences."""
    (tmp_path / "run").mkdir()
    write_log(tmp_path / "run" / "events.tmlog", [envelope(JOINED)])
    copy = tmp_path / "copy.tmlog"
    exported = CliRunner().invoke(app, ["events", "export", str(copy), str(tmp_path / "run")])
    assert exported.output == f"1 events in {copy}\n"
    replayed = CliRunner().invoke(app, ["events", "replay", str(copy)])
    assert replayed.exit_code == 0
    assert "0 differences" in replayed.output


def test_the_report_table_fits_a_terminal() -> None:
    """The table at the end has all columns in 80 characters."""
    phases = {"detect": 1.234, "plan": 0.012, "prepare": 0.2, "copy": 0.05, "switch": 0.01}
    incident = IncidentReport("inc-1", "failure", "m1", "m3", 120, 2.345, 3.21, 0, 1, phases)
    report = Report(
        *(0, 200, "d" * 64, [1.0], 0.5, 1.1, 0.001, [incident], {"first": 3000, "last": 5}),
        problems=["something is odd"],
    )
    out = io.StringIO()
    Console(file=out, width=80).print(tables.report_group(report))
    text = out.getvalue()
    heads = [
        "incident",
        "who",
        "at",
        "detect",
        "plan",
        "prepare",
        "copy",
        "switch",
        "downtime",
        "steps",
        "lost",
        "void",
    ]
    assert text.split()[: len(heads)] == heads
    row = "failure m1→m3 120 1.23 s 12 ms 0.20 s 50 ms 10 ms 2.35 s 3.21 0 1"
    assert row in " ".join(text.split())
    assert "recordings: first 2.9 KiB, last 5 B" in text
    assert "warning: something is odd" in text


def test_plain_lines_tell_facts_and_progress() -> None:
    """Where the output is no terminal, each fact is a line and the step comes every other second."""
    out = io.StringIO()
    plain = display.display_for(Console(file=out, width=200))
    sample = say.StepSample(
        machine="m0", rank=0, epoch=1, step=3, seconds=0.1, metrics={"loss": 2.5}, peak_rss_bytes=1
    )
    with plain as shown:
        shown.observe(envelope(JOINED))
        shown.observe(envelope(sample, 11.0))
        shown.observe(envelope(sample.model_copy(update={"step": 4}), 11.5))
        shown.notice("the bus ended; it is started again")
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert [line.split("  ")[-1] for line in lines] == [
        "machine m0 joined (pid 1, 1 slots)",
        "epoch 0",
        "the bus ended; it is started again",
    ]
    assert "step 3  loss 2.5000" in lines[1]


def test_the_live_picture_shows_machines_and_incidents() -> None:
    """On a terminal the machines, the step and what an incident waits for are drawn."""
    out = io.StringIO()
    live = display.LiveDisplay(Console(file=out, width=100, force_terminal=True))
    launch = say.MachineLaunch(
        machine="m0",
        incarnation="a",
        position=0,
        world_size=1,
        ranks_per_machine=1,
        generation=0,
        record=True,
    )
    failed = say.MachineFailed(machine="m0", incarnation="a", reason="it is gone")
    with live as shown:
        for number, event in enumerate((JOINED, launch, failed)):
            shown.observe(envelope(event, 10.0 + number, number))
    Console(file=out, width=100).print(live._draw())
    assert "failure of m0: choosing a standby" in out.getvalue()
    assert "it is gone" in out.getvalue()


def test_a_long_history_of_machines_is_shortened() -> None:
    """Machines that are gone do not push the living ones out of sight."""
    view = ClusterView()
    for number in range(9):
        name = f"m{number}"
        view.apply(envelope(JOINED.model_copy(update={"machine": name})))
        view.apply(envelope(say.MachineLeft(machine=name, incarnation="a", reason="released")))
    out = io.StringIO()
    Console(file=out, width=100).print(tables.machines_table(view))
    assert "and 5 more that are gone" in out.getvalue()
