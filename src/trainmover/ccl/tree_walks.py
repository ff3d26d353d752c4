"""Collectives as walks over links, for groups too large to be a full mesh.

Reductions climb the canonical tree, piece by piece: a member combines its children's partial
results into its own part, left operand first, and passes it to its parent; results come down the
same way.  That is the canonical bracketing itself.  A broadcast runs along the same tree from its
root outwards; all_gather goes round the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from trainmover.ccl import sizes
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.ccl.walks import pieces
from trainmover.topology.bracket import Bracket, leader, merges_of


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member ends with the canonical combination of all; in place."""
    children, parent = group.family
    cuts = list(pieces(0, flat.numel(), flat.element_size(), sizes.TREE_PIECE_BYTES)) or [(0, 0)]
    sends: list[Transfer] = []
    for k, (a, b) in enumerate(cuts):
        yield from _climb(group, children, flat[a:b], combine, tag, k % 2, cuts[0][1])
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


def reduce(group: Group, flat: torch.Tensor, root: int, combine: Combine, tag: int) -> Steps:
    """The root ends with the canonical combination; in place there, untouched elsewhere.

    The tree's own root passes the result on to the member that wants it.
    """
    children, parent = group.family
    mine = flat if group.me == root or not children else flat.clone()
    cuts = list(pieces(0, flat.numel(), flat.element_size(), sizes.TREE_PIECE_BYTES)) or [(0, 0)]
    above = (group, parent) if parent is not None else (group.pairs, root)
    leads = parent is None
    sends: list[Transfer] = []
    for k, (a, b) in enumerate(cuts):
        yield from _climb(group, children, mine[a:b], combine, tag, k % 2, cuts[0][1])
        if not (leads and group.me == root):
            sends.append(above[0].send(above[1], mine[a:b], tag))
    if group.me == root and not leads:
        top = leader(group.tree)
        yield sends
        yield [group.pairs.receive(top, flat[a:b], tag) for a, b in cuts]
    yield sends


def _climb(
    group: Group,
    children: Sequence[int],
    part: torch.Tensor,
    combine: Combine,
    tag: int,
    half: int,
    whole: int,
) -> Steps:
    """Combine the children's partial results into my own part, in order."""
    for child in children:
        room, received = group.stage(child, part, part.numel(), tag, half, whole)
        yield [received]
        combine(part, room, part)


@cache
def towards(tree: Bracket, size: int, root: int) -> tuple[int, ...]:
    """For each member its neighbour in the canonical tree on the way to ``root`` (which has itself)."""
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for into, source in merges_of(tree):
        neighbours[into].append(source)
        neighbours[source].append(into)
    found = {root: root}
    todo = [root]
    for member in todo:
        fresh = [other for other in neighbours[member] if other not in found]
        found.update((other, member) for other in fresh)
        todo += fresh
    return tuple(found[member] for member in range(size))


def broadcast(group: Group, flat: torch.Tensor, root: int, tag: int) -> Steps:
    """Everybody ends with the root's tensor, passed on piece by piece along the canonical tree."""
    before = towards(group.tree, group.size, root)
    after = [member for member in range(group.size) if before[member] == group.me != member]
    cuts = list(pieces(0, flat.numel(), flat.element_size(), sizes.TREE_PIECE_BYTES)) or [(0, 0)]
    source = before[group.me]
    receives = [] if group.me == root else [group.receive(source, flat[a:b], tag) for a, b in cuts]
    sends: list[Transfer] = []
    for k, (a, b) in enumerate(cuts):
        if receives:
            yield [receives[k]]
        sends += [group.send(member, flat[a:b], tag) for member in after]
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
