"""Places as events carry them: groups as rows, and the place that a switch gives to a process."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trainmover.ccl.calls import Place
from trainmover.ccl.communicator import Communicator
from trainmover.errors import LinkError
from trainmover.events.catalogue import GroupRow, JoinerRank, SeatRow, SwitchPrepare
from trainmover.topology.links import WORLD, Link
from trainmover.topology.members import Row, members_of

log = logging.getLogger(__name__)


def row_of(name: str, ranks: Sequence[int]) -> GroupRow:
    """A group as an event carries it: three numbers where its ranks are at equal distances."""
    members = members_of(ranks)
    if isinstance(members, Row):
        return GroupRow(name=name, first=members.first, stride=members.stride, count=members.size)
    return GroupRow(name=name, ranks=members.ranks)


def ranks_of(row: GroupRow) -> tuple[int, ...]:
    """The global ranks of a group, by group rank."""
    return row.ranks or Row(row.first, row.stride, row.count).ranks


def is_in(row: SeatRow, number: int) -> bool:
    """Whether a row of an event has this number."""
    at, rest = divmod(number - row.first, row.stride)
    return rest == 0 and 0 <= at < row.count


def place_for(communicator: Communicator, rank: int, told: JoinerRank | None) -> Place:
    """The place of a rank for this process, which was warmed for some place of the same role.

    Args:
        communicator: this process's.
        rank: which rank it becomes.
        told: what the order says of that rank; None where the order says nothing: then it must be in
            the very groups of this process.

    Raises:
        LinkError: this process's groups cannot be those of the rank.
    """
    if told is not None:
        return communicator.place_with(rank, [(row.name, ranks_of(row)) for row in told.groups])
    groups = communicator.place().groups
    if rank != communicator.rank and any(rank not in ranks for _, ranks in groups):
        raise LinkError(
            f"this process was warmed as rank {communicator.rank} and cannot become rank {rank}: the order "
            "does not say which groups that rank is in"
        )
    return Place(rank, groups)


def possible(event: SwitchPrepare, rank: int, links: frozenset[Link]) -> frozenset[Link]:
    """A rank's links without those to newcomers in groups that these do not have."""
    known = {item.rank: {row.name for row in item.groups} for item in event.joiner_ranks if item.rank != rank}
    lost = {
        item
        for item in links
        if item.group != WORLD and item.group not in known.get(item.other(rank), {item.group})
    }
    for item in sorted(lost):
        log.warning(
            "rank %d: link %s is not made: its group was made after the recorded steps, so the standby that "
            "becomes rank %d does not have it; make all groups before the first step",
            rank,
            item,
            item.other(rank),
        )
    return links - lost
