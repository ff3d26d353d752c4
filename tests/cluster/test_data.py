"""Exactly once: samples, schedule and loss of real runs over a history of faults.

A script with torchdata's loader, worker processes and shuffling writes down what each committed step used.
Whatever happens to its machines, that is what the undisturbed run used.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.training import Outcome, killed_at_once, train

pytest.importorskip("torchdata")

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).parent / "scripts" / "samples.py"
RANKS, STEPS, SIZE = 3, 45, 90
PASS = 10
"""Steps of one pass over the data."""

Rows = dict[tuple[int, int], dict[str, Any]]


def run(folder: Path, *faults: str, standbys: int, flags: tuple[str, ...] = ()) -> tuple[Outcome, Rows]:
    """One run, and what each of its committed steps used, by step and rank."""
    folder.mkdir(exist_ok=True)
    samples = folder / "samples"
    script = (str(SCRIPT), "--samples", str(samples))
    outcome = train(folder, *faults, standbys=standbys, steps=STEPS, script=script, flags=flags)
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for path in samples.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[row["step"], row["rank"]].append(row)
    assert all(row == rows[place][0] for place in rows for row in rows[place]), "a step came out differently"
    if not flags:
        assert all(len(found) == 1 for found in rows.values()), "a committed step was done again"
    return outcome, {place: found[0] for place, found in rows.items()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Rows]:
    """The run in which nothing happens: each pass has each sample once."""
    outcome, rows = run(tmp_path_factory.mktemp("straight"), standbys=0)
    assert sorted(rows) == [(step, rank) for step in range(STEPS) for rank in range(RANKS)]
    passes = defaultdict(list)
    for row in rows.values():
        passes[row["epoch"]] += row["samples"]
    assert [len(found) for found in passes.values()] == [SIZE] * 4 + [SIZE // 2]
    assert all(sorted(passes[number]) == list(range(SIZE)) for number in range(STEPS // PASS))
    assert passes[0] != passes[1]
    for (step, _), row in rows.items():
        assert row["scheduled"] == step + 1
        assert row["rate"] == pytest.approx(0.01 * 0.95**step)
        assert row["logged"] == outcome.losses[step]
    return outcome, rows


def test_samples_and_schedule_over_faults(straight: tuple[Outcome, Rows], tmp_path: Path) -> None:
    """A kill in the middle of a pass, one at its first step and a frozen machine: used as if nothing was."""
    outcome, rows = run(
        tmp_path,
        "slow:machine=0,step=3,factor=20",
        *("kill:machine=1,step=14", "kill:machine=2,step=20", "stop:machine=0,step=33,seconds=5"),
        standbys=3,
    )
    assert outcome.digest == straight[0].digest
    assert outcome.losses == straight[0].losses
    assert rows == straight[1]
    assert len(outcome.incidents) == 3


def test_samples_when_all_is_lost_and_gone_back(straight: tuple[Outcome, Rows], tmp_path: Path) -> None:
    """All machines are lost: from the checkpoint on, the same steps use the same samples again."""
    outcome, rows = run(
        tmp_path,
        *killed_at_once(*range(RANKS), step=23),
        standbys=3,
        flags=("--checkpoint-every", "4"),
    )
    assert outcome.digest == straight[0].digest
    assert rows == straight[1]
    assert {item["steps_lost"] for item in outcome.report["incidents"]} <= {3, 7}
