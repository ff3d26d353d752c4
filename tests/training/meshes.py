"""Data, tensor and pipeline parallelism in one process: what the ranks train, and the services' part in it.

The model is a pipeline of layers, each cut in two inside a machine; two (or more) replicas of the
pipeline share their gradients.  Ranks are laid out as in ``examples/train_gpt_3d.py``: data
outermost, then pipeline, then tensor, so that a machine of two ranks holds one stage of one replica.  All
calls go through torch's process group class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tests.ccl.worlds import LIMIT
from tests.training.clusters import Cluster
from tests.training.ranks import Rank
from tests.training.trainees import Trainee
from tests.waiting import wait_until
from trainmover.ccl.communicator import Communicator
from trainmover.ccl.group import TrainMoverGroup
from trainmover.events.catalogue import (
    GroupRow,
    JoinerRank,
    MachineRole,
    RankDescribed,
    RankFinished,
    RankStarted,
    RecordingReady,
    RolesFound,
    SandboxPeers,
    SeatRow,
    StandbyParked,
)
from trainmover.topology.layout import guardian_of
from trainmover.training.job import Job, Step

WIDTH = 257
DATA, PIPE, TENSOR = 2, 3, 2


@dataclass(frozen=True)
class Coordinates:
    """Where a rank is in the mesh."""

    data: int
    pipe: int
    tensor: int

    @classmethod
    def of(cls, rank: int) -> Coordinates:
        rest, tensor = divmod(rank, TENSOR)
        return cls(*divmod(rest, PIPE), tensor)


def rank_at(data: int, pipe: int, tensor: int) -> int:
    """The rank at these coordinates."""
    return (data * PIPE + pipe) * TENSOR + tensor


def groups_of(rank: int, size: int) -> list[tuple[str, tuple[int, ...]]]:
    """The groups of a rank, named as torch does: every rank counts all that are made."""
    datas = range(size // (PIPE * TENSOR))
    everybodys = [tuple(range(size))]
    everybodys += [tuple(rank_at(d, p, t) for t in range(TENSOR)) for d in datas for p in range(PIPE)]
    everybodys += [tuple(rank_at(d, p, t) for p in range(PIPE)) for d in datas for t in range(TENSOR)]
    everybodys += [tuple(rank_at(d, p, t) for d in datas) for p in range(PIPE) for t in range(TENSOR)]
    return [(str(number), ranks) for number, ranks in enumerate(everybodys) if rank in ranks]


class Layer(nn.Module):
    """One rank's part of one layer."""

    def __init__(self, pipe: int, tensor: int) -> None:
        super().__init__()
        seed = torch.Generator().manual_seed(10 * pipe + tensor)
        self.weight = nn.Parameter(torch.randn(WIDTH, generator=seed))


