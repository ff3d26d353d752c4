"""A kill at any instant of the writing leaves the last good checkpoint what it was.

A process with two ranks trains and makes one checkpoint after another, as fast as it can; it is killed with
SIGKILL at random instants, again and again, and begins each time from what it finds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from tests.forks import forks
from tests.training.checkpoints import Solo, everybody, save
from trainmover.training.shelf import Shelf

ROUNDS = 10
MOST_ROUNDS = 4 * ROUNDS
"""So many follow until enough kills came in the middle of the writing."""

WIDTH = 96


def live(folder: str, generation: int, told: Connection) -> None:
    """Go on from the newest checkpoint, train, and tell of every one that is whole."""
    torch.set_num_threads(1)
    ranks = [Solo(rank, width=WIDTH) for rank in range(2)]
    step = everybody(ranks, folder)[0].step
    told.send(step)
    while True:
        step += 1
        for rank in ranks:
            rank.train()
        save(ranks, folder, step, generation=generation)
        told.send(step)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the process that trains: more threads may cut a product, and its sums, in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_kills_while_it_is_written(tmp_path: Path) -> None:
    """Whatever the instant: the newest whole checkpoint is no older than the last one told, and it loads."""
    chance = random.Random(7)
    context = forks()
    straight, digests = Solo(0, width=WIDTH), {}
    digests[0] = straight.tracked.digest()
    left_over = 0
    for generation in range(1, MOST_ROUNDS + 1):
        hear, told = context.Pipe(duplex=False)
        process = context.Process(target=live, args=(str(tmp_path), generation, told))
        process.start()
        told.close()
        assert hear.poll(60)
        last = hear.recv()
        if len(digests) <= generation:  # a slow computer: without this it would be killed before its first
            assert hear.poll(60)
            last = hear.recv()
        process.join(chance.uniform(0.0, 0.4))
        process.kill()
        process.join()
        try:
            while True:
                last = hear.recv()
        except EOFError:
            hear.close()
        left_over += len(list(tmp_path.glob("*.part")))
        newest = max((manifest.step for manifest in Shelf(str(tmp_path)).whole()), default=0)
        assert newest in (last, last + 1)
        ranks = [Solo(rank, seed=5, width=WIDTH) for rank in range(2)]
        assert [item.step for item in everybody(ranks, tmp_path)] == [newest, newest]
        while newest and newest not in digests:
            straight.train()
            digests[straight.place.at] = straight.tracked.digest()
        if newest:
            assert {rank.tracked.digest() for rank in ranks} == {digests[newest]}
        if generation >= ROUNDS and left_over > ROUNDS // 3:
            break
    assert left_over > ROUNDS // 3, "the kills came between checkpoints and not in them"
    assert len(digests) > ROUNDS
