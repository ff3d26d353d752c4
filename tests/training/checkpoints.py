"""Ranks for the tests of checkpoints: a model, an optimizer and a scheduler each, and no job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainmover.events.catalogue import CheckpointFailed, CheckpointSaved, Event
from trainmover.training.checkpoint import Checkpointer
from trainmover.training.restore import Loaded, go_on
from trainmover.training.shelf import Shelf
from trainmover.training.state import TrackedState

JOB = "job-1"


class Place:
    """A data position, private to its rank."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.at = state["at"]


class Solo:
    """One rank: with equal seeds its replicas, with others as different as the stages of a pipeline."""

    def __init__(self, rank: int, seed: int = 0, width: int = 8) -> None:
        self.rank = rank
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 3))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.place = Place(100 * rank)
        self.width = width
        self.tracked = TrackedState()
        self.tracked.add("model", self.model)
        self.tracked.add("optimizer", self.optimizer)
        self.tracked.add("scheduler", self.scheduler)
        self.tracked.add("place", self.place)
        self.said: list[Event] = []

    def train(self, steps: int = 1) -> None:
        """A few steps on random batches, of which the number of the step decides."""
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.place.at - 100 * self.rank)
            self.model(torch.randn(4, self.width, generator=generator)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.place.at += 1

    def checkpointer(
        self, folder: Path | str, every: int = 1, keep: int = 2, generation: int = 1
    ) -> Checkpointer:
        """One that writes this rank's state."""
        return Checkpointer(
            Shelf(str(folder)),
            every=every,
            keep=keep,
            job=JOB,
            generation=generation,
            machine=f"m{self.rank}",
            say=self.said.append,
        )

    @property
    def saved(self) -> list[int]:
        """Steps of the whole checkpoints that this rank told of."""
        return [event.step for event in self.said if isinstance(event, CheckpointSaved)]

    @property
    def failures(self) -> list[str]:
        """What it could not do."""
        return [event.reason for event in self.said if isinstance(event, CheckpointFailed)]


def save(ranks: Sequence[Solo], folder: Path | str, step: int, keep: int = 2, generation: int = 1) -> None:
    """All ranks make one checkpoint together, and it is whole."""
    makers = [rank.checkpointer(folder, keep=keep, generation=generation) for rank in ranks]
    for rank, maker in zip(ranks, makers, strict=True):
        assert maker.take(step, rank.rank, len(ranks), rank.tracked, rank.tracked.private_values(), 1)
    for maker in makers:
        maker.finish(lambda: False, 30.0)
    assert not any(rank.failures for rank in ranks)
    assert ranks[0].saved[-1] == step


def everybody(ranks: Sequence[Solo], folder: Path | str, job: str | None = JOB) -> list[Loaded]:
    """All ranks go on from the newest checkpoint that all can load."""
    barrier, told = threading.Barrier(len(ranks)), [0] * len(ranks)
    found: list[Loaded | BaseException] = [Loaded(0)] * len(ranks)

    def agree_as(number: int) -> Callable[[int], list[int]]:
        def agree(mine: int) -> list[int]:
            told[number] = mine
            barrier.wait(30)
            everybodys = list(told)
            barrier.wait(30)
            return everybodys

        return agree

    def be(number: int) -> None:
        try:
            found[number] = go_on(
                Shelf(str(folder)), ranks[number].tracked, number, len(ranks), job=job, agree=agree_as(number)
            )
        except BaseException as error:
            found[number] = error
            barrier.abort()

    threads = [threading.Thread(target=be, args=(number,)) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    errors = [item for item in found if isinstance(item, BaseException)]
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    return [item for item in found if isinstance(item, Loaded)]
