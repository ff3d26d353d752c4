"""State that no other rank has: what the ranks train whose optimizer is cut among them, and their cluster.

As in ``examples/train_gpt_3d.py --optimizer sharded``: every rank keeps and updates one slice of the
parameters, and puts the model together from all slices before its forward pass.  A model's parameters
therefore change before the vote, its slices after it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from tests.ccl.worlds import LIMIT, sum_call
from tests.training.clusters import Cluster
from tests.training.ranks import Rank
from tests.training.trainees import GROUP, Data, Trainee
from tests.waiting import wait_until
from trainmover.ccl.communicator import Communicator
from trainmover.events.catalogue import (
    GroupRow,
    JoinerRank,
    MachineRole,
    MirrorWhole,
    RankFinished,
    RolesFound,
    SeatRow,
)
from trainmover.topology.layout import guardian_of
from trainmover.training.job import Job, Step
from trainmover.training.state import TrackedState

TOLD_IN = 1
"""Index of the step in which the ranks hear that their state has no replica."""

FIRST = TOLD_IN + 2
"""Index of the first step whose vote finds all mirrors whole: what follows is safe."""


class Whole(nn.Module):
    """All parameters, as of the last forward pass, and a buffer that every step changes before the vote."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))


class Slice(nn.Module):
    """What this rank keeps and updates of them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.zeros(size))


class Sharded(Trainee):
    """A rank with a slice of the parameters, and Adam's state for it."""

    size = 300
    """Elements of a slice."""

    def __init__(self) -> None:
        self.data = Data()
        self.tracked = TrackedState()

    def groups(self, communicator: Communicator) -> None:
        super().groups(communicator)
        self.model = Whole(self.size * communicator.world_size)
        self.slice = Slice(self.size)
        self.optimizer = torch.optim.AdamW([self.slice.part], lr=0.1, weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def begin(self, rank: Rank, job: Job) -> None:
        job.track(
            model=self.model,
            slice=self.slice,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            data=self.data,
            scaler=self.scaler,
        )

    def step(self, rank: Rank, step: Step) -> None:
        if step.index == TOLD_IN and rank.session.communicator.player is None:
            rank.cluster.tell_roles()
        me, at = rank.session.rank, self.data.next_batch()
        mine = slice(me * self.size, (me + 1) * self.size)
        whole = torch.zeros_like(self.model.weight)
        whole[mine] = self.slice.part.detach()
        rank.session.communicator.run(GROUP, sum_call(whole)).wait()
        with torch.no_grad():
            self.model.weight.copy_(whole)
        seed = torch.Generator().manual_seed(1000 * at + me)
        total = torch.randn(len(whole), generator=seed) + whole
        step.log(loss=total.square().mean())
        rank.session.communicator.run(GROUP, sum_call(total)).wait()
        with torch.no_grad():
            self.model.seen.add_(total.sum())
        self.slice.part.grad = total[mine].clone()


class ShardCluster(Cluster):
    """Machines of one rank each, no two of which have the same state."""

    trainee = Sharded

    def __init__(self, folder: Path, machines: int, steps: int, faults: Sequence[str] = ()) -> None:
        self._telling = threading.Lock()
        self._told = False
        super().__init__(folder, machines, steps, 1, faults)

    def tell_roles(self) -> None:
        """What the standby service says once every rank has described itself; returns when all know."""
        with self._telling:
            if self._told:
                return
            self._told = True
            role = MachineRole(name="all", seats=(SeatRow(first=0, count=self.size),), representative=1)
            rows = (SeatRow(first=0, count=self.size),)
            found = RolesFound(generation=1, roles=(role,), unreplicated=rows)
            members = self.ranks
            for rank in members:
                rank.tell(found)
            wait_until(lambda: all(rank.session._roles for rank in members), "roles heard", LIMIT)

    def joiner_ranks(self, machines: Sequence[str], changes: dict[str, str]) -> tuple[JoinerRank, ...]:
        found = []
        for joiner in changes.values():
            rank = machines.index(joiner)
            rows = (GroupRow(name=GROUP, first=0, count=self.size),)
            guardian = guardian_of(rank, self.size, 1)
            found.append(JoinerRank(rank=rank, groups=rows, sources=(), mirrored=guardian))
        return tuple(found)

    def check(self, members: Sequence[Rank]) -> None:
        """Compared by the test with a run that was not disturbed."""

    def outcome(self) -> tuple[list[str], dict[int, float], dict[int, set[int]]]:
        """Digests by rank, losses and samples by step."""
        members = self.finish()
        losses: dict[int, float] = {}
        samples: dict[int, set[int]] = {}
        for rank in members:
            assert all(losses.setdefault(index, loss) == loss for index, loss in rank.losses.items()), rank
            for index, at in rank.samples:
                samples.setdefault(index, set()).add(at)
        return [rank.said(RankFinished)[-1].digest for rank in members], losses, samples

    def whole(self) -> list[MirrorWhole]:
        """What was said about mirrors."""
        return [event for rank in self.all for event in rank.said(MirrorWhole)]
