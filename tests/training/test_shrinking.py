"""A replica pauses and comes back: the batch, the bits and the private values in the meantime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.clusters import at, released
from tests.training.ranks import Rank
from tests.training.sharing import SharingCluster, SharingMesh, committed_shares
from tests.training.trainees import undisturbed
from tests.waiting import wait_until
from trainmover.events.catalogue import RankDescribed, RankFinished, SwitchAdopted, SwitchPrepared
from trainmover.training.agreement import Sum

STEPS = 8

Make = Callable[..., SharingCluster]


class Loose(SharingCluster):
    """One whose sums may be bracketed otherwise while it is shrunk."""

    def check(self, members: Any) -> None:
        _, losses = undisturbed(self.size, self.steps, self.ranks_per_machine)
        assert len({rank.said(RankFinished)[-1].digest for rank in members}) == 1
        for rank in members:
            assert all(abs(losses[index] - value) < 1e-6 for index, value in rank.losses.items())


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes clusters and ends them."""
    clusters: list[Any] = []

    def make(kind: type[Any], *args: Any, **more: Any) -> Any:
        clusters.append(kind(tmp_path, *args, **more))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.end()


def lose(cluster: SharingCluster, machine: str, step: int, where: str = "before") -> None:
    """A machine dies in a step."""
    (rank,) = cluster.on(machine)
    done = at(rank, step, where, rank.kill)
    wait_until(done.is_set, f"{machine} dies in step {step}")
    cluster.failed(machine)


class Held:
    """A rank that stays in a step until it is let go, so that training does not end before."""

    def __init__(self, rank: Rank, step: int) -> None:
        self._go = threading.Event()
        self.there = at(rank, step, "before", lambda: self._go.wait(LIMIT) and None)

    def grow(self, cluster: SharingCluster, filled: dict[int, str]) -> None:
        """Standbys take vacant seats at the end of this step."""
        machines = cluster.prepare("grow", filled=filled)
        joiners = [rank for name in filled.values() for rank in cluster.on(name)]
        wait_until(lambda: all(rank.said(SwitchPrepared) for rank in joiners), "joiners are prepared")
        self._go.set()
        cluster.adopted(machines, "grow")

    def go(self) -> None:
        """Go on."""
        self._go.set()


@pytest.mark.parametrize("where", ["before", "reduced", "voted"])
@pytest.mark.parametrize("gone", ["m0", "m1"])
def test_two_replicas_and_one_that_is_left_end_in_the_same_bits(
    made: Callable[..., Any], gone: str, where: str
) -> None:
    """One of two machines is lost for good: the other computes both shares, and nothing else changes.

    That is bitwise, as the sum of its two shares is the sum that the two had; losses too.
    """
    cluster = made(SharingCluster, 2, STEPS)
    cluster.switch("start")
    lose(cluster, gone, 3, where)
    cluster.shrink(gone)
    (member,) = cluster.finish()
    assert committed_shares([member])[STEPS - 1, 0] == committed_shares([member])[STEPS - 1, 1] == 1


@pytest.mark.parametrize("machines", [3, 4])
def test_shrinks_and_grows_back(made: Callable[..., Any], machines: int) -> None:
    """A replica pauses and a new machine brings it back: each share of each step is computed once.

    Of four machines that is bitwise, as the sibling takes the share.
    """
    cluster = made(SharingCluster if machines == 4 else Loose, machines, STEPS)
    held = Held(cluster.on("m0")[0], 5)
    cluster.switch("start")
    lose(cluster, "m1", 2, "reduced")
    cluster.shrink("m1")
    cluster.standby("s0")
    held.grow(cluster, {1: "s0"})
    assert [rank.machine for rank in cluster.finish()] == ["m0", "s0", *cluster.layout[2:]]
    (joiner,) = cluster.on("s0")
    assert joiner.ran, "the joiner has trained"
    counts = committed_shares(cluster.all)
    assert all(counts[step, share] == 1 for step in range(STEPS) for share in range(machines)), counts


def test_what_belongs_to_a_rank_alone_is_kept_while_it_is_away(made: Callable[..., Any]) -> None:
    """Its data position is what it was when it was lost, also when who kept it first is lost as well."""
    cluster = made(Loose, 4, 12)
    held = Held(cluster.on("m0")[0], 8)
    guardian = cluster.on("m2")[0]
    gone = at(guardian, 5, "before", guardian.kill)
    cluster.switch("start")
    lose(cluster, "m1", 3)
    cluster.shrink("m1")
    wait_until(gone.is_set, "the guardian of m1 dies")
    cluster.failed("m2")
    cluster.shrink("m2")
    cluster.standby("s0")
    held.grow(cluster, {1: "s0"})
    cluster.finish()
    (joiner,) = cluster.on("s0")
    first = joiner.ran[0][0]
    assert [position - index for index, position in joiner.samples] == [3 - first + 1] * len(joiner.samples)


