"""The promise: whatever happens to its machines, the run ends in the bytes of the undisturbed run.

The example trains for real, with a small model: three machines, a standby, an embedded server.  The
same seed runs once without faults; every other run must have its digest and all of its losses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.training import STEPS, Outcome, train

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.long(every=4)
@pytest.mark.parametrize("step", [0, 1, 2, 17, STEPS - 1])
def test_a_machine_is_killed(step: int, undisturbed: Outcome, tmp_path: Path) -> None:
    """A kill at any step, the first two and the last included, changes no bit and no loss."""
    outcome = train(tmp_path, f"kill:machine=1,step={step}")
    assert outcome.digest == undisturbed.digest
    assert outcome.losses == undisturbed.losses


def test_the_machine_of_rank_0_is_killed(undisturbed: Outcome, tmp_path: Path) -> None:
    """No rank is special, rank 0 neither."""
    outcome = train(tmp_path, "kill:machine=0,step=20")
    assert outcome.incidents == [("failure", "m0")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


def test_a_machine_is_moved(undisturbed: Outcome, tmp_path: Path) -> None:
    """Planned maintenance changes no bit.

    A move waits for a spare that is being warmed; slow steps let the job last until it is.
    """
    outcome = train(tmp_path, "slow:machine=0,step=5,factor=20", "move:machine=2,step=6")
    assert outcome.incidents == [("move", "m2")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


@pytest.mark.long(every=0)  # tests/cluster/test_data.py has one, among other faults
def test_a_frozen_machine_comes_back(undisturbed: Outcome, tmp_path: Path) -> None:
    """A machine that is frozen, replaced and goes on is fenced out and changes no bit."""
    outcome = train(tmp_path, "stop:machine=1,step=15,seconds=4")
    assert outcome.incidents == [("failure", "m1")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)


@pytest.mark.long(every=0)  # tests/cluster/test_data.py has more of it
def test_two_machines_are_killed_one_after_the_other(undisturbed: Outcome, tmp_path: Path) -> None:
    """A second failure after the first changes no bit either."""
    outcome = train(tmp_path, "kill:machine=1,step=12", "kill:machine=2,step=28", standbys=2)
    assert outcome.incidents == [("failure", "m1"), ("failure", "m2")]
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)
