"""Which algorithm a collective uses: the one place that chooses, by the sizes of :mod:`sizes`.

Up to ``MESH_LIMIT`` members a group is a full mesh (:mod:`walks`; small sums by
:mod:`doubling_walks`, large ones by :mod:`halving_walks` where the brackets are even), above it a
tree and a ring (:mod:`tree_walks`); the links follow the same limit.  What no tree or ring does well
(every member has something for every other one) runs as on a mesh, over links made on demand.  A mesh
whose members are all on one machine moves larger tensors through shared windows (:mod:`shared_walks`);
with equally many members on each of several machines, large sums are made in layers
(:mod:`layered_walks`).  Results have the same bits in every case.

Members that are absent (nobody has their seats) take no part: sums leave them out, what would come from
them is zero, what would go to them is dropped, and in the place of an absent root of a broadcast the first
member that is there speaks (replicas have the same to say).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from trainmover.ccl import (
    doubling_walks,
    halving_walks,
    layered_walks,
    shared_walks,
    sizes,
    tree_walks,
    walks,
)
from trainmover.ccl.reduce import Combine
from trainmover.ccl.tags import MESSAGE
from trainmover.ccl.view import Group
from trainmover.ccl.walk import Steps
from trainmover.topology.links import MESH_LIMIT

receive_any = walks.receive_any


def _mesh(group: Group) -> Group:
    """The group as a full mesh, by its own links or by those made on demand."""
    return group if group.size <= MESH_LIMIT else group.pairs


def _together(group: Group) -> bool:
    """True when all members are on one machine and joined by links."""
    return 1 < group.size <= MESH_LIMIT and group.is_together


def _zero(outputs: Iterable[torch.Tensor]) -> None:
    for output in outputs:
        output.zero_()


def on_demand(name: str, size: int, peer: int | None) -> Iterable[int]:
    """Members that a call sends to over links made on demand, so that a coming epoch prepares them.

    Args:
        name: the call, one of ``tags.CALLS``.
        size: members of the group.
        peer: the member that this rank sends to, if it is one.
    """
    if name == MESSAGE or (size > MESH_LIMIT and name == "gather"):
        return () if peer is None else (peer,)
    return range(size) if size > MESH_LIMIT and name in ("all_to_all", "reduce_scatter") else ()


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member ends with the canonical combination of all; in place."""
    group = group.present
    if flat.nbytes >= sizes.SHARED_BYTES and _together(group):
        room = yield from shared_walks.enter(group, tag)
        if room is not None:
            return (yield from shared_walks.all_reduce(room, flat, combine))
    if flat.nbytes >= sizes.LAYERED_BYTES and group.is_layered:
        return (yield from layered_walks.all_reduce(group, flat, combine, tag, _over_links))
    return (yield from _over_links(group, flat, combine, tag))


def _over_links(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    if group.size > MESH_LIMIT:
        return (yield from tree_walks.all_reduce(group, flat, combine, tag))
    if flat.nbytes <= sizes.DOUBLING_BYTES:
        walk = doubling_walks.all_reduce
    else:
        walk = halving_walks.all_reduce if halving_walks.fits(group.tree, group.size) else walks.all_reduce
    return (yield from walk(group, flat, combine, tag))


def reduce(group: Group, flat: torch.Tensor, root: int, combine: Combine, tag: int) -> Steps:
    """The root ends with the canonical combination; in place there, untouched elsewhere."""
    if root in group.absent:
        return
    group, root = group.present, group.there.index(root)
    if flat.nbytes >= sizes.SHARED_BYTES and _together(group):
        room = yield from shared_walks.enter(group, tag)
        if room is not None:
            return (yield from shared_walks.reduce(room, flat, root, combine))
    walk = walks.reduce if group.size <= MESH_LIMIT else tree_walks.reduce
    return (yield from walk(group, flat, root, combine, tag))


def reduce_scatter(
    group: Group,
    inputs: torch.Tensor,
    output: torch.Tensor,
    bounds: list[tuple[int, int]],
    combine: Combine,
    tag: int,
) -> Steps:
    """Member i ends with the combination of everybody's run ``bounds[i]`` of ``inputs``."""
    bounds = [bounds[member] for member in group.there] if group.absent else bounds
    group = group.present
    if inputs.nbytes >= sizes.SHARED_PARTS_BYTES and _together(group):
        room = yield from shared_walks.enter(group, tag)
        if room is not None:
            return (yield from shared_walks.reduce_scatter(room, inputs, output, bounds, combine))
    return (yield from walks.reduce_scatter(_mesh(group), inputs, output, bounds, combine, tag))


def broadcast(group: Group, flat: torch.Tensor, root: int, tag: int) -> Steps:
    """Everybody ends with the root's tensor; in place."""
    if group.absent:
        root = 0 if root in group.absent else group.there.index(root)
        group = group.present
    if flat.nbytes >= sizes.SHARED_BROADCAST_BYTES and group.size > 2 and _together(group):
        room = yield from shared_walks.enter(group, tag)
        if room is not None:
            return (yield from shared_walks.broadcast(room, flat, root))
    walk = walks.broadcast if group.size <= MESH_LIMIT else tree_walks.broadcast
    return (yield from walk(group, flat, root, tag))


def all_gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], tag: int) -> Steps:
    """Every member ends with everybody's tensor; ``outputs`` by group rank."""
    if group.absent:
        _zero(outputs[member] for member in group.absent)
        outputs, group = [outputs[member] for member in group.there], group.present
    if sum(output.nbytes for output in outputs) >= sizes.SHARED_PARTS_BYTES and _together(group):
        room = yield from shared_walks.enter(group, tag)
        if room is not None:
            return (yield from shared_walks.all_gather(room, mine, outputs))
    if group.size > MESH_LIMIT and all(output.numel() == mine.numel() for output in outputs):
        return (yield from tree_walks.all_gather(group, mine, outputs, tag))
    return (yield from walks.all_gather(_mesh(group), mine, outputs, tag))


def gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], root: int, tag: int) -> Steps:
    """The root ends with everybody's tensor; ``outputs`` by group rank, empty elsewhere."""
    if root in group.absent:
        return
    if group.absent:
        if outputs:
            _zero(outputs[member] for member in group.absent)
            outputs = [outputs[member] for member in group.there]
        group, root = group.present, group.there.index(root)
    return (yield from walks.gather(_mesh(group), mine, outputs, root, tag))


def scatter(group: Group, inputs: Sequence[torch.Tensor], output: torch.Tensor, root: int, tag: int) -> Steps:
    """Member i ends with the root's i-th tensor; ``inputs`` by group rank, empty elsewhere."""
    if group.absent:
        inputs = [inputs[member] for member in group.there] if inputs else inputs
        group, root = group.present, group.there.index(root)
    return (yield from walks.scatter(_mesh(group), inputs, output, root, tag))


def all_to_all(
    group: Group, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], tag: int
) -> Steps:
    """Member i ends with everybody's i-th input; sizes may differ."""
    if group.absent:
        _zero(outputs[member] for member in group.absent)
        inputs, outputs = ([many[member] for member in group.there] for many in (inputs, outputs))
        group = group.present
    return (yield from walks.all_to_all(_mesh(group), inputs, outputs, tag))


def send(group: Group, flat: torch.Tensor, member: int, tag: int) -> Steps:
    """Send a message to one member."""
    return walks.send(group, flat, member, tag)


def receive(group: Group, flat: torch.Tensor, member: int, tag: int) -> Steps:
    """Receive a message of this tag from one member."""
    return walks.receive(group, flat, member, tag)
