"""Checkpoints and changes of the membership: whatever is lost and when, there is one after the last step.

Ranks as threads, with real sessions, boundaries and courses.  A rank that dies here does not write its part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.clusters import Cluster, at, released
from tests.training.ranks import Rank
from tests.training.scenarios import move, start_up_to
from tests.training.sharing import SharingCluster
from tests.training.trainees import Trainee, undisturbed
from tests.waiting import wait_until
from trainmover.events.catalogue import CheckpointFailed, CheckpointSaved, RankFinished
from trainmover.training.restore import load
from trainmover.training.shelf import Shelf


class Gone:
    """The files of a process that is no more."""

    def __getattr__(self, name: str) -> Any:
        raise OSError("killed")


class Keeping(Cluster):
    """With a checkpoint every three steps."""

    checkpoint_every = 3

    @property
    def shelf(self) -> Shelf:
        """Where they are."""
        return Shelf(str(self.folder / "checkpoints"))

    def kept(self) -> list[int]:
        """The steps of the whole ones; each holds what an undisturbed run has then."""
        found = self.shelf.whole()
        for manifest in found:
            for rank in range(self.size):
                trainee = Trainee()
                for name in ("model", "optimizer", "scheduler", "data"):
                    trainee.tracked.add(name, getattr(trainee, name))
                load(self.shelf, manifest, trainee.tracked, rank, self.size)
                assert trainee.tracked.digest() == undisturbed(self.size, manifest.step)[0]
                assert trainee.data.at == manifest.step
        return sorted(manifest.step for manifest in found)

    def bury(self, rank: Rank) -> None:
        """A dead rank's files are written by nobody: its thread here would go on."""
        maker = rank.course._keeper._checkpointer
        assert maker is not None
        maker.shelf.files = Gone()

    def said(self, kind: type[Any]) -> list[int]:
        """The steps of which anybody said this of a checkpoint."""
        return [event.step for rank in self.all for event in rank.said(kind)]


class Shrinking(SharingCluster):
    """A job that can shrink, with checkpoints; its sums may be bracketed otherwise while it is shrunk."""

    checkpoint_every = 3

    def check(self, members: Sequence[Rank]) -> None:
        assert len({rank.said(RankFinished)[-1].digest for rank in members}) == 1


