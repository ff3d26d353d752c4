"""Roles, general standbys and promotion to any place of a role, over real links.

Six machines of two ranks: data 2 x pipeline 3 x tensor 2.  What is lost or moved may be any stage of
any replica; the run must end, on every rank, with the bytes and losses of one that was never disturbed.
"""

from __future__ import annotations

import threading

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.clusters import at
from tests.training.conftest import MakeMesh
from tests.training.meshes import TENSOR, MeshCluster, groups_of
from tests.training.ranks import Rank
from tests.waiting import wait_until
from trainmover.events.catalogue import RankDescribed, RecordingReady
from trainmover.sandbox.recording import Recording
from trainmover.training.places import ranks_of

STEPS = 9


def held(made: MeshCluster, index: int, rank: int = 0) -> threading.Event:
    """Hold a rank before a step until the event is set, so that nothing depends on the computer's speed."""
    go = threading.Event()

    def wait() -> None:
        assert go.wait(LIMIT)

    at(made.ranks[rank], index, "before", wait)
    return go


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """What a run without faults ends with."""
    made = MeshCluster(tmp_path_factory.mktemp("undisturbed"), STEPS)
    made.switch("start")
    outcome = made.outcome()
    made.end()
    return outcome


def lost(made: MeshCluster, *seats: int) -> threading.Event:
    """Kill these seats' machines before a step: all ranks, as close together as calls can be."""
    ranks = [rank for seat in seats for rank in made.seat_ranks(seat)]

    def kill() -> None:
        for rank in ranks:
            rank.kill()

    return at(ranks[0], 5, "before", kill)


