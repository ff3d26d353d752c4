"""Collectives as walks over links, for groups too large to be a full mesh.

Reductions climb the canonical tree, piece by piece: a member combines its children's partial
results into its own part, left operand first, and passes it to its parent; results come down the
same way.  That is the canonical bracketing itself.  Data that is only moved (broadcast,
all_gather) goes round the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainmover.ccl.connection import Transfer
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.walks import Group, pieces
from trainmover.topology.bracket import merges


def family(group: Group) -> tuple[list[int], int | None]:
    """My children in the order in which they are combined, and my parent (None: the root)."""
    steps = merges(group.positions)
    children = [source for into, source in steps if into == group.me]
    parents = [into for into, source in steps if source == group.me]
    return children, parents[0] if parents else None


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member ends with the canonical combination of all; in place."""
    children, parent = family(group)
    cuts = list(pieces(0, flat.numel(), flat.element_size())) or [(0, 0)]
    sends: list[Transfer] = []
    for k, (a, b) in enumerate(cuts):
        for child in children:
            room = group.scratch(child, flat, b - a, k % 2) if b > a else flat[a:b]
            yield [group.receive(child, room, tag)]
            combine(flat[a:b], room, flat[a:b])
        if parent is not None:
            sends.append(group.send(parent, flat[a:b], tag))
        else:
            sends += [group.send(child, flat[a:b], tag) for child in children]
    if parent is not None:
        results = [group.receive(parent, flat[a:b], tag) for a, b in cuts]
        for (a, b), result in zip(cuts, results, strict=True):
            yield [result]
            sends += [group.send(child, flat[a:b], tag) for child in children]
    yield sends


def broadcast(group: Group, flat: torch.Tensor, root: int, tag: int) -> Steps:
    """Everybody ends with the root's tensor, passed on piece by piece round the ring."""
    after, before = (group.me + 1) % group.size, (group.me - 1) % group.size
    cuts = list(pieces(0, flat.numel(), flat.element_size())) or [(0, 0)]
    receives = [] if group.me == root else [group.receive(before, flat[a:b], tag) for a, b in cuts]
    sends: list[Transfer] = []
    for k, (a, b) in enumerate(cuts):
        if receives:
            yield [receives[k]]
        if after != root:
            sends.append(group.send(after, flat[a:b], tag))
    yield sends


def all_gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], tag: int) -> Steps:
    """Every member ends with everybody's tensor, passed round the ring."""
    outputs[group.me].copy_(mine)
    after, before = (group.me + 1) % group.size, (group.me - 1) % group.size
    sends: list[Transfer] = []
    for k in range(group.size - 1):
        sends.append(group.send(after, outputs[(group.me - k) % group.size], tag))
        yield [group.receive(before, outputs[(group.me - k - 1) % group.size], tag)]
    yield sends
