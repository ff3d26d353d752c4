"""Small sums by recursive doubling along the canonical bracketing.

At each bracket on the way from a member up to the whole, the member swaps partial results with
one of the bracket's other half, and both combine them, left half first: so after the last swap everybody
has the whole result, with ``log2(size)`` messages each instead of one for every member.  Where the halves
differ in size, some members of the smaller half send to several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.view import Group, as_bytes
from trainmover.topology.bracket import Bracket


@dataclass(frozen=True, slots=True)
class Swap:
    """One round of a member.

    Attributes:
        source: whose partial result it receives.
        targets: who receives its own.
        left: its own is the left operand.
    """

    source: int
    targets: tuple[int, ...]
    left: bool


@cache
def swaps(tree: Bracket, me: int) -> tuple[Swap, ...]:
    """The rounds of one member, from the innermost bracket outwards."""
    found: list[Swap] = []
    while isinstance(tree, tuple):
        left, right = _members(tree[0]), _members(tree[1])
        inside = me in left
        ours, theirs = (left, right) if inside else (right, left)
        at = ours.index(me)
        targets = tuple(
            theirs[other] for other in range(len(theirs)) if other * len(ours) // len(theirs) == at
        )
        found.append(Swap(theirs[at * len(theirs) // len(ours)], targets, inside))
        tree = tree[0] if inside else tree[1]
    return tuple(reversed(found))


def _members(tree: Bracket) -> list[int]:
    return [tree] if isinstance(tree, int) else _members(tree[0]) + _members(tree[1])


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member of a full mesh ends with the canonical combination of all; in place."""
    view = as_bytes(flat)
    for swap in swaps(group.tree, group.me):
        transfers = [group.send_bytes(target, view, tag, flat) for target in swap.targets]
        room, received = group.stage(swap.source, flat, flat.numel(), tag)
        transfers.append(received)
        yield transfers
        if swap.left:
            combine(flat, room, flat)
        else:
            combine(room, flat, flat)
