"""What a rank reads from its environment, and what it says when something is missing or wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.errors import ConfigError
from trainmover.training.environment import read

WHOLE = {
    "TRAINMOVER_SOCKET": "/run/rank.sock",
    "TRAINMOVER_JOB": "job",
    "TRAINMOVER_MACHINE": "m1",
    "TRAINMOVER_INCARNATION": "i1",
    "TRAINMOVER_RANKS_PER_MACHINE": "2",
    "TRAINMOVER_MODE": "live",
    "TRAINMOVER_GENERATION": "3",
    "TRAINMOVER_RUN_DIR": "/run/dir",
    "TRAINMOVER_SECRET": "00ff",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
}


def test_outside_trainmover_there_is_nothing_to_read() -> None:
    """Without a socket the script runs under torchrun or plain python."""
    assert read({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_the_least_that_is_needed() -> None:
    """Optional variables have their defaults."""
    env = read(WHOLE)
    assert env is not None
    assert (env.rank, env.slot, env.world_size, env.ranks_per_machine) == (3, 1, 4, 2)
    assert (env.mode, env.generation, env.secret) == ("live", 3, b"\x00\xff")
    assert (env.host, env.record, env.recording, env.warmup_steps) == ("127.0.0.1", False, "", 2)
    assert (env.run_dir, env.faults) == (Path("/run/dir"), ())


def test_everything() -> None:
    """Recording, sandbox folder, host and faults are read where they are given."""
    env = read(
        {
            **WHOLE,
            "TRAINMOVER_HOST": "10.0.0.1",
            "TRAINMOVER_RECORD": "1",
            "TRAINMOVER_RECORDING": "/rec",
            "TRAINMOVER_WARMUP_STEPS": "5",
            "TRAINMOVER_ROLE": "middle-2",
            "TRAINMOVER_PARK": "released",
            "TRAINMOVER_RECORDINGS": "s3://bucket/run",
            "TRAINMOVER_RECORDING_LIMIT": "1000",
            "TRAINMOVER_FAULTS": "kill:machine=1,step=20;;slow:machine=1,step=3,factor=2",
        }
    )
    assert env is not None
    assert (env.host, env.record, env.recording, env.warmup_steps) == ("10.0.0.1", True, "/rec", 5)
    assert (env.role, env.park) == ("middle-2", "released")
    assert (env.recordings, env.recording_limit) == ("s3://bucket/run", 1000)
    assert [str(fault) for fault in env.faults] == [
        "kill:machine=m1,step=20",
        "slow:machine=m1,step=3,factor=2",
    ]


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "TRAINMOVER_SOCKET"])
def test_a_missing_variable_is_named(name: str) -> None:
    """The error names the variable and the command that sets it."""
    env = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(ConfigError, match=rf"lacks '{name}'.*trainmover run"):
        read(env)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RANK", "three", "three"),
        ("TRAINMOVER_SECRET", "xyz", "malformed"),
        ("TRAINMOVER_GENERATION", "", "malformed"),
        ("TRAINMOVER_FAULTS", "explode:machine=1,step=2", "explode"),
    ],
)
def test_a_malformed_variable_is_an_error(name: str, value: str, said: str) -> None:
    """The error shows what could not be read."""
    with pytest.raises(ConfigError, match=said):
        read({**WHOLE, name: value})