Make = Callable[..., Any]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes clusters and ends them."""
    clusters: list[Cluster] = []

    def make(kind: type[Cluster] = Keeping, **more: Any) -> Cluster:
        clusters.append(kind(tmp_path, 3, **{"steps": 6, **more}))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.end()


def dies_writing(rank: Rank, step: int) -> None:
    """The rank is killed when it is to write its part of the checkpoint after this many steps."""
    maker = rank.course._keeper._checkpointer
    assert maker is not None
    write = maker._write

    def killed(attempt: Any) -> None:
        if attempt.snapshot.step == step:
            rank.kill()
        else:
            write(attempt)

    maker._write = killed  # type: ignore[method-assign]


def lose_writing(cluster: Cluster, rank: Rank, step: int) -> str:
    """The job starts, and a rank dies writing the checkpoint of this step; returns its machine."""
    dies_writing(rank, step)
    hold = threading.Event()  # nobody commits one step more before the loss is noticed
    for other in cluster.ranks:
        at(other, 3, "before", lambda: hold.wait(LIMIT) and None)
    cluster.switch("start")
    if step == 6:
        hold.set()
    wait_until(lambda: rank.dead, "it is dead")
    cluster.failed(rank.machine)
    hold.set()
    return rank.machine


def test_an_undisturbed_run(made: Make) -> None:
    """There is one each three steps."""
    cluster = made()
    cluster.switch("start")
    cluster.finish()
    assert cluster.kept() == [3, 6]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("step", [3, 6])
def test_a_machine_dies_writing(made: Make, step: int, victim: int) -> None:
    """Its joiner takes its place in that checkpoint: none is lost, the one after the last step neither."""
    cluster = made()
    cluster.standby("s0")
    machine = lose_writing(cluster, cluster.ranks[victim], step)
    cluster.switch("failure", {machine: "s0"})
    cluster.finish()
    assert cluster.kept() == [3, 6]
    assert cluster.said(CheckpointFailed) == []


@pytest.mark.parametrize("victim", [0, 2])
def test_a_part_is_lost_and_steps_later_it_is_noticed(made: Make, victim: int) -> None:
    """A slow writer is lost some steps later: that checkpoint is said to be lost, the end does not wait."""
    cluster = made()
    cluster.standby("s0")
    rank = cluster.ranks[victim]
    maker = rank.course._keeper._checkpointer
    go_on = threading.Event()
    maker._write = lambda _: go_on.wait(LIMIT) and None
    dead = at(rank, 4, "before", rank.kill)
    cluster.switch("start")
    assert dead.wait(LIMIT)
    cluster.failed(rank.machine)
    cluster.switch("failure", {rank.machine: "s0"})
    cluster.finish()
    go_on.set()
    assert cluster.kept() == [6]
    assert cluster.said(CheckpointFailed) == [3]
    assert cluster.said(CheckpointSaved) == [6]


@pytest.mark.parametrize("told", [[], [1], [2], [1, 2]])
@pytest.mark.parametrize("candidate", [3, 6])
def test_the_vote_before_one_is_torn(made: Make, candidate: int, told: list[int]) -> None:
    """Some have committed the step that has a checkpoint and some have not: all make it in the next epoch."""
    cluster = made()
    cluster.standby("s0")
    doomed = cluster.ranks[0].boundary
    doomed.when, doomed.candidate, doomed.told = "with the tally out", candidate, told
    doomed.learned = lambda: all(cluster.ranks[rank].boundary.committed == candidate for rank in told)
    cluster.switch("start")
    wait_until(lambda: cluster.on("m0")[0].dead, "killed in the vote")
    cluster.bury(cluster.on("m0")[0])
    cluster.switch("failure", {"m0": "s0"})
    cluster.finish()
    kept = cluster.kept()
    assert kept[-1] == 6
    assert candidate in kept


@pytest.mark.parametrize("step", [3, 6])
def test_a_seat_is_vacated_by_who_dies_writing(made: Make, step: int) -> None:
    """Those that are left make it without it."""
    cluster = made(Shrinking)
    cluster.shrink(lose_writing(cluster, cluster.ranks[2], step))
    cluster.finish()
    kept = Shelf(str(cluster.folder / "checkpoints")).whole()
    assert [manifest.step for manifest in kept] == [6, 3]


def test_a_machine_is_moved_away_while_it_writes(made: Make) -> None:
    """The leaver ends its part before it goes; that checkpoint is whole."""
    cluster = made()
    cluster.standby("s0")
    leaver = cluster.ranks[2]
    maker = leaver.course._keeper._checkpointer
    write, go_on = maker._write, threading.Event()

    def slowly(attempt: Any) -> None:
        assert go_on.wait(LIMIT)
        write(attempt)

    maker._write = slowly
    maker.leave = partial(maker.leave, LIMIT)  # a busy computer may take as long as it would wait by itself
    hold = start_up_to(cluster, cluster.ranks[0], 4)
    machines = cluster.prepare("move", {"m2": "s0"})
    cluster.prepared()
    hold.set()
    end = at(cluster.ranks[0], 5, "before", lambda: go_on.wait(LIMIT) and None)
    cluster.adopted(machines, "move")
    assert end.wait(LIMIT)
    assert leaver.threads[1].is_alive(), cluster.describe()
    go_on.set()
    leaver.threads[1].join(LIMIT)
    assert released(leaver)
    cluster.finish()
    assert cluster.kept() == [3, 6]
    assert cluster.said(CheckpointFailed) == []


def test_a_move_at_the_boundary_of_one(made: Make) -> None:
    """The ranks of the new epoch make it, the joiner among them."""
    cluster = made()
    cluster.standby("s0")
    move(cluster, "m2", "s0", start_up_to(cluster, cluster.ranks[0], 2))
    cluster.finish()
    assert cluster.kept() == [3, 6]
    assert cluster.said(CheckpointSaved) == [3, 6]
