"""State without a replica: whoever is lost at whatever point, no step is, and not a bit changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.clusters import at
from tests.training.conftest import making, place
from tests.training.ranks import Rank
from tests.training.scenarios import lose, lose_another, move, start_up_to, strike
from tests.training.shards import FIRST, ShardCluster, Sharded
from tests.waiting import wait_until
from trainmover.errors import JobError
from trainmover.faults import STEP_POINTS, SWITCH_POINTS
from trainmover.training.job import Step

STEPS = 7
MakeShards = Callable[..., ShardCluster]


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShards]:
    """Makes clusters of ranks without replicas."""
    with making(monkeypatch) as (folder, made):

        def make(machines: int = 3, faults: tuple[str, ...] = (), steps: int = STEPS) -> ShardCluster:
            found = ShardCluster(place(folder, made), machines, steps, faults)
            made.append(found)
            return found

        yield make


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], object]:
    """What a run without faults ends with, by number of machines."""
    known: dict[int, object] = {}

    def outcome(machines: int) -> object:
        if machines not in known:
            made = ShardCluster(tmp_path_factory.mktemp("calm"), machines, STEPS)
            made.switch("start")
            known[machines] = made.outcome()
            made.end()
        return known[machines]

    return outcome


def test_every_rank_mirrors_its_state_once_it_knows_that_nobody_else_has_it(shards: MakeShards, calm) -> None:
    """Each says so once; an undisturbed run ends as one whose ranks never heard of it."""
    made = shards()
    made.switch("start")
    digests, losses, samples = made.outcome()
    said = made.whole()
    assert sorted(event.rank for event in said) == [0, 1, 2]
    assert {event.step for event in said} <= {FIRST, FIRST + 1}
    assert {event.guardian - event.rank for event in said} == {1, -2}
    assert len(set(digests)) == 3
    assert samples == {index: {index + 1} for index in range(STEPS)}
    quiet = shards()
    quiet.tell_roles = lambda: None
    quiet.switch("start")
    assert quiet.outcome() == (digests, losses, samples) == calm(3)
    assert quiet.whole() == []


@pytest.mark.long(every=3)
@pytest.mark.parametrize("step", [FIRST + 1, STEPS - 1])
@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("point", STEP_POINTS)
def test_a_rank_dies_at_any_point_of_a_step(
    shards: MakeShards, calm, point: str, victim: int, step: int
) -> None:
    """Its guardian has the state after the step, or the one before, whichever is committed."""
    made = shards(faults=(f"kill:machine=m{victim},step={step},at={point}",))
    lose(made, f"m{victim}")
    assert made.outcome() == calm(3)
    assert next(rank.struck for rank in made.all if rank.dead) in (point, "vote", "stepped")
    assert made.ranks[victim].machine == "s0"


@pytest.mark.parametrize("victim", ["s0", "m3"])
@pytest.mark.parametrize("point", SWITCH_POINTS)
def test_another_machine_dies_while_one_is_replaced(
    shards: MakeShards, calm, point: str, victim: str
) -> None:
    """The joiner, or one that keeps no part of the lost state: the next standby takes over."""
    made = shards(
        machines=4,
        faults=(
            f"kill:machine=m1,step={FIRST + 1},at=collective",
            f"kill:machine={victim},step=1,at={point}",
        ),
    )
    lose_another(made, victim)
    assert made.outcome() == calm(4)


@pytest.mark.parametrize("when", ["before", "reduced", "voted"])
def test_the_guardian_dies_right_after(shards: MakeShards, calm, when: str) -> None:
    """It has handed the mirror over; its own state is at its guardian, and its ward's is where it was."""
    made = shards(faults=(f"kill:machine=m0,step={FIRST + 1},at=voted",))
    (joiner,) = made.standby("s0")
    made.standby("s1")
    guardian = made.ranks[1]

    def after(step: Step, where: str) -> None:
        if joiner.session.settled and where == when:
            guardian.kill()

    guardian.hook = after
    made.switch("start")
    strike(made, "m0")
    made.switch("failure", {"m0": "s0"})
    wait_until(lambda: guardian.dead, "the guardian dies")
    made.failed("m1")
    made.switch("failure", {"m1": "s1"})
    assert made.outcome() == calm(3)


