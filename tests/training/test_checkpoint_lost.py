"""Checkpoints of ranks without a job, some of which are lost in the middle: nobody waits for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.training.checkpoints import Solo, everybody
from tests.waiting import wait_until
from trainmover.training.checkpoint import Checkpointer
from trainmover.training.shelf import Shelf

SOON = 10.0
"""Seconds in which all must be over; a rank that waits for what never comes takes ten times as long."""


class Trio:
    """Three ranks, as different as the stages of a pipeline: the part of each is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks = [Solo(number, seed=number) for number in range(3)]
        self.makers = [rank.checkpointer(folder) for rank in self.ranks]

    def take(self, step: int, epoch: int = 1, who: Sequence[int] = (0, 1, 2)) -> None:
        """These ranks begin a checkpoint."""
        for number in who:
            tracked = self.ranks[number].tracked
            assert self.makers[number].take(step, number, 3, tracked, tracked.private_values(), epoch)

    def lose(self, *lost: int, who: Sequence[int]) -> None:
        """These ranks hear of the loss."""
        for number in who:
            self.makers[number].lost({rank: f"m{rank}" for rank in lost})

    def over(self, *who: int) -> None:
        """Wait until these ranks are done with it."""
        for number in who:
            attempt = self.makers[number]._attempt
            assert attempt is not None
            assert attempt.over.wait(SOON), "it waits for what never comes"

    @property
    def said(self) -> list[list[str]]:
        """By rank, what it could not do, once nobody is about to say more."""
        for thread in threading.enumerate():
            if thread.name == "trainmover-checkpoint":
                thread.join(SOON)
        return [rank.failures for rank in self.ranks]

    @property
    def waiting(self) -> list[bool]:
        """By rank, whether it has done its part and waits for another's."""
        attempts = [maker._attempt for maker in self.makers]
        return [attempt is not None and attempt.waiting for attempt in attempts]

    @property
    def whole(self) -> list[int]:
        """Steps of the whole checkpoints."""
        return [manifest.step for manifest in Shelf(str(self.folder)).whole()]


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    """The ranks."""
    return Trio(tmp_path)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("what", ["its index", "its tensors"])
