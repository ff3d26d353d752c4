"""The promise for data, tensor and pipeline parallelism: any machine can be lost, whatever its role.

The 3D example trains for real on six machines of two ranks: two pipelines of three stages, each
machine the two halves of one stage; or, in every run of the tests, whole stages, on six machines of one rank.
Its standbys know nothing of the model.  Every run must end in the bytes of the undisturbed one: the digest
covers all ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.training import Outcome, Script, train

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 24
PIPELINES: Script = ("train_gpt_3d.py", "--data-limit", "200000")
WHOLE: Script = (*PIPELINES, "--tensor-ranks", "1")
STAGES = {"m0": "first", "m1": "middle", "m2": "last", "m3": "first", "m4": "middle", "m5": "last"}


def run(
    folder: Path,
    *faults: str,
    script: Script = PIPELINES,
    ranks_per_machine: int = 2,
    standbys: int = 1,
    flags: tuple[str, ...] = (),
) -> Outcome:
    """One run of the example in three dimensions."""
    return train(
        folder,
        *faults,
        machines=len(STAGES),
        ranks_per_machine=ranks_per_machine,
        standbys=standbys,
        steps=STEPS,
        script=script,
        flags=flags,
        limit=540.0,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in which nothing happens."""
    return learns(run(tmp_path_factory.mktemp("straight"), standbys=0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same with whole stages."""
    return learns(run(tmp_path_factory.mktemp("whole"), script=WHOLE, ranks_per_machine=1, standbys=0))


def learns(outcome: Outcome) -> Outcome:
    """A whole run, whose loss went down."""
    assert sorted(outcome.losses) == list(range(STEPS))
    assert outcome.losses[STEPS - 1] < outcome.losses[0] - 0.3
    return outcome


@pytest.mark.long(every=0)  # the test below has two of them at once
@pytest.mark.parametrize("kind", ["kill", "move"])
@pytest.mark.parametrize("machine", ["m5", "m0", "m4"], ids=STAGES.get)
def test_a_machine_of_any_role_is_replaced(
    machine: str, kind: str, straight: Outcome, tmp_path: Path
) -> None:
    """First, middle and last stages are killed and moved; one standby takes any of their places."""
    # A move waits for a spare that is being warmed, and a job of a few quick steps would be over by then.
    faults = [f"{kind}:machine={machine},step=8"]
    if kind == "move":
        faults.append(f"slow:machine={machine},step=8,factor=30")
    outcome = run(tmp_path, *faults)
    assert outcome.incidents == [("failure" if kind == "kill" else "move", machine)]
    assert (outcome.digest, outcome.losses) == (straight.digest, straight.losses)


def test_two_machines_of_different_roles_are_lost_at_once(whole: Outcome, tmp_path: Path) -> None:
    """Two standbys take the places of a first and a last stage that are lost in the same step.

    They keep one role in memory: what the others gave back is there again when one of them is needed.
    """
    faults = ["kill:machine=0,step=9", "kill:machine=2,step=9"]
    flags = ("--standby-memory", "sequential")
    outcome = run(tmp_path, *faults, script=WHOLE, ranks_per_machine=1, standbys=2, flags=flags)
    assert sorted(outcome.incidents) == [("failure", "m0"), ("failure", "m2")]
    assert (outcome.digest, outcome.losses) == (whole.digest, whole.losses)
