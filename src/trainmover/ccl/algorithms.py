"""Which algorithm a collective uses: the one place that chooses.

Up to ``MESH_LIMIT`` members a group is a full mesh (:mod:`walks`), above it a tree and a ring
(:mod:`tree_walks`); the links follow the same limit.  What no tree or ring does well (every member has
something for every other one) runs as on a mesh, over links made on demand.  Results have the same bits
either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from trainmover.ccl import tree_walks, walks
from trainmover.ccl.reduce import Combine
from trainmover.ccl.tags import MESSAGE
from trainmover.ccl.view import Group
from trainmover.ccl.walk import Steps
from trainmover.topology.links import MESH_LIMIT

receive_any = walks.receive_any


def _mesh(group: Group) -> Group:
    """The group as a full mesh, by its own links or by those made on demand."""
    return group if group.size <= MESH_LIMIT else group.pairs


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
    walk = walks.all_reduce if group.size <= MESH_LIMIT else tree_walks.all_reduce
    return walk(group, flat, combine, tag)


def reduce(group: Group, flat: torch.Tensor, root: int, combine: Combine, tag: int) -> Steps:
    """The root ends with the canonical combination; in place there, untouched elsewhere."""
    walk = walks.reduce if group.size <= MESH_LIMIT else tree_walks.reduce
    return walk(group, flat, root, combine, tag)


def reduce_scatter(
    group: Group,
    inputs: torch.Tensor,
    output: torch.Tensor,
    bounds: list[tuple[int, int]],
    combine: Combine,
    tag: int,
) -> Steps:
    """Member i ends with the combination of everybody's run ``bounds[i]``; ``inputs`` is used up."""
    return walks.reduce_scatter(_mesh(group), inputs, output, bounds, combine, tag)


def broadcast(group: Group, flat: torch.Tensor, root: int, tag: int) -> Steps:
    """Everybody ends with the root's tensor; in place."""
    walk = walks.broadcast if group.size <= MESH_LIMIT else tree_walks.broadcast
    return walk(group, flat, root, tag)


def all_gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], tag: int) -> Steps:
    """Every member ends with everybody's tensor; ``outputs`` by group rank."""
    if group.size > MESH_LIMIT and all(output.numel() == mine.numel() for output in outputs):
        return tree_walks.all_gather(group, mine, outputs, tag)
    return walks.all_gather(_mesh(group), mine, outputs, tag)


def gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], root: int, tag: int) -> Steps:
    """The root ends with everybody's tensor; ``outputs`` by group rank, empty elsewhere."""
    return walks.gather(_mesh(group), mine, outputs, root, tag)


def scatter(group: Group, inputs: Sequence[torch.Tensor], output: torch.Tensor, root: int, tag: int) -> Steps:
    """Member i ends with the root's i-th tensor; ``inputs`` by group rank, empty elsewhere."""
    return walks.scatter(_mesh(group), inputs, output, root, tag)


def all_to_all(
    group: Group, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], tag: int
) -> Steps:
    """Member i ends with everybody's i-th input; sizes may differ."""
    return walks.all_to_all(_mesh(group), inputs, outputs, tag)


def send(group: Group, flat: torch.Tensor, member: int, tag: int) -> Steps:
    """Send a message to one member."""
    return walks.send(group, flat, member, tag)


def receive(group: Group, flat: torch.Tensor, member: int, tag: int) -> Steps:
    """Receive a message of this tag from one member."""
    return walks.receive(group, flat, member, tag)
