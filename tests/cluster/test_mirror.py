"""State without a replica in real runs: a machine is killed, no step is lost, and not a bit changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.training import Outcome, Script, killed_at_once, train

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

SHARDED: Script = (
    *("train_gpt_3d.py", "--optimizer", "sharded", "--data-ranks", "3", "--pipe-ranks", "1"),
    *("--tensor-ranks", "1", "--layers", "2", "--width", "32", "--context", "32"),
)
FSDP: Script = (str(Path(__file__).parent / "scripts" / "fsdp.py"),)
STEPS = 24


def beside_straight(folder: Path, *faults: str, script: Script, **more: Any) -> Outcome:
    """A run with faults, which ends in the bytes of the undisturbed one."""
    folders = [folder / name for name in ("straight", "killed")]
    for place in folders:
        place.mkdir()
    straight = train(folders[0], standbys=0, steps=STEPS, script=script)
    outcome = train(folders[1], *faults, steps=STEPS, script=script, **more)
    assert (outcome.digest, outcome.losses) == (straight.digest, straight.losses)
    return outcome


@pytest.mark.long(every=2)
@pytest.mark.parametrize("script", [FSDP, SHARDED], ids=["fsdp", "sharded"])
def test_a_machine_whose_state_nobody_has_is_killed(script: Script, tmp_path: Path) -> None:
    """In the middle of a vote: the next machine has what its joiner needs, for the step before and after."""
    outcome = beside_straight(tmp_path, "kill:machine=1,step=12,at=voting", script=script)
    assert outcome.incidents == [("failure", "m1")]
    assert [item["steps_lost"] for item in outcome.report["incidents"]] == [0]
    state = outcome.report["state"]
    assert (state["policy"], state["ranks_without_replica"], state["ranks_mirrored"]) == ("mirror", 3, 3)
    assert "a loss costs no step" in state["a_loss"]


@pytest.mark.long(every=0)
def test_a_machine_and_its_mirror_are_killed(tmp_path: Path) -> None:
    """Its state is nowhere any more: the job goes back to a checkpoint by itself, and says what that cost."""
    faults, flags = killed_at_once(1, 2, step=17), ("--checkpoint-every", "5")
    outcome = beside_straight(tmp_path, *faults, standbys=2, script=FSDP, flags=flags)
    assert {item["steps_lost"] for item in outcome.report["incidents"]} <= {2, 7}


@pytest.mark.long(every=0)
@pytest.mark.parametrize("script", [FSDP, SHARDED], ids=["fsdp", "sharded"])
def test_a_shard_is_lost_that_only_checkpoints_have(script: Script, tmp_path: Path) -> None:
    """With ``--state checkpoint`` one lost machine takes all back to the checkpoint before; that is said."""
    flags = ("--state", "checkpoint", "--checkpoint-every", "5")
    outcome = beside_straight(tmp_path, "kill:machine=1,step=17", script=script, flags=flags)
    assert outcome.incidents == [("failure", "m1")]
    (incident,) = outcome.report["incidents"]
    assert (incident["steps_lost"], incident["step"]) in ((2, 15), (7, 10))
    state = outcome.report["state"]
    assert (state["policy"], state["ranks_without_replica"], state["ranks_mirrored"]) == ("checkpoint", 3, 0)
    assert "a loss goes back to step" in state["a_loss"]