def test_a_joiner_that_dies_on_the_way_back_leaves_it_paused(made: Callable[..., Any]) -> None:
    """Growing back is given up, training goes on at less strength, and the next standby takes the seat."""
    cluster = made(Loose, 3, 12)
    held = Held(cluster.on("m0")[0], 6)
    cluster.switch("start")
    lose(cluster, "m2", 2)
    cluster.shrink("m2")
    (first,) = cluster.standby("s0")
    machines = cluster.prepare("grow", filled={2: "s0"})
    first.kill()
    cluster.failed("s0")
    cluster.abort()
    assert machines == ["m0", "m1", "s0"]
    again = Held(cluster.on("m1")[0], 8)
    held.go()
    cluster.switch("repair")
    wait_until(again.there.is_set, "training goes on")
    cluster.standby("s1")
    again.grow(cluster, {2: "s1"})
    assert len(cluster.finish()) == 3


def test_two_replicas_pause_and_come_back_together(made: Callable[..., Any]) -> None:
    """Half of four machines are lost at once; the others do their shares; both come back at once."""
    cluster = made(SharingCluster, 4, STEPS)
    held = Held(cluster.on("m0")[0], 5)
    cluster.switch("start")
    lose(cluster, "m1", 2)
    cluster.on("m3")[0].kill()
    cluster.failed("m3")
    cluster.shrink("m1", "m3")
    cluster.standby("s0")
    cluster.standby("s1")
    held.grow(cluster, {1: "s0", 3: "s1"})
    assert len(cluster.finish()) == 4


def test_a_machine_of_two_ranks_takes_both_with_it(made: Callable[..., Any]) -> None:
    """A seat is vacated as a whole; the four ranks that are left do six shares."""
    cluster = made(Loose, 3, STEPS, ranks_per_machine=2)
    held = Held(cluster.on("m0")[0], 3)
    cluster.switch("start")
    wait_until(held.there.is_set, "m0 is held in a step")
    for rank in cluster.on("m1"):
        rank.kill()
    cluster.failed("m1")
    held.go()
    cluster.shrink("m1")
    assert len(cluster.finish()) == 4
    counts = committed_shares(cluster.all)
    assert all(counts[step, share] == 1 for step in range(3, STEPS) for share in range(6)), counts


def test_a_replacement_while_shrunk(made: Callable[..., Any]) -> None:
    """Another machine is replaced while a replica is away: its guardian is the next one that is there."""
    cluster = made(SharingCluster, 4, STEPS)
    first = cluster.on("m0")[0]
    gone = at(first, 4, "before", first.kill)
    cluster.switch("start")
    lose(cluster, "m1", 2)
    cluster.shrink("m1")
    wait_until(gone.is_set, "m0 dies")
    cluster.failed("m0")
    cluster.standby("s0")
    cluster.switch("failure", {"m0": "s0"})
    members = cluster.finish()
    assert [rank.machine for rank in members] == ["s0", "m2", "m3"]


def test_a_mesh_loses_a_machine_and_pauses_a_whole_replica(made: Callable[..., Any], tmp_path: Path) -> None:
    """Data x pipeline x tensor: the replica's other machines leave, the other replica does both.

    Then standbys in the roles of all its seats bring it back.  The bits are those of an undisturbed run.
    """
    still = SharingMesh(tmp_path / "still") if (tmp_path / "still").mkdir() is None else None
    assert still is not None
    try:
        still.switch("start")
        digests, losses = still.outcome()
    finally:
        still.end()
    cluster = made(SharingMesh, 8)
    held = Held(cluster.on("m0")[0], 3)
    cluster.switch("start")
    cluster.find_roles()
    wait_until(lambda: all(rank.said(RankDescribed) for rank in cluster.all), "described")
    assert all(rank.said(RankDescribed)[0].shares for rank in cluster.all)
    wait_until(held.there.is_set, "the other replica is held in a step")
    for rank in cluster.on("m4"):
        rank.kill()
    cluster.failed("m4")
    again = Held(cluster.on("m1")[0], 5)
    held.go()
    cluster.shrink("m3", "m4", "m5")
    wait_until(lambda: all(released(rank) for rank in cluster.on("m3") + cluster.on("m5")), "released")
    for number, seat in enumerate((3, 4, 5)):
        cluster.warm(f"s{number}", cluster.role_of(seat))
        cluster.assign(f"s{number}", seat)
    again.grow(cluster, {3: "s0", 4: "s1", 5: "s2"})
    ended, seen = cluster.outcome()
    assert ended == digests
    for mine, undisturbed_ones in zip(seen, losses, strict=True):
        assert mine == {index: undisturbed_ones[index] for index in mine}
    assert any(event.bytes_received for rank in cluster.on("s1") for event in rank.said(SwitchAdopted))


def test_a_mean_is_over_shares() -> None:
    """A rank that has done two shares counts twice."""
    assert Sum(3.0, 2.0).mean == 1.5
