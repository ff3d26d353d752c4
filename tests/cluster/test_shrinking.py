"""Real runs that lose a machine for good: the others compute its share, until another machine comes.

Which shares each committed step used is written down by the script; each share of each step is used once.
Whatever such a run did, its log replays without a difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.training import Outcome, Running, Script, join, train

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).parent / "scripts" / "shares.py"
SHRINK = ("--on-exhausted", "shrink")


def run(folder: Path, *faults: str, machines: int, steps: int, meanwhile=None) -> Outcome:
    """One run without standbys; each share of each step must have been used exactly once."""
    folder.mkdir(exist_ok=True)
    used = folder / "used"
    outcome = train(
        folder,
        *faults,
        machines=machines,
        standbys=0,
        steps=steps,
        script=(str(SCRIPT), "--used", str(used)),
        flags=SHRINK,
        meanwhile=meanwhile,
    )
    found: Counter[tuple[int, int]] = Counter()
    for path in used.glob("*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            found.update((row["step"], share) for share in row["shares"])
            assert row["logged"] == outcome.losses[row["step"]]
    assert found == Counter((step, share) for step in range(steps) for share in range(machines))
    replay(folder)
    return outcome


def replay(folder: Path) -> None:
    """Fresh services say the same about the run's log."""
    command = [sys.executable, "-m", "trainmover.cli", "events", "replay", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout


def test_two_machines_and_then_one_end_in_the_same_bytes(tmp_path: Path) -> None:
    """The one that is left computes both shares, with the dropout of both: digest and losses are the same."""
    straight = run(tmp_path / "straight", machines=2, steps=30)
    shrunk = run(tmp_path / "shrunk", "kill:machine=1,step=12", machines=2, steps=30)
    assert shrunk.digest == straight.digest
    assert shrunk.losses == straight.losses
    assert shrunk.incidents == [("shrink", "m1")]
    assert shrunk.report["reduced_steps"] == 30 - 12


def test_three_machines_lose_one_and_get_another(tmp_path: Path) -> None:
    """Shrinks and grows back without a restart of those who stay."""
    steps = 300
    helper: list[subprocess.Popen[bytes]] = []

    def help_out(running: Running) -> None:
        running.until("is committed", "(vacant)")
        helper.append(join(running, "helper"))

    grown = run(
        tmp_path,
        *("kill:machine=1,step=12", "slow:machine=0,step=12,factor=15"),
        machines=3,
        steps=steps,
        meanwhile=help_out,
    )
    assert helper[0].wait(20) == 0
    kinds = [(item["kind"], item["joiner"]) for item in grown.report["incidents"]]
    assert kinds == [("shrink", None), ("grow", "helper")]
    assert 0 < grown.report["reduced_steps"] < steps - 12
    assert [item["present"] for item in grown.report["memberships"]] == [3, 2, 3]
    assert grown.losses[steps - 1] < grown.losses[0] / 10


MESH: Script = (
    *("train_gpt_3d.py", "--data-ranks", "2", "--pipe-ranks", "2", "--tensor-ranks", "2"),
    *("--layers", "2", "--heads", "2", "--width", "32", "--context", "16", "--data-limit", "100000"),
    *("--microbatch-size", "1", "--microbatches", "2"),
)
"""Two pipelines of two stages, each stage one machine with the two halves of its matrices."""


@pytest.mark.timeout(600)
@pytest.mark.long(every=0)
def test_a_pipeline_pauses_and_comes_back(tmp_path: Path) -> None:
    """In three dimensions: a stage is lost and its whole pipeline pauses; the other one computes both shares.

    The machine of the stage that is well leaves and joins again as a spare.  Once another one has come, both
    sit down again.  A pipeline adds micro-batch after micro-batch to its gradients, so the second share's are
    added to the first's in another order than by the sum over two replicas: what differs is the rounding.
    """
    folders = [tmp_path / name for name in ("straight", "shrunk")]
    steps = 60
    shape = {"machines": 4, "ranks_per_machine": 2, "standbys": 0, "steps": steps, "limit": 400.0}
    helper: list[subprocess.Popen[bytes]] = []

    def help_out(running: Running) -> None:
        running.until("is committed", "(vacant)", limit=200.0)
        helper.append(join(running, "helper", slots=2))

    for folder in folders:
        folder.mkdir()
    straight = train(folders[0], script=MESH, **shape)  # type: ignore[arg-type]
    outcome = train(
        folders[1],
        *("kill:machine=1,step=12", "slow:machine=2,step=12,factor=15"),
        script=MESH,
        flags=SHRINK,
        meanwhile=help_out,
        **shape,  # type: ignore[arg-type]
    )
    assert helper[0].wait(20) == 0
    assert {item["kind"] for item in outcome.report["incidents"]} == {"shrink", "grow"}
    assert [item["present"] for item in outcome.report["memberships"]] == [4, 2, 4]
    assert 0 < outcome.report["reduced_steps"] < steps - 12
    assert outcome.losses == {step: pytest.approx(loss, abs=1e-5) for step, loss in straight.losses.items()}
    replay(folders[1])
