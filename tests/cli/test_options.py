"""The options that describe a job: read as people write them, and the same in every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trainmover.cli import options
from trainmover.cli.app import app
from trainmover.errors import ConfigError

HERE_ONLY = {"bus", "fault", "report", "tls", "run_dir", "script"}
"""What ``run`` alone is told, or is told in other words, because it starts everything on this computer."""


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("17", 17), ("2k", 2000), ("2 KiB", 2048), ("1.5MB", 1_500_000), ("3g", 3 * 10**9)],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    """A number and a unit, decimal or binary."""
    assert options.bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "much", "-1", "2 XB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """What cannot be read is told with an example."""
    with pytest.raises(ConfigError, match="512MiB"):
        options.bytes_of(text)


def test_a_job_is_described_alike_here_and_on_a_cluster() -> None:
    """Whatever ``run`` can be told of a job, ``submit`` can, in the same words and with the same default."""
    commands = typer.main.get_command(app).commands
    told = {
        name: {parameter.name: parameter for parameter in commands[name].params} for name in ("run", "submit")
    }
    for name, parameter in told["run"].items():
        if name not in HERE_ONLY:
            other = told["submit"][name]
            assert (other.opts, other.default) == (parameter.opts, parameter.default), name
            assert other.help == parameter.help, name


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_job_that_cannot_be_is_refused_alike(command: str, tmp_path: Path) -> None:
    """Nothing to go back to, where a lost state is to come from a checkpoint; nobody hears of such a job."""
    script = tmp_path / "script.py"
    script.touch()
    asked = [command, "--state", "checkpoint", str(script)]
    if command == "submit":
        asked[1:1] = ["--bus", "nats://127.0.0.1:9", "--job", "none"]
    done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, ConfigError)
    assert "--state checkpoint needs --checkpoint-every" in str(done.exception)