class Stage(Trainee):
    """One rank of the pipeline."""

    def groups(self, communicator: Communicator) -> None:
        """All are made after the first epoch has begun."""

    def begin(self, rank: Rank, job: Job) -> None:
        communicator = rank.session.communicator
        me = rank.session.rank
        self.whole, self.tensor, self.pipe, self.replicas = (
            self._made(communicator, name, ranks) for name, ranks in groups_of(me, rank.cluster.size)
        )
        at = Coordinates.of(me)
        self.model = Layer(at.pipe, at.tensor)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.9)
        self.whole.barrier().wait()
        self.replicas.broadcast([self.model.weight.detach()], root(0)).wait()
        super().begin(rank, job)

    @staticmethod
    def _made(communicator: Communicator, name: str, ranks: tuple[int, ...]) -> TrainMoverGroup:
        communicator.add_group(name, ranks)
        return TrainMoverGroup(communicator, name, ranks)

    def step(self, rank: Rank, step: Step) -> None:
        at = Coordinates.of(rank.session.rank)
        self.data.at += 1
        assert (self.pipe.rank(), self.tensor.rank(), self.replicas.rank()) == (at.pipe, at.tensor, at.data)
        gradient, loss = self.through(100 * self.data.at + at.data)
        step.log(loss=loss, seen=None if loss is not None else float(at.data))
        self.learn_from(gradient)

    def through(self, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One sample forth and back through the pipeline: this rank's gradient, and the last stage's loss."""
        weight = self.model.weight.detach()
        stage, last, loss = self.pipe.rank(), self.pipe.size() - 1, None
        if stage == 0:
            x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
        else:
            x = torch.empty(WIDTH)
            self.pipe.recv([x], stage - 1).wait()
        y = x * weight
        self.tensor.allreduce([y]).wait()
        if stage < last:
            self.pipe.send([y], stage + 1).wait()
            back = torch.empty(WIDTH)
            self.pipe.recv([back], stage + 1).wait()
        else:
            back, loss = torch.ones(WIDTH) / WIDTH, y.tanh().mean()
        down = back * weight
        self.tensor.allreduce([down]).wait()
        if stage > 0:
            self.pipe.send([down], stage - 1).wait()
        return back * x, loss

    def learn_from(self, gradient: torch.Tensor) -> None:
        """Take the mean of the replicas' gradients."""
        self.replicas.allreduce([gradient]).wait()
        self.model.weight.grad = gradient / self.replicas.size()


def root(rank: int) -> object:
    """Options of a broadcast."""
    options = torch._C._distributed_c10d.BroadcastOptions()
    options.rootRank = rank
    return options


class MeshCluster(Cluster):
    """Machines of two ranks, whose roles are found and which standbys can take."""

    trainee = Stage
    record = True
    warmup_steps = 2

    def __init__(
        self, folder: Path, steps: int = 8, replicas: int = DATA, faults: Sequence[str] = ()
    ) -> None:
        self.taken: dict[str, str] = {}
        self.roles: dict[str, MachineRole] = {}
        self.recordings: dict[str, list[str]] = {}
        super().__init__(folder, replicas * PIPE, steps, TENSOR, faults)

    def on(self, machine: str) -> list[Rank]:
        role = self.taken.get(machine, "")
        return [rank for rank in self.all if rank.machine == machine and rank.role == role]

    def seat_ranks(self, seat: int) -> list[Rank]:
        """The live ranks of a seat."""
        return self.on(self.layout[seat])

    # -- what the services do --------------------------------------------------------------------

    def described(self) -> dict[int, RankDescribed]:
        """What all ranks have said of themselves, by rank."""
        live = [rank for rank in self.all if not rank.session.sandbox]
        wait_until(lambda: all(rank.said(RankDescribed) or rank.error for rank in live), "described")
        errors = [rank.error for rank in live if not rank.said(RankDescribed)]
        assert errors == [], self.describe()
        return {event.rank: event for rank in live for event in rank.said(RankDescribed)}

    def find_roles(self) -> dict[str, MachineRole]:
        """Tell everybody the roles, and wait for their recordings."""
        described = self.described()
        kinds: dict[tuple[str, ...], list[int]] = {}
        for seat in range(len(self.layout)):
            ranks = range(seat * TENSOR, (seat + 1) * TENSOR)
            kinds.setdefault(tuple(described[rank].signature for rank in ranks), []).append(seat)
        for seats in kinds.values():
            stage = described[seats[0] * TENSOR].stage
            assert stage is not None
            name = {0: "first", stage[1] - 1: "last"}.get(stage[0], "middle")
            representative = min((seat for seat in seats if seat), default=0)
            rows = tuple(SeatRow(first=seat) for seat in seats)
            self.roles[name] = MachineRole(name=name, seats=rows, representative=representative)
        found = RolesFound(generation=1, roles=tuple(self.roles.values()))
        for rank in self.all:
            rank.tell(found)
        for role in self.roles.values():
            chosen = self.seat_ranks(role.representative)
            wait_until(lambda chosen=chosen: all(rank.said(RecordingReady) for rank in chosen), "recorded")
            self.recordings[role.name] = [rank.said(RecordingReady)[0].path for rank in chosen]
        return self.roles

    def role_of(self, seat: int) -> str:
        """The role of a seat."""
        return next(n for n, role in self.roles.items() if any(row.first == seat for row in role.seats))

    def warm(
        self,
        machine: str,
        *roles: str,
        park: str = "resident",
        at_birth: Callable[[Rank], None] = lambda _: None,
    ) -> list[Rank]:
        """Warm a standby in these roles, one after the other."""
        made: list[Rank] = []
        for name in roles:
            seat = self.roles[name].representative
            warmed = [
                Rank(
                    self,
                    machine,
                    seat * TENSOR + slot,
                    sandbox=True,
                    slot=slot,
                    role=name,
                    recording=self.recordings[name][slot],
                    park=park,
                )
                for slot in range(TENSOR)
            ]
            for rank in warmed:
                at_birth(rank)
            self.all += warmed
            made += warmed
            wait_until(lambda warmed=warmed: all(rank.said(RankStarted) for rank in warmed), "started")
            ends = tuple(rank.said(RankStarted)[0].endpoint for rank in warmed)
            for rank in warmed:
                rank.tell(SandboxPeers(role=name, endpoints=ends))
            wait_until(lambda warmed=warmed: all(r.said(StandbyParked) or r.error for r in warmed), "parked")
        return made

    def assign(self, machine: str, seat: int) -> None:
        """A standby will take a seat: the sandbox ranks of its role are the machine's from now on."""
        self.taken[machine] = self.role_of(seat)

    def joiner_ranks(self, machines: Sequence[str], changes: dict[str, str]) -> tuple[JoinerRank, ...]:
        described = self.described() if changes else {}
        found = []
        for joiner in changes.values():
            seat = machines.index(joiner)
            for rank in range(seat * TENSOR, (seat + 1) * TENSOR):
                guardian = guardian_of(rank, self.size, TENSOR)
                state = described[rank].state
                same = [other for other, event in described.items() if event.state == state]
                replicas = [r for r in same if machines[r // TENSOR] not in changes.values()]
                replicas.sort(key=lambda other, guardian=guardian: (other != guardian, other))
                replicas = [r for r in replicas if machines[r // TENSOR]]
                groups: tuple[GroupRow, ...] = described[rank].groups
                keeper = replicas[0] if self.layout[seat] == "" else None
                found.append(JoinerRank(rank=rank, groups=groups, sources=tuple(replicas[:8]), keeper=keeper))
        return tuple(found)

    def check(self, members: Sequence[Rank]) -> None:
        """Compared by the test with a run that was not disturbed."""

    def outcome(self) -> tuple[list[str], list[dict[int, dict[str, float]]]]:
        """Digests by rank, and the losses that each rank has seen."""
        members = self.finish()
        return [rank.said(RankFinished)[-1].digest for rank in members], [rank.losses for rank in members]


__all__ = ["LIMIT", "MeshCluster"]
