"""Process groups made and destroyed while a change of membership is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from tests.ccl.worlds import LIMIT, sum_call
from tests.training.clusters import Cluster
from tests.training.conftest import MakeCluster
from tests.training.ranks import Rank
from tests.waiting import wait_until
from trainmover.training.job import Step

EXTRA = "extra"


def script(cluster: Cluster, actions: dict[int, Callable[[Rank], None]]) -> None:
    """What every rank does before a step; a step that is done again does it once."""

    def give(rank: Rank) -> None:
        done: set[int] = set()

        def hook(step: Step, where: str) -> None:
            if where == "before" and step.index in actions and step.index not in done:
                done.add(step.index)
                actions[step.index](rank)

        rank.hook = hook

    for rank in cluster.all:
        give(rank)


class Hold:
    """An action that holds every rank until the test lets it go on to another action."""

    def __init__(self, cluster: Cluster, then: Callable[[Rank], None]) -> None:
        self.there, self.go_on, self.then = threading.Barrier(cluster.size + 1), threading.Event(), then

    def __call__(self, rank: Rank) -> None:
        self.there.wait(LIMIT)
        assert self.go_on.wait(LIMIT)
        self.then(rank)


def summed(results: list[float], ranks: tuple[int, ...]) -> Callable[[Rank], None]:
    """An action: the members add up their ranks in the extra group."""

    def run(rank: Rank) -> None:
        if rank.session.rank in ranks:
            value = torch.full((3,), float(rank.session.rank + 1))
            rank.session.communicator.run(EXTRA, sum_call(value)).wait()
            results.append(value.sum().item() / 3)

    return run


def make(ranks: tuple[int, ...]) -> Callable[[Rank], None]:
    """An action: the members make the extra group."""
    return lambda rank: (
        rank.session.communicator.add_group(EXTRA, ranks) and None if rank.session.rank in ranks else None
    )


def destroy(rank: Rank) -> None:
    """An action: the extra group goes."""
    rank.session.communicator.remove_group(EXTRA)


@pytest.mark.parametrize(
    ("kind", "changes", "ranks"), [("repair", {}, (0, 1, 2)), ("move", {"m1": "s0"}, (0, 2))]
)
def test_a_group_made_beside_a_prepare_outlives_the_switch(
    cluster: MakeCluster, kind: str, changes: dict[str, str], ranks: tuple[int, ...]
) -> None:
    """The coming epoch's plan did not know the group; its links are the same connections afterwards."""
    made = cluster(steps=8)
    if changes:
        made.standby("s0")
    hold = Hold(made, make(ranks))
    results: list[float] = []
    script(made, {3: hold, 6: summed(results, ranks)})
    made.switch("start")
    hold.there.wait(LIMIT)
    machines = made.prepare(kind, changes)
    made.prepared()
    hold.go_on.set()
    made.adopted(machines, kind)
    members = made.finish()
    assert results == [float(sum(rank + 1 for rank in ranks))] * len(ranks)
    assert [[step for step in rank.ran if not step[1]] for rank in members] == [[]] * 3, "no step was void"


def test_a_group_destroyed_beside_a_prepare_does_not_hold_it_up(cluster: MakeCluster) -> None:
    """The links of a group that is gone are neither waited for nor missed when the epoch is entered."""
    made = cluster(steps=8)
    hold = Hold(made, destroy)
    script(made, {1: make((0, 1, 2)), 3: hold})
    made.switch("start")
    hold.there.wait(LIMIT)
    machines = made.prepare("repair")
    made.prepared()
    hold.go_on.set()
    made.adopted(machines, "repair")
    members = made.finish()
    assert [[step for step in rank.ran if not step[1]] for rank in members] == [[]] * 3, "no step was void"
    for rank in members:
        assert not [item for item in rank.session.engine.table._slots if item.group == EXTRA]


def test_a_group_made_in_a_broken_epoch(cluster: MakeCluster) -> None:
    """There is nobody to connect to: the call returns at once, and the next epochs make the group's links."""
    made = cluster(steps=8)
    results: list[float] = []
    broken: list[bool] = []

    def breaks(rank: Rank) -> None:
        engine = rank.session.engine
        engine.break_epoch(engine.epoch, "for the test", told=rank.session.rank != 0)
        wait_until(lambda: engine.broken, "broken")
        make((0, 1, 2))(rank)
        broken.append(True)

    hold = Hold(made, breaks)
    script(made, {3: hold, 6: summed(results, (0, 1, 2))})
    made.switch("start")
    hold.there.wait(LIMIT)
    hold.go_on.set()
    wait_until(lambda: len(broken) == 3, "the group is made", 5.0)
    made.switch("repair")
    made.finish()
    assert results == [6.0] * 3
