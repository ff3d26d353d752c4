"""all_reduce in layers: inside each machine, across machines, inside again.

For groups with the same number of members on each of several machines.  Member j of a machine owns slice
j: first the members of a machine combine the slices among themselves, then the members that own the
same slice combine it across the machines (they are a *lane*), then the members of a machine
give each other their slices.  So each machine sends a tensor's bytes as if it were one member.  The
canonical bracketing is inside a machine first and then across, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainmover.ccl import shared_walks, walks
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.view import Group
from trainmover.topology.bracket import cells


def split(group: Group) -> tuple[Group, Group]:
    """My cell (the members on my machine) and my lane (those in my place on every machine)."""
    inside = cells(group.positions)
    (mine,) = (cell for cell in inside if group.me in cell)
    place = mine.index(group.me)
    return group.part(mine), group.part(tuple(cell[place] for cell in inside))


AllReduce = Callable[[Group, torch.Tensor, Combine, int], Steps]


def all_reduce(
    group: Group, flat: torch.Tensor, combine: Combine, tag: int, across: AllReduce = walks.all_reduce
) -> Steps:
    """Every member ends with the canonical combination of all, in place; ``across`` is for the lanes."""
    cell, lane = split(group)
    bounds = walks.slices(flat.numel(), cell.size)
    parts = [flat[a:b] for a, b in bounds]
    mine = parts[cell.me]
    room = yield from shared_walks.enter(cell, tag)
    if room is not None:
        yield from shared_walks.reduce_scatter(room, flat, mine, bounds, combine)
    else:
        yield from walks.reduce_scatter(cell, flat, mine, bounds, combine, tag)
    yield from across(lane, mine, combine, tag)
    if room is not None:
        yield from shared_walks.all_gather(room, mine, parts)
    else:
        yield from walks.all_gather(cell, mine, parts, tag)
