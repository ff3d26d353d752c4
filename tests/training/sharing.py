"""Trainees that ask for their shares of the batch, and clusters of them: what can shrink and grow back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from tests.ccl.worlds import sum_call
from tests.training.clusters import Cluster
from tests.training.meshes import MeshCluster, Stage
from tests.training.ranks import Rank
from tests.training.trainees import GROUP, StandIn, Trainee, gradient
from trainmover.events.catalogue import JoinerRank
from trainmover.topology.layout import Layout
from trainmover.training.job import Step
from trainmover.training.places import row_of


class Sharing(Trainee):
    """Finds in a share what :class:`Trainee` finds on the rank whose share it is."""

    def step(self, rank: Rank, step: Step) -> None:
        self.data.next_batch()
        total = torch.zeros(0)
        for share in step.shares():
            part = gradient(share.index, step.index + 1)
            computed(rank).append((step.index, share.index))
            total = total + part if total.numel() else part
            step.log(loss=part.mean())
        self.model(total)
        rank.session.communicator.run(GROUP, sum_call(total)).wait()
        self.learn(total, rank.cluster.size)


class SharingStage(Stage):
    """A stage that computes the shares of its place in all replicas that are dealt to its own."""

    def step(self, rank: Rank, step: Step) -> None:
        self.data.at += 1
        total = torch.zeros(())
        for share in step.shares(group=self.replicas._ranks):
            computed(rank).append((step.index, share.index))
            gradient_of_share, loss = self.through(100 * step.index + share.index)
            step.log(loss=loss)
            total = total + gradient_of_share if total.dim() else gradient_of_share
        self.learn_from(total)


def computed(rank: Rank) -> list[tuple[int, int]]:
    """The shares that a rank has computed: step and share, also of steps that were void."""
    found: list[tuple[int, int]] = rank.__dict__.setdefault("computed", [])
    return found


def committed_shares(ranks: Sequence[Rank]) -> Counter[tuple[int, int]]:
    """How often each share of each committed step was computed, by whoever was there when it was."""
    found: Counter[tuple[int, int]] = Counter()
    for rank in ranks:
        shares, steps = list(computed(rank)), list(rank.ran)
        # A step that was void was run again: what was computed first for it does not count.
        runs: list[list[tuple[int, int]]] = []
        for item in shares:
            if not runs or runs[-1][-1][0] != item[0] or item[1] <= runs[-1][-1][1]:
                runs.append([])
            runs[-1].append(item)
        # What a standby does in the sandbox comes first; a rank that died has not voted on its last.
        live = runs[StandIn.steps :] if rank.session.sandbox else runs
        for run, (index, done) in zip(live, steps, strict=False):
            assert run[0][0] == index
            if done:
                found.update(run)
    return found


class SharingCluster(Cluster):
    """Data-parallel ranks, each a replica of its own."""

    trainee = Sharing

    def joiner_ranks(self, machines: Sequence[str], changes: dict[str, str]) -> tuple[JoinerRank, ...]:
        layout = Layout(1, tuple(machines), self.ranks_per_machine)
        found = []
        for joiner in changes.values():
            for rank in layout.ranks_of(joiner):
                sources = tuple(r for r in layout.present if layout.machine_of(r) not in changes.values())
                vacant = self.layout[rank // self.ranks_per_machine] == ""
                found.append(
                    JoinerRank(
                        rank=rank,
                        groups=(row_of(GROUP, range(self.size)),),
                        sources=sources,
                        keeper=sources[0] if vacant else None,
                    )
                )
        return tuple(found)


class SharingMesh(MeshCluster):
    """Replicas of a pipeline whose stages are cut in two."""

    trainee = SharingStage
