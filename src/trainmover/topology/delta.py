"""The delta of two layouts: which links are dropped and which are made.

A set difference over seated links: whole topologies are compared, never "the joiner takes the
leaver's place in the ring".  Which links there are depends on the ranks alone, so only links with an
end on a changed position can differ, and those are found from the ranks on it (``links_at``): the
work is proportional to what changes and does not grow with the job.

Where a position becomes vacant, or is filled again, other ranks of its groups get other links:
there the groups with members on such a position are compared whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainmover.errors import ConfigError
from trainmover.topology.groups import Groups, as_groups
from trainmover.topology.layout import Layout
from trainmover.topology.links import (
    COLLECTIVE,
    Link,
    SeatedLink,
    boundary_links,
    group_links,
    links_at,
    links_of,
    seated,
)
from trainmover.topology.members import Listed, Row, boundary_total, pairs_in


@dataclass(frozen=True, slots=True)
class Delta:
    """What a switch changes. ``total`` counts the links of the new layout."""

    added: frozenset[SeatedLink]
    dropped: frozenset[SeatedLink]
    total: int

    def __str__(self) -> str:
        return f"+{len(self.added)} -{len(self.dropped)} of {self.total} links"

    def apply(self, current: frozenset[SeatedLink]) -> frozenset[SeatedLink]:
        """The links after the switch, from those before it."""
        return (current - self.dropped) | self.added


def delta(
    old: Layout | None,
    new: Layout,
    groups: Mapping[str, tuple[int, ...]],
    *,
    seats: Iterable[int] | None = None,
) -> Delta:
    """Links to drop and to make when ``new`` follows ``old`` (None: a start from nothing).

    Args:
        old: the layout whose links there are.
        new: the layout whose links there shall be.
        groups: the job's groups; a :class:`Groups` keeps its indexes from one call to the next.
        seats: positions among which all changed ones are, if the caller knows; without them the
            names of all machines are compared.

    Raises:
        ConfigError: the layouts are of different sizes.
    """
    if old is None:
        wanted = links_of(new, groups)
        return Delta(seated(new, wanted), frozenset(), len(wanted))
    if (len(old.machines), old.ranks_per_machine) != (len(new.machines), new.ranks_per_machine):
        raise ConfigError(f"a replacement keeps the world: {old} and {new} differ in size")
    indexed, per_machine, world = as_groups(groups), new.ranks_per_machine, new.world_size
    changed = [
        seat
        for seat in (range(len(new.machines)) if seats is None else seats)
        if old.machines[seat] != new.machines[seat]
    ]
    if old.vacant != new.vacant:
        before = seated(old, _links_of_changed(old, changed, indexed))
        after = seated(new, _links_of_changed(new, changed, indexed))
        return Delta(after - before, before - after, _total(new, indexed))
    touched: set[Link] = set()
    for seat in changed:
        for rank in range(seat * per_machine, (seat + 1) * per_machine):
            touched |= links_at(rank, world, per_machine, indexed, new.vacant)
    before, after = seated(old, touched), seated(new, touched)
    return Delta(after - before, before - after, _total(new, indexed))


def _concerned(layout: Layout, seats: Iterable[int], groups: Groups) -> dict[str, Row | Listed]:
    """The groups that have members on some positions."""
    per_machine = layout.ranks_per_machine
    ranks = (rank for seat in seats for rank in range(seat * per_machine, (seat + 1) * per_machine))
    return {name: members for rank in ranks for name, members in groups.of(rank)}


def _links_of_changed(layout: Layout, seats: Iterable[int], groups: Groups) -> set[Link]:
    """A layout's links in the groups with members on some positions, and at the boundary."""
    found = set(boundary_links(layout.world_size, layout.ranks_per_machine, layout.vacant))
    for name, members in _concerned(layout, seats, groups).items():
        found |= group_links(name, COLLECTIVE, members.ranks, layout.ranks_per_machine, layout.vacant)
    return found


def _total(layout: Layout, groups: Groups) -> int:
    """Number of a layout's links."""
    world, per_machine, vacant = layout.world_size, layout.ranks_per_machine, layout.vacant
    total = groups.links_total(world, per_machine)
    if not vacant:
        return total
    total += len(boundary_links(world, per_machine, vacant)) - boundary_total(world, per_machine)
    for name, members in _concerned(layout, vacant, groups).items():
        total += len(group_links(name, COLLECTIVE, members.ranks, per_machine, vacant))
        total -= pairs_in(members, per_machine)
    return total