def test_a_lost_part_is_not_waited_for(
    what: str, lost: int, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that is there gives it up; the first of them says so; the next one is whole."""
    there = [number for number in range(3) if number != lost]
    with monkeypatch.context() as patch:
        work = "_write" if what == "its index" else "_take_part" if lost else "_lead"
        patch.setattr(trio.makers[lost], work, lambda *_: None)
        trio.take(1)
        trio.over(lost)
        trio.lose(lost, who=there)
        trio.over(*there)
    assert trio.whole == []
    assert [bool(said) for said in trio.said] == [number == there[0] for number in range(3)]
    assert trio.said[there[0]] == [f"lost before it was whole: rank {lost} (m{lost})"]
    trio.take(2, epoch=2)
    trio.over(0, 1, 2)
    assert trio.whole == [2]
    assert [path.name for path in trio.folder.iterdir()] == ["step-00000002"]


def test_the_order_in_which_they_hear_of_it_does_not_matter(trio: Trio) -> None:
    """Who learned from another rank's file that it comes to nothing says so once it hears why."""
    trio.take(1, who=[1, 2])
    trio.lose(0, who=[2])
    trio.over(1, 2)
    assert trio.said == [[], [], []]
    trio.lose(0, who=[1])
    trio.over(1, 2)
    assert [len(said) for said in trio.said] == [0, 1, 0]


def test_who_had_done_its_part_is_not_missed(trio: Trio) -> None:
    """A rank is lost that has written all that was needed of it: the checkpoint is whole, nothing is said."""
    trio.take(1)
    trio.over(0, 1, 2)
    trio.lose(2, who=[0, 1])
    trio.over(0, 1)
    trio.lose(0, who=[1])
    trio.over(1)
    assert trio.whole == [1]
    assert trio.said == [[], [], []]


def test_the_first_rank_is_lost_when_all_have_done_their_parts(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody makes it whole; nobody waits for that, and the next rank says it."""
    monkeypatch.setattr(trio.makers[0].shelf, "publish", lambda *_: "nowhere")
    trio.take(1)
    trio.over(0, 1, 2)
    assert trio.whole == []
    trio.lose(0, who=[1, 2])
    trio.over(1, 2)
    assert [len(said) for said in trio.said] == [0, 1, 0]


def test_two_are_lost(trio: Trio) -> None:
    """One after the other: the last one knows."""
    trio.take(1, who=[1, 2])
    trio.lose(0, who=[2])
    trio.lose(1, who=[2])
    trio.over(2)
    assert len(trio.said[2]) == 1
    assert "rank 1 (m1)" in trio.said[2][0]


def test_a_failure_of_another_kind_is_said_once(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that had come to nothing before is not blamed on who was lost afterwards."""
    with monkeypatch.context() as patch:
        patch.setattr(trio.makers[1], "_write_tensors", lambda *_: 1 // 0)
        trio.take(1)
        trio.over(0, 1, 2)
    trio.lose(2, who=[0, 1])
    trio.over(0, 1)
    assert [len(said) for said in trio.said] == [0, 1, 0]


def test_in_the_next_epoch_it_is_made_again(trio: Trio) -> None:
    """A joiner in the lost rank's place takes part, and nothing of the epoch before is in the way."""
    trio.take(1, who=[0, 1])
    trio.lose(2, who=[0, 1])
    trio.over(0)
    trio.take(1, epoch=2)
    trio.over(0, 1, 2)
    assert trio.whole == [1]
    assert trio.ranks[0].saved == [1]
    fresh = [Solo(number, seed=9) for number in range(3)]
    everybody(fresh, trio.folder)
    assert [new.tracked.digest() for new in fresh] == [old.tracked.digest() for old in trio.ranks]


def test_who_does_not_look_in_time_does_not_wait(trio: Trio) -> None:
    """What was given up is removed by whoever begins the next one; a rank that had not seen it sees that."""
    trio.take(1, who=[0, 1])
    wait_until(lambda: trio.waiting[:2] == [True, True], "both wait")
    Shelf(str(trio.folder)).clear_parts(1)
    trio.over(0, 1)
    assert trio.said == [[], [], []]


@pytest.mark.parametrize("url", [False, True])
def test_what_is_whole_already_stays(url: bool, tmp_path: Path) -> None:
    """Made again in the next epoch it is not there twice."""
    place = f"memory://{tmp_path.name}" if url else str(tmp_path)
    ranks = [Solo(number) for number in range(2)]
    makers: list[Checkpointer] = [rank.checkpointer(place) for rank in ranks]
    for epoch in (1, 2):
        for rank, maker in zip(ranks, makers, strict=True):
            assert maker.take(1, rank.rank, 2, rank.tracked, rank.tracked.private_values(), epoch)
        for maker in makers:
            maker.finish(lambda: False, SOON)
        assert len(Shelf(place).whole()) == 1
    assert len(Shelf(place).names(Shelf(place).root)) == 1


def test_who_leaves_one_out_says_so_to_the_others(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that still writes the one before is not waited for."""
    writes_now, go_on, writes = threading.Event(), threading.Event(), trio.makers[2]._write_tensors

    def slowly(*arguments: object) -> object:
        writes_now.set()
        go_on.wait(SOON)
        return writes(*arguments)  # type: ignore[arg-type]

    trio.take(1, who=[0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(trio.makers[2], "_write_tensors", slowly)
        trio.take(1, who=[2])
        assert writes_now.wait(SOON)
        trio.over(1)
        wait_until(lambda: trio.waiting[0], "the first rank waits for the last")
        trio.take(2, who=[0, 1])
        rank = trio.ranks[2]
        assert not trio.makers[2].take(2, 2, 3, rank.tracked, rank.tracked.private_values(), 1)
        for number in (0, 1):
            waits = trio.makers[number]._attempt
            assert waits is not None
            assert waits.over.wait(SOON), "it waits for what never comes"
        go_on.set()
    trio.over(2)
    trio.take(3)
    trio.over(0, 1, 2)
    assert trio.whole == [3]


def test_a_machine_that_leaves_ends_its_part_first(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has begun is whole; where that takes too long it says so, and nobody waits."""
    trio.take(1)
    trio.makers[0].leave(SOON)
    assert trio.whole == [1]
    go_on = threading.Event()
    monkeypatch.setattr(trio.makers[2], "_write_tensors", lambda *_: go_on.wait(SOON) and [])
    trio.take(2)
    trio.makers[2].leave(0.1)
    for number in (0, 1):
        attempt = trio.makers[number]._attempt
        assert attempt is not None
        assert attempt.over.wait(SOON), "it waits for what never comes"
    go_on.set()
    trio.over(2)
    assert trio.whole == [1]
    assert [len(said) for said in trio.said] == [0, 0, 1]
    assert "its machine leaves" in trio.said[2][0]
