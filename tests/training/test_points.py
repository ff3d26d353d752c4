"""The matrix: every point of a step, and of a switch, at which every rank can die.

Three data-parallel ranks with standbys.  Whatever rank dies wherever, the run must end with the bytes,
losses and samples of one that was never disturbed, and leave no thread and no connection behind.
"""

from __future__ import annotations

import pytest

from tests.ccl.worlds import wait_until
from tests.training.clusters import Cluster
from tests.training.conftest import MakeCluster
from trainmover.faults import STEP_POINTS

STEPS = 6
AFTER = ("voted", "optimizer", "stepped")
"""Points at which the one who dies has committed it."""
PASSED = [(point, 1) for point in STEP_POINTS] + [("voting", 2)]
"""Points of a step and at which passing; a rank may send its ballot once or twice."""


def strike(cluster: Cluster, machine: str) -> None:
    """Wait until a machine has died, and tell everybody, as the health service does."""
    wait_until(lambda: any(rank.dead for rank in cluster.on(machine)), f"{machine} dies")
    cluster.failed(machine)


def check(cluster: Cluster) -> None:
    """All samples came once and in order; of those who died nothing is connected any more."""
    seen: dict[int, set[int]] = {}
    for rank in cluster.finish():
        for index, at in rank.samples:
            seen.setdefault(index, set()).add(at)
    assert seen == {index: {index + 1} for index in range(STEPS)}
    for rank in cluster.all:
        if rank.dead:
            assert not rank.session.engine.table.connections(), rank


@pytest.mark.long(every=2)
@pytest.mark.parametrize("step", [1, 3, 5])
@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize(("point", "nth"), PASSED)
def test_a_rank_dies_at_any_point_of_a_step(
    cluster: MakeCluster, point: str, nth: int, victim: int, step: int
) -> None:
    """A standby takes its place, and nothing else is seen of it."""
    count = f",nth={nth}" if nth > 1 else ""
    made = cluster(steps=STEPS, faults=[f"kill:machine=m{victim},step={step},at={point}{count}"])
    made.standby("s0")
    made.switch("start")
    strike(made, f"m{victim}")
    made.switch("failure", {f"m{victim}": "s0"})
    check(made)
    assert made.ranks[victim].machine == "s0"
    survivors = [rank for rank in made.ranks if rank.machine != "s0"]
    redone = [rank for rank in survivors if (step, False) in rank.ran]
    if point == "vote":
        assert redone == survivors, "all were in the step, and nobody can have committed it"
    elif point == "voting":
        assert redone in ([], survivors), "all or nobody"
    elif point in AFTER:
        assert redone == [], "a step that anybody has committed is rolled forward"
