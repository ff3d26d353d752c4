"""Shares: the parts of a step's global batch that a rank computes.

    for step in job.steps(1000):
        for share in step.shares():
            x, y = data.batch(step.index, share.index)
            with nullcontext() if share.last else model.no_sync():
                loss = model(x, y)
                (loss * share.scale).backward()
            step.log(loss=loss)
        optimizer.step()

At full strength each member of the data-parallel group has ``parts`` shares, its own.  While a replica is
paused (``--on-exhausted shrink``) the others compute its shares as well (:mod:`trainmover.topology.shares`),
so the global batch stays the same.  What a share is computed from must therefore follow from the step's and
the share's number, not from who computes it: data is addressed by them, and here the random generators are
set by them.

Each share has random numbers of its own, made from the rank's seed (what ``torch.manual_seed`` was called
with before the first step), the step and the share.  A script that seeds all replicas alike gets the same
numbers in a share whoever computes it.  Outside shares a rank's generators go on as if there were none.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from trainmover.topology.shares import shares_of
from trainmover.training import randomness


@dataclass(frozen=True, slots=True)
class Share:
    """One share of a step's global batch.

    Attributes:
        index: its number among all shares of the step: data is addressed by the step's and this.
        last: it is the last one that this rank computes in this step: gradients are synchronised in it
            (``no_sync()`` in the others).
        scale: what its loss is multiplied with, so that the gradients' mean over the data-parallel group is
            that over all shares.
        count: number of shares of the step, over all ranks.
    """

    index: int
    last: bool
    scale: float
    count: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank is among the others now.

    Attributes:
        rank: its own.
        world_size: number of ranks.
        ranks_per_machine: K of the layout.
        vacant: seats that nobody has.
    """

    rank: int
    world_size: int
    ranks_per_machine: int = 1
    vacant: frozenset[int] = frozenset()


def shares(standing: Standing, parts: int, ranks: Sequence[int] | None = None) -> list[Share]:
    """The shares of one rank.

    Args:
        standing: the rank's.
        parts: shares of each member of the data-parallel group at full strength.
        ranks: that group; None: all ranks.

    Raises:
        ConfigError: ``parts`` is less than 1, or the rank is not in the group.
    """
    ranks = range(standing.world_size) if ranks is None else ranks
    positions = tuple(other // standing.ranks_per_machine for other in ranks)
    absent = [member for member, position in enumerate(positions) if position in standing.vacant]
    member = ranks.index(standing.rank) if standing.rank in ranks else -1
    indexes = shares_of(member, positions, absent, parts)
    return [Share(index, index == indexes[-1], 1.0 / parts, len(ranks) * parts) for index in indexes]


def seeded(found: Sequence[Share], seed: int, step: int) -> Iterator[Share]:
    """Give the shares one after the other, each with its own random numbers; then put the generators back."""
    kept = randomness.capture()
    try:
        for share in found:
            sow(seed, step, share.index)
            yield share
    finally:
        randomness.restore(kept)


def sow(seed: int, step: int, share: int) -> None:
    """Set all generators to the beginning of a share's random numbers."""
    digest = hashlib.blake2b(f"{seed} {step} {share}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number & 0xFFFFFFFF)