def test_a_ward_dies_in_the_first_step_of_its_new_guardian(shards: MakeShards, calm) -> None:
    """The new guardian had the state before its epoch counted as adopted."""
    made = shards(faults=(f"kill:machine=m1,step={FIRST + 1},at=step",))
    (joiner,) = made.standby("s0")
    made.standby("s1")
    ward = made.ranks[0]

    def after(_: Step, where: str) -> None:
        if joiner.session.settled and where == "before":
            ward.kill()

    ward.hook = after
    made.switch("start")
    strike(made, "m1")
    made.switch("failure", {"m1": "s0"})
    wait_until(lambda: ward.dead, "the ward dies")
    made.failed("m0")
    made.switch("failure", {"m0": "s1"})
    assert made.outcome() == calm(3)


def test_a_machine_is_moved(shards: MakeShards, calm) -> None:
    """The mirror is as good as the leaver itself."""
    made = shards()
    made.standby("s0")
    move(made, "m1", "s0", start_up_to(made, made.ranks[2], FIRST + 1))
    assert made.outcome() == calm(3)


def test_a_rank_and_its_guardian_are_lost(shards: MakeShards) -> None:
    """Nobody has that state: one sentence says so."""
    made = shards(faults=tuple(f"kill:machine=m{seat},step={FIRST + 1},at=collective" for seat in (0, 1)))
    made.standby("s0")
    made.standby("s1")
    abreast = threading.Barrier(2)  # else one may die before the other has learnt of the step before
    for rank in made.ranks[:2]:
        at(rank, FIRST + 1, "before", lambda: abreast.wait(LIMIT) and None)
    made.switch("start")
    strike(made, "m0")
    strike(made, "m1")
    made.prepare("failure", {"m0": "s0", "m1": "s1"})
    stayer = made.ranks[2]
    wait_until(lambda: stayer.error is not None, "the stayer gives up")
    assert isinstance(stayer.error, JobError)
    assert "is lost" in str(stayer.error)


class Large(Sharded):
    """A state that fills the connections: it is on its way for a while."""

    size = 400_000


def test_a_large_mirror_is_torn_in_the_middle(shards: MakeShards, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrived of it is not used: the state is that of the image before, and its step."""
    monkeypatch.setattr(ShardCluster, "trainee", Large)
    quiet = shards()
    quiet.switch("start")
    calm = quiet.outcome()
    assert {event.image_bytes for event in quiet.whole()} == {4 * 400_000 * 6 + 8}
    made = shards(faults=(f"kill:machine=m1,step={FIRST + 1},at=mirror",))
    lose(made, "m1")
    assert made.outcome() == calm


@pytest.mark.parametrize("point", ["mirror", "voted"])
def test_two_machines_mirror_each_other(shards: MakeShards, calm, point: str) -> None:
    """Each is guardian and ward of the other."""
    made = shards(machines=2, faults=(f"kill:machine=m1,step={FIRST + 1},at={point}",))
    lose(made, "m1")
    assert made.outcome() == calm(2)


def test_a_rank_is_a_step_ahead_of_its_guardian(shards: MakeShards, calm) -> None:
    """Two steps are in flight: it has begun the next one when the guardian has not ended the one before."""
    made = shards(faults=(f"kill:machine=m0,step={FIRST + 2},at=mirror",))
    made.standby("s0")
    ward, guardian = made.ranks[:2]
    held = at(guardian, FIRST + 1, "voted", lambda: wait_until(lambda: ward.dead, "the ward dies"))
    # Told is not heard: a guardian that is slow to read the tally would meet the loss still in its vote.
    at(ward, FIRST + 1, "voted", lambda: held.wait(LIMIT) and None)
    made.switch("start")
    strike(made, "m0")
    assert held.wait(LIMIT)
    made.switch("failure", {"m0": "s0"})
    assert made.outcome() == calm(3)
    assert ward.struck == "mirror"


class Averaging(Sharded):
    """A script that changes what it tracks after its optimizer's step."""

    def begin(self, rank: Rank, job) -> None:
        super().begin(rank, job)
        weight = self.model.weight
        self.optimizer.register_step_post_hook(lambda *_: weight.data.mul_(0.5))


def test_a_script_that_changes_its_state_behind_the_vote_is_not_mirrored(
    shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joiner could not do the same: the rank says so instead of mirroring what is not the state."""
    monkeypatch.setattr(ShardCluster, "trainee", Averaging)
    made = shards()
    made.switch("start")
    made.outcome()
    assert made.whole() == []
    failed = [event for rank in made.all for event in rank.heard if event.type == "mirror.failed"]
    assert sorted(event.rank for event in failed) == [0, 1, 2]
    assert all("model.weight changes after optimizer.step()" in event.reason for event in failed)
