"""Handing a rank's state over to a joiner, in one epoch: who sends what, and the sending.

Tensors and shared values come from the joiner's *sources*, the ranks with the same state on machines
that stay: each sends a share of the tensors, the first one also the shared values.  Where no other rank has
the state, they come from the rank that keeps a mirror of it.  The private values come from the joiner's
guardian, which may be a rank with quite another state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from trainmover.ccl import algorithms
from trainmover.ccl.engine import Engine, Steps
from trainmover.ccl.tags import tag_of
from trainmover.ccl.view import Group
from trainmover.errors import JobError, StateLost
from trainmover.training import mirror_copy, transfer
from trainmover.training.agreement import Resolution
from trainmover.training.mirror import Mirrors
from trainmover.training.orders import Order
from trainmover.training.state import TrackedState
from trainmover.training.transfer import Piece

KEY = "boundary"
HANDOVER_SECONDS = 3600.0
"""Limit of one copy, however large."""


def sources_of(order: Order, resolution: Resolution) -> dict[int, list[int]]:
    """For each joiner the ranks that send it its state."""
    return {
        joiner: [rank for rank in order.sources(joiner) if rank in resolution.members]
        for joiner in resolution.joiners
    }


@dataclass(frozen=True)
class Handover:
    """The state copy of one epoch, at one rank.

    Attributes:
        engine: moves the bytes.
        group: all ranks, joined by the links of the state copy.
        tracked: this rank's state.
        order: the epoch's.
        resolution: who joins and who has the state.
        mirrors: what this rank keeps of its ward.
    """

    engine: Engine
    group: Group
    tracked: TrackedState
    order: Order
    resolution: Resolution
    mirrors: Mirrors

    def _sources(self) -> dict[int, list[int]]:
        """For each joiner its sources.

        Raises:
            StateLost: a joiner's state, or its private part, is on no machine any more.
        """
        found = sources_of(self.order, self.resolution)
        for joiner, ranks in found.items():
            guardian = self.order.guardian(joiner)
            if guardian not in self.resolution.members:
                raise StateLost(
                    f"the private state of rank {joiner} (random generators, data position) is lost: rank "
                    f"{guardian}, which kept its copy, was lost with it; this job cannot go on exactly "
                    "(with --checkpoint-every it would go back to a checkpoint)"
                )
            mirrored = self.order.mirrored(joiner)
            if mirrored is not None and mirrored not in self.resolution.members:
                raise StateLost(
                    f"the state of rank {joiner} is lost: rank {mirrored}, which kept its mirror, was lost "
                    "with it"
                )
            if not ranks and mirrored is None:
                raise StateLost(
                    f"the state of rank {joiner} is lost: no rank with the same state is left on another "
                    "machine; replicate it (data-parallel replicas on different machines)"
                )
        return found

    def send(self, private: Callable[[int], bytes]) -> int:
        """Send what joiners need of this rank; returns the tensors' bytes sent.

        Args:
            private: gives the private values of a rank that this one keeps.
        """
        me, sources = self.group.me, self._sources()
        mirrored = [joiner for joiner in sources if self.order.mirrored(joiner) == me]
        tensors = [tensor for _, tensor in self.tracked.tensors()]
        sizes = [tensor.nbytes for tensor in tensors]
        shares = {
            joiner: transfer.shares(sizes, len(ranks))[ranks.index(me)]
            for joiner, ranks in sources.items()
            if me in ranks
        }
        first = [joiner for joiner, ranks in sources.items() if ranks[:1] == [me]]
        shared = self.tracked.shared_values() if first else b""
        wards = [joiner for joiner in sources if self.order.guardian(joiner) == me]
        small = [(joiner, shared) for joiner in first] + [(joiner, private(joiner)) for joiner in wards]
        self.engine.run(KEY, "state copy", lambda: self.sending(small, shares, tensors), HANDOVER_SECONDS)
        sent = sum(piece.end - piece.start for share in shares.values() for piece in share)
        for joiner in mirrored:
            sent += mirror_copy.give(self.engine, self.group, joiner, self.mirrors, self.resolution.committed)
        return sent

    def sending(
        self,
        small: Sequence[tuple[int, bytes]],
        shares: Mapping[int, Sequence[Piece]],
        tensors: Sequence[torch.Tensor],
    ) -> Steps:
        """The walk of a sender: small values first, in this order, then its shares."""
        started = []
        for joiner, data in small:
            started += transfer.send_small(self.group, joiner, data)
        for joiner, share in shares.items():
            started += transfer.send(self.group, joiner, share, tensors)
        yield started

    def receive(self) -> tuple[int, str, bytes]:
        """Receive all that this joiner needs; returns the tensors' bytes, whose they were, private values."""
        sources = self._sources()[self.group.me]
        mirrored = self.order.mirrored(self.group.me)
        if mirrored is not None:
            return self._receive_mirror(mirrored)
        tensors = [tensor for _, tensor in self.tracked.tensors()]
        sizes = [tensor.nbytes for tensor in tensors]
        private = self.engine.run(
            KEY, "state copy", lambda: self.receiving(sources, sizes, tensors), HANDOVER_SECONDS
        )
        return sum(sizes), ", ".join(f"rank {rank}" for rank in sources), private

    def _receive_mirror(self, source: int) -> tuple[int, str, bytes]:
        private = self.engine.run(KEY, "state copy", self._receiving_private, HANDOVER_SECONDS)
        size, kind = mirror_copy.take(self.engine, self.group, source, self.tracked)
        return size, kind, private

    def _receiving_private(self) -> Steps:
        guardian = self.order.guardian(self.group.me)
        private = yield from transfer.receive_small(self.group, guardian)
        if not private:
            raise JobError(f"rank {guardian} does not hold the private state of rank {self.group.me}")
        return private

    def receiving(
        self, sources: Sequence[int], sizes: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> Steps:
        """The walk of a joiner; its result is the private values."""
        shared = yield from transfer.receive_small(self.group, sources[0])
        private = yield from self._receiving_private()
        self.tracked.load_shared_values(shared)
        yield from transfer.receive(self.group, sources, transfer.shares(sizes, len(sources)), tensors)
        return private


def keeping(group: Group, absent: Sequence[int], mine: Mapping[int, bytes]) -> Steps:
    """The walk in which everybody gets what anybody has of absent ranks' private values.

    Args:
        group: all ranks.
        absent: those that are not there.
        mine: what this rank has of each of them; empty where it has nothing.

    Returns:
        the same for everybody: by rank what the first that has something has; empty where nobody has.
    """
    sizes = torch.tensor([len(mine[rank]) for rank in absent], dtype=torch.int64)
    rows = [torch.zeros_like(sizes) for _ in range(group.size)]
    yield from algorithms.all_gather(group, sizes, rows, tag_of("mirror"))
    found: dict[int, bytes] = {}
    for number, rank in enumerate(absent):
        holders = [member for member in group.there if int(rows[member][number])]
        if not holders:
            found[rank] = b""
            continue
        size = int(rows[holders[0]][number])
        data = torch.zeros(size, dtype=torch.uint8)
        if group.me == holders[0]:
            data = torch.frombuffer(bytearray(mine[rank]), dtype=torch.uint8)
        yield from algorithms.broadcast(group, data, holders[0], tag_of("mirror"))
        found[rank] = data.numpy().tobytes()
    return found
