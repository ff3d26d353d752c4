"""The promise when the control plane dies: services and the bus may be killed at any time.

Training goes on without them; a switch waits for them at most.  SIGKILL to real processes of a real
training run, in the middle of training and in the middle of a switch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.training import Outcome, Running, train

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

SERVICES = ("health", "standby", "planner", "switcher")
BUS = ("nats-server",)


def victims(running: Running, *names: str) -> None:
    """Kill services by name; ``bus`` is the server."""
    for name in names:
        running.kill(*(BUS if name == "bus" else ("service", name)))


def same(outcome: Outcome, undisturbed: Outcome) -> bool:
    """Equal bytes and equal losses."""
    return (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


def test_everything_is_killed_during_training_and_during_a_switch(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    """kill -9 of every service and of the bus while training runs, and again while a machine is replaced."""

    def meanwhile(running: Running) -> None:
        running.until("is warm and parked")
        victims(running, *SERVICES, "bus")
        running.until("takes the place of m1", limit=150.0)
        victims(running, *SERVICES, "bus")

    slow = "slow:machine=0,step=5,factor=40"
    outcome = train(tmp_path, slow, "kill:machine=1,step=32", meanwhile=meanwhile)
    assert outcome.incidents == [("failure", "m1")]
    assert same(outcome, undisturbed)


@pytest.mark.long(every=0)  # the test above has all of them at once
@pytest.mark.parametrize("victim", ["planner", "bus", "switcher", "health", "standby"])
def test_one_is_killed_during_a_switch(victim: str, undisturbed: Outcome, tmp_path: Path) -> None:
    """kill -9 of a service or of the bus when a machine was just declared dead changes nothing."""

    def meanwhile(running: Running) -> None:
        running.until("m1 is declared dead")
        victims(running, victim)

    outcome = train(tmp_path, "kill:machine=1,step=20", meanwhile=meanwhile)
    assert outcome.incidents == [("failure", "m1")]
    assert same(outcome, undisturbed)