def test_ranks_describe_themselves(mesh: MakeMesh) -> None:
    """Replicas have one signature and one state, stages have their own, and groups carry their names."""
    made = mesh(steps=3)
    described = made.described()
    for rank, event in described.items():
        told = [(row.name, ranks_of(row)) for row in event.groups]
        assert told == groups_of(rank, made.size)
        assert event.stage == (rank // TENSOR % 3, 3)
        twin = described[(rank + 6) % 12]
        assert (twin.signature, twin.state) == (event.signature, event.state)
    assert len({event.signature for event in described.values()}) == 3
    assert len({event.state for event in described.values()}) == 6
    made.find_roles()
    assert {name: role.representative for name, role in made.roles.items()} == {
        "first": 3,
        "middle": 1,
        "last": 2,
    }
    made.finish()


def test_one_machine_of_each_role_records_what_crosses_its_border(mesh: MakeMesh) -> None:
    """Nobody else writes, and sums among the two ranks of a machine are in no recording."""
    made = mesh(steps=3)
    made.find_roles()
    ready = {rank.machine for rank in made.all if rank.said(RecordingReady)}
    assert ready == {"m1", "m2", "m3"}
    found = Recording(made.seat_ranks(1)[0].said(RecordingReady)[0].path)
    assert {entry.group for phase in range(3) for entry, _ in found.entries(phase)} == {0, 2, 3}
    dropped = made.seat_ranks(4)[0]
    assert dropped.said(RankDescribed)[0].bytes > 0
    made.finish()


def test_the_size_does_not_grow_with_the_number_of_replicas(mesh: MakeMesh) -> None:
    """A recording of three replicas is as large as one of two."""
    sizes = []
    for replicas in (2, 3):
        made = mesh(steps=3, replicas=replicas)
        made.find_roles()
        sizes.append([rank.said(RecordingReady)[0].bytes for rank in made.seat_ranks(1)])
        made.finish()
    assert all(abs(a - b) < 0.02 * a for a, b in zip(*sizes, strict=True))


@pytest.mark.parametrize("seat", range(6))
def test_a_machine_of_any_stage_is_lost(mesh: MakeMesh, undisturbed, seat: int) -> None:
    """A spare that is warm in its role takes its place, also when it has given its memory back."""
    made = mesh(steps=STEPS)
    go = held(made, 4, 2 if seat == 0 else 0)
    dead = lost(made, seat)
    made.find_roles()
    made.warm("s0", made.role_of(seat), park="released" if seat in (0, 4, 5) else "resident")
    go.set()
    assert dead.wait(LIMIT)
    made.assign("s0", seat)
    made.failed(f"m{seat}")
    made.switch("failure", {f"m{seat}": "s0"})
    assert made.outcome() == expected(undisturbed, made)


def expected(undisturbed, made: MeshCluster):
    """The undisturbed outcome, with only those losses that the ranks of this run can have seen."""
    digests, losses = undisturbed
    seen = [rank.losses for rank in made.ranks]
    return digests, [{i: losses[r][i] for i in seen[r]} for r in range(len(seen))]


def test_a_machine_is_moved(mesh: MakeMesh, undisturbed) -> None:
    """Each in turn, a machine of every role is moved to the one spare that is warm in all of them."""
    made = mesh(steps=STEPS)
    go = held(made, 4)
    made.find_roles()
    made.warm("s0", "first", "middle", "last")
    made.assign("s0", 4)
    machines = made.prepare("move", {"m4": "s0"})
    made.prepared()
    go.set()
    made.adopted(machines, "move")
    assert made.outcome() == expected(undisturbed, made)


def test_two_machines_of_different_roles_are_lost_at_once(mesh: MakeMesh, undisturbed) -> None:
    """Two spares take two places in one switch."""
    made = mesh(steps=STEPS)
    go = held(made, 4)
    dead = lost(made, 1, 5)
    made.find_roles()
    made.warm("s0", "middle")
    made.warm("s1", "last")
    go.set()
    assert dead.wait(LIMIT)
    made.assign("s0", 1)
    made.assign("s1", 5)
    made.failed("m1")
    made.failed("m5")
    made.switch("failure", {"m1": "s0", "m5": "s1"})
    assert made.outcome() == expected(undisturbed, made)


def test_a_standby_whose_place_is_given_up_takes_another_one(mesh: MakeMesh, undisturbed) -> None:
    """An aborted switch leaves no trace: the next order may name another seat of the role."""
    made = mesh(steps=STEPS)
    go = held(made, 4)
    made.find_roles()
    made.warm("s0", "middle")
    made.assign("s0", 1)
    made.prepare("move", {"m1": "s0"})
    made.prepared()
    made.abort()
    dead = lost(made, 4)
    go.set()
    assert dead.wait(LIMIT)
    made.failed("m4")
    made.switch("failure", {"m4": "s0"})
    assert made.outcome() == expected(undisturbed, made)


def test_a_place_of_another_role_is_refused(mesh: MakeMesh) -> None:
    """A rank whose groups cannot be those of the place ends with both in its message."""
    made = mesh(steps=4)
    go = held(made, 3)
    made.find_roles()
    spare = made.warm("s0", "middle")
    made.assign("s0", 1)
    made.joiner_ranks = lambda machines, changes: tuple(
        item.model_copy(update={"groups": item.groups[:-1]})
        for item in MeshCluster.joiner_ranks(made, machines, changes)
    )
    made.prepare("move", {"m1": "s0"})
    wait_until(lambda: all(rank.error for rank in spare), "the spare's ranks end")
    assert "is in groups of [12, 2, 3] members" in str(spare[0].error)
    assert "groups of [12, 2, 3, 2]" in str(spare[0].error)
    made.abort()
    go.set()
    made.finish()


def test_a_state_that_is_on_no_other_machine_is_lost(mesh: MakeMesh) -> None:
    """When the last replica goes during the switch, the joiner and all others say whose state it was."""
    made = mesh(steps=STEPS)
    go = held(made, 4)
    made.find_roles()
    made.warm("s0", "middle")
    dead = lost(made, 4)
    go.set()
    assert dead.wait(LIMIT)
    made.assign("s0", 4)
    made.joiner_ranks = lambda machines, changes: tuple(
        item.model_copy(update={"sources": ()}) for item in MeshCluster.joiner_ranks(made, machines, changes)
    )
    made.failed("m4")
    made.prepare("failure", {"m4": "s0"})
    there = [rank for rank in made.all if rank.machine != "m4"]
    wait_until(lambda: all(rank.error for rank in there), "all ranks end")
    assert all("the state of rank 8 is lost" in str(rank.error) for rank in there), made.describe()


def test_a_sandbox_rank_that_dies_takes_the_other_with_it(mesh: MakeMesh) -> None:
    """Calls inside the machine are real: what waits for a dead one fails, and says in which call."""
    made = mesh(steps=4)
    go = held(made, 3)
    made.find_roles()

    def doom(rank: Rank) -> None:
        if rank.slot == 0:
            at(rank, 1, "before", rank.kill)

    dead, survivor = made.warm("s0", "middle", at_birth=doom)
    wait_until(lambda: survivor.error is not None, "the other sandbox rank ends")
    assert dead.dead
    assert "all_reduce" in str(survivor.error)
    go.set()
    made.finish()
