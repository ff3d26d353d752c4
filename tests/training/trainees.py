"""What the clusters' ranks train: one parameter and a buffer, the same on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tests.ccl.worlds import sum_call
from trainmover.ccl.communicator import Communicator
from trainmover.topology.bracket import reduce_in_order
from trainmover.training.job import Job, Step
from trainmover.training.state import TrackedState

if TYPE_CHECKING:
    from tests.training.ranks import Rank

GROUP = "g"
SIZE = 3001
"""Elements of the one parameter: larger than what is reduced whole would be too slow to matter here."""


class Model(nn.Module):
    """One parameter, and a buffer that every step changes before the vote."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What comes of it matters to nobody."""
        return x


class Data:
    """A rank's position in its data."""

    def __init__(self) -> None:
        self.at = 0

    def next_batch(self) -> int:
        """Go on by one; returns where this is."""
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def gradient(rank: int, at: int) -> torch.Tensor:
    """What a rank finds at a position of its data."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1000 * at + rank))


class Trainee:
    """What is trained, as every rank makes it."""

    def __init__(self) -> None:
        self.model, self.data = Model(), Data()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)
        self.tracked = TrackedState()

    def groups(self, communicator: Communicator) -> None:
        """Make the groups that there are before the job's first epoch."""
        communicator.add_group(GROUP, tuple(range(communicator.world_size)))

    def begin(self, rank: Rank, job: Job) -> None:
        """What a script does before its first step."""
        job.track(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, data=self.data)

    def step(self, rank: Rank, step: Step) -> None:
        """What a script does before its optimizer's step."""
        total = gradient(rank.session.rank, self.data.next_batch())
        self.model(total)
        step.log(loss=total.mean())
        rank.session.communicator.run(GROUP, sum_call(total)).wait()
        self.learn(total, rank.cluster.size)

    def learn(self, total: torch.Tensor, size: int) -> None:
        """Everything before the vote, once the gradients are summed."""
        self.model.seen.add_(total.sum())
        self.model.weight.grad = total / size


def undisturbed(size: int, steps: int, ranks_per_machine: int = 1) -> tuple[str, list[float]]:
    """Digest and losses of a run without any fault, computed without the library."""
    trainee = Trainee()
    for name, thing in (
        ("model", trainee.model),
        ("optimizer", trainee.optimizer),
        ("scheduler", trainee.scheduler),
    ):
        trainee.tracked.add(name, thing)
    positions = tuple(rank // ranks_per_machine for rank in range(size))
    losses = []
    for at in range(1, steps + 1):
        parts = [gradient(rank, at) for rank in range(size)]
        total = reduce_in_order(positions, parts, torch.add)
        trainee.learn(total, size)
        means = [torch.tensor([float(part.mean())], dtype=torch.float64) for part in parts]
        losses.append(float(reduce_in_order(positions, means, torch.add)) / size)
        trainee.optimizer.step()
        trainee.scheduler.step()
    return trainee.tracked.digest(), losses


class StandIn:
    """A recording of nothing: every call returns at once."""

    steps = 1
    lenient = False

    def play(self, group: str, call: Any) -> None:
        call.swallow()

    def next_phase(self) -> None:
        """There is nothing to go on to."""

    def close(self) -> None:
        """There is nothing to give back."""
