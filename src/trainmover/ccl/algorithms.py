"""Which algorithm a collective uses: the one place that chooses.

Up to ``MESH_LIMIT`` members a group is a full mesh (:mod:`walks`), above it a tree and a ring
(:mod:`tree_walks`); the links follow the same limit.  Results have the same bits either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainmover.ccl import tree_walks, walks
from trainmover.ccl.reduce import Combine
from trainmover.ccl.walk import Steps
from trainmover.ccl.walks import Group
from trainmover.topology.links import MESH_LIMIT


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member ends with the canonical combination of all; in place."""
    walk = walks.all_reduce if group.size <= MESH_LIMIT else tree_walks.all_reduce
    return walk(group, flat, combine, tag)


def broadcast(group: Group, flat: torch.Tensor, root: int, tag: int) -> Steps:
    """Everybody ends with the root's tensor; in place."""
    walk = walks.broadcast if group.size <= MESH_LIMIT else tree_walks.broadcast
    return walk(group, flat, root, tag)


def all_gather(group: Group, mine: torch.Tensor, outputs: Sequence[torch.Tensor], tag: int) -> Steps:
    """Every member ends with everybody's tensor; ``outputs`` by group rank."""
    walk = walks.all_gather if group.size <= MESH_LIMIT else tree_walks.all_gather
    return walk(group, mine, outputs, tag)
