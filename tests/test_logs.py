"""Log lines: one per fact, with the usual facts, for a person or as JSON."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainmover import logs
from trainmover.errors import ConfigError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test sets up is taken back."""
    for name in (logs.LEVEL_VARIABLE, logs.FORMAT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    root.setLevel(level)
    logs._always.clear()
    logs._following.clear()


def written(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_fact_is_one_json_line_with_the_usual_facts() -> None:
    """Fields come with the line, with the program, or are asked for; unknown ones are left out."""
    stream = io.StringIO()
    logs.start("info", stream)
    logs.bind(job="j", service="health")
    logs.follow(lambda: {"epoch": 3, "step": None})
    logs.get("trainmover.x").info("machine.failed", machine="m1", incident="i-1", extra=5)
    (line,) = written(stream)
    assert list(line) == [
        "time", "level", "logger", "event", "job", "service", "machine", "epoch", "incident", "extra",
    ]  # fmt: skip
    assert (line["event"], line["machine"], line["epoch"]) == ("machine.failed", "m1", 3)
    assert line["time"].endswith("Z")


def test_the_standard_librarys_lines_come_out_alike() -> None:
    """What libraries log, tracebacks included, is a line of the same form."""
    stream = io.StringIO()
    logs.start("warning", stream)
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("nats").exception("it %s", "failed")
    (line,) = written(stream)
    assert (line["event"], line["logger"], line["level"]) == ("it failed", "nats", "error")
    assert "KeyError: 'gone'" in line["exception"]


def test_it_is_quiet_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings and worse only, unless TRAINMOVER_LOG says otherwise."""
    stream = io.StringIO()
    logs.start(None, stream)
    logs.get("trainmover.x").info("not told")
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "INFO")
    logs.start(None, stream)
    logs.get("trainmover.x").info("told")
    assert [line["event"] for line in written(stream)] == ["told"]


def test_a_terminal_gets_one_readable_line_without_escapes_of_others(monkeypatch) -> None:
    """Control characters in what others say do not reach the terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.start("info", stream)
    logs.get("trainmover.health").warning("bad\n\x1b[2J", reason="a\x07b")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("warning health: bad  [2J reason=a b")


def test_json_is_readable_again() -> None:
    """The last words of a program that ended are shown as sentences."""
    stream = io.StringIO()
    logs.start("info", stream)
    logs.get("trainmover.x").error("no bus", job="j")
    assert logs.readable(stream.getvalue().strip()).endswith("error   x: no bus job=j")
    assert logs.readable("Traceback") == "Traceback"
    assert logs.readable("{not json") == "{not json"


def test_a_library_leaves_a_script_that_logs_alone() -> None:
    """In a user's process nothing is set up when the script has done so."""
    before = list(logging.getLogger("trainmover").handlers)
    assert logging.getLogger().handlers  # pytest's
    logs.start("info", io.StringIO(), root="trainmover")
    assert logging.getLogger("trainmover").handlers == before


def test_facts_of_an_envelope() -> None:
    """The id, the incident, and what the event says of the usual facts."""
    event = say.TrainingResumed(epoch=2, step=7)
    envelope = Envelope(id="e1", source="s", time=1.0, job="j", event=event, incident="i")
    assert logs.facts_of(envelope) == {"id": "e1", "incident": "i", "epoch": 2, "step": 7}


@pytest.mark.parametrize("name", [logs.LEVEL_VARIABLE, logs.FORMAT_VARIABLE])
def test_wrong_settings_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level or a format that does not exist is told with those that do."""
    monkeypatch.setenv(name, "loud")
    with pytest.raises(ConfigError, match="'loud'"):
        logs.start(None, io.StringIO())


def test_the_command_line_refuses_a_level_that_is_none() -> None:
    """``--log-level`` is checked before anything is started."""
    command = [sys.executable, "-m", "trainmover.cli", "--log-level", "loud", "status"]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False, text=True)
    assert result.returncode == 2
    assert "there is no log level 'loud'; there are debug, info, warning, error" in result.stderr
