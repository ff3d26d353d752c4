"""The matrix: every point of a step, and of a switch, at which every rank can die.

Three data-parallel ranks with standbys.  Whatever rank dies wherever, the run must end with the bytes,
losses and samples of one that was never disturbed, and leave no thread and no connection behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.clusters import Cluster, at
from tests.training.conftest import MakeCluster
from tests.training.ranks import Rank
from tests.training.scenarios import end_switch, has_adopted, lose, lose_another, move, start_up_to
from tests.waiting import wait_until
from trainmover.faults import STEP_POINTS, SWITCH_POINTS

STEPS = 6
TORN = ("voting", "voted", "optimizer", "stepped")
"""Points at which one, all or none of those who survive may have the outcome of the vote."""
PASSED = [(point, 1) for point in STEP_POINTS if point != "mirror"] + [("voting", 2)]
"""Points of a step and at which passing; a rank may send its ballot once or twice."""


def check(cluster: Cluster, *points: str) -> None:
    """All samples came once and in order; who died did so at these points, and nothing is left of it."""
    assert [rank.struck for rank in cluster.all if rank.dead] == list(points)
    seen: dict[int, set[int]] = {}
    for rank in cluster.finish():
        for index, sample in rank.samples:
            seen.setdefault(index, set()).add(sample)
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
    lose(made, f"m{victim}")
    check(made, point if nth == 1 or made.on(f"m{victim}")[0].struck == point else "stepped")
    assert made.ranks[victim].machine == "s0"
    survivors = [rank for rank in made.ranks if rank.machine != "s0"]
    redone = [rank for rank in survivors if (step, False) in rank.ran]
    if point == "vote":
        assert redone == survivors, "all were in the step, and nobody can have committed it"
    elif point in TORN:
        assert redone in ([], survivors), "all or nobody"


@pytest.mark.parametrize("victim", ["s0", "m3"])
@pytest.mark.parametrize("point", SWITCH_POINTS)
def test_another_machine_dies_while_one_is_replaced(cluster: MakeCluster, point: str, victim: str) -> None:
    """The joiner, or one that stays: the switch is given up, or complete, and the next standby takes over."""
    made = cluster(
        machines=4,
        steps=STEPS,
        faults=["kill:machine=m1,step=2,at=collective", f"kill:machine={victim},step=1,at={point}"],
    )
    lose_another(made, victim)
    check(made, "collective", point)


@pytest.mark.parametrize(
    ("point", "victim"),
    [(point, victim) for point in SWITCH_POINTS for victim in ("s0", "m0", "m1")]
    + [("prepare", "m2"), ("prepared", "m2")],
)
def test_a_machine_dies_during_a_move(cluster: MakeCluster, point: str, victim: str) -> None:
    """The joiner, one that stays, or the one that was to leave anyway."""
    made = cluster(steps=STEPS, faults=[f"kill:machine={victim},step=1,at={point}"])
    made.standby("s0")
    made.standby("s1")
    hold = start_up_to(made, made.ranks[0 if victim == "m1" else 1], 3)
    machines = made.prepare("move", {"m2": "s0"})
    if point in ("prepare", "prepared"):
        wait_until(lambda: made.on(victim)[0].dead, f"{victim} dies")
    else:
        made.prepared()
    if victim != "s0" or point not in ("prepare", "prepared"):
        hold.set()  # else the next switch is to be prepared before the last step is done
    if victim == "m2":
        assert end_switch(made, machines, "move", victim)
    elif end_switch(made, machines, "move", victim):
        made.switch("failure", {victim: "s1"})
    elif victim == "s0":
        move(made, "m2", "s1", hold)
    else:
        made.switch("failure", {victim: "s1"})
    check(made, point)


def test_a_joiner_of_a_switch_that_was_given_up_joins_later(cluster: MakeCluster) -> None:
    """It had the state when one that stays died; training went on without it, and what it has is old."""
    made = cluster(steps=STEPS)
    (joiner,) = made.standby("s0")
    made.standby("s1")
    stayer = made.ranks[0]

    def die() -> None:
        wait_until(lambda: has_adopted(joiner, 2), "s0 has joined")
        stayer.kill()

    dead = at(stayer, 2, "before", die)
    hold, more = start_up_to(made, made.ranks[1], 1), threading.Event()
    machines = made.prepare("move", {"m2": "s0"})
    made.prepared()
    hold.set()
    assert dead.wait(LIMIT)
    wait_until(lambda: stayer.dead, "m0 dies")
    assert machines == ["m0", "m1", "s0"]
    made.abort()
    made.failed("m0")
    reached = at(made.ranks[1], 4, "before", lambda: more.wait(LIMIT) and None)
    made.switch("failure", {"m0": "s1"})
    assert reached.wait(LIMIT)
    move(made, "m2", "s0", more)
    check(made, "")
    assert [rank.machine for rank in made.ranks] == ["s1", "m1", "s0"]


def test_no_step_is_committed_before_a_move_is(cluster: MakeCluster) -> None:
    """All have joined when one dies, and the move is given up: who was to leave must not lack a step."""
    made = cluster(steps=STEPS)
    made.standby("s0")
    made.standby("s1")
    hold = start_up_to(made, made.ranks[1], 1)
    machines = made.prepare("move", {"m2": "s0"})
    made.prepared()
    stayers, members = made.ranks[:2], [rank for name in machines for rank in made.on(name)]
    waiting: set[Rank] = set()

    def watched(rank: Rank, make_sure: Callable[[], None]) -> None:
        waiting.add(rank)
        make_sure()
        waiting.discard(rank)

    for rank in members:
        rank.session.make_sure = partial(watched, rank, rank.session.make_sure)
    hold.set()
    wait_until(lambda: all(has_adopted(rank, 2) and rank.session.unsure == 2 for rank in members), "adopted")
    wait_until(
        lambda: len(waiting) == 3 or any(rank.boundary.committed > 2 for rank in members),
        "the first step of the new epoch comes to its vote",
    )
    assert [rank.boundary.committed for rank in members] == [2, 2, 2]
    stayers[0].kill()
    made.abort()
    made.failed("m0")
    made.switch("failure", {"m0": "s1"})
    check(made, "")
    assert [rank.machine for rank in made.ranks] == ["s1", "m1", "m2"]
