"""Links and topologies: who must be connected to whom, as a pure function of the ranks.

A *link* joins two ranks in one group and channel.  A *topology* is the set of links that the
walks of a group need (:mod:`trainmover.topology.members` names the shapes).  A *seated* link also
names the machines at its ends; that is what changes in a replacement, so the delta of two layouts
is a set difference of seated links.

Every topology can be asked for in two ways, and tests hold them together: whole (``edges``,
``group_links``, ``boundary_links``, ``links_of``), by walking all members and the bracketing itself;
and of one rank (``links_in``, ``links_at``), in a time that grows with the logarithm of the group.

A group with members on vacant positions has the links of those who are present: a mesh, or the canonical
tree without the absent leaves and the ring without its absent members.  One rank's links in it take a walk
over the group.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from trainmover.topology.bracket import bracket, cells, merges_of, restricted
from trainmover.topology.groups import Groups
from trainmover.topology.layout import Layout, guardian_of
from trainmover.topology.members import (
    MESH_LIMIT,
    Listed,
    Row,
    boundary_partners,
    is_layered,
    partners,
)

__all__ = [
    "BOUNDARY",
    "COLLECTIVE",
    "MESH_LIMIT",
    "STATE",
    "TO_HIGHER",
    "TO_LOWER",
    "WORLD",
    "Link",
    "SeatedLink",
    "links_of",
    "pair_link",
]

WORLD = "world"
"""Group name of the boundary's own links, which exist in every job."""

BOUNDARY = "boundary"
"""Channel of votes, meetings and private-state mirrors."""

CERTIFICATE_NAME = "link.trainmover"
"""The name in the certificate of encrypted links; a peer is known by the job's secret, not by its name."""

COLLECTIVE = "collective"
"""Channel of a process group's collectives."""

STATE = "state"
"""Channel on which a joiner receives its state; exists only during a switch."""

TO_HIGHER, TO_LOWER = "to-higher", "to-lower"
"""Channels of messages from one rank to another: made when the sender first needs them, dialled by it."""


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """Two ranks in one group and channel; ``low < high``."""

    group: str
    channel: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.group}/{self.channel} {self.low}-{self.high}"

    def other(self, rank: int) -> int:
        """The rank at the other end."""
        return self.high if rank == self.low else self.low

    @property
    def dialler(self) -> int:
        """The rank that makes the connection."""
        return self.high if self.channel == TO_LOWER else self.low

    @property
    def on_demand(self) -> bool:
        """True for a link that no topology names: it is made when its sender first needs it."""
        return self.channel in (TO_HIGHER, TO_LOWER)


@dataclass(frozen=True, slots=True, order=True)
class SeatedLink:
    """A link and the machines at its ends."""

    link: Link
    low_machine: str
    high_machine: str


def link(group: str, channel: str, a: int, b: int) -> Link:
    """The link between two different ranks, in either order."""
    if a == b:
        raise ValueError(f"rank {a} needs no link to itself ({group}/{channel})")
    return Link(group, channel, min(a, b), max(a, b))


def pair_link(group: str, sender: int, receiver: int) -> Link:
    """The link for messages from one rank of a group to another."""
    return link(group, TO_HIGHER if sender < receiver else TO_LOWER, sender, receiver)


def edges(
    ranks: tuple[int, ...],
    ranks_per_machine: int,
    *,
    layered: bool = True,
    vacant: Collection[int] = (),
) -> Iterator[tuple[int, int]]:
    """Pairs of global ranks that a group's walks use.

    Args:
        ranks: global ranks of the group by group rank.
        ranks_per_machine: K of the layout; gives each rank's position.
        layered: False for the boundary, whose messages are too small to gain by more links.
        vacant: positions where nobody sits.
    """
    positions = tuple(rank // ranks_per_machine for rank in ranks)
    return placed_edges(ranks, positions, layered=layered, vacant=vacant)


def placed_edges(
    ranks: tuple[int, ...],
    positions: tuple[int, ...],
    *,
    layered: bool = True,
    vacant: Collection[int] = (),
) -> Iterator[tuple[int, int]]:
    """The same for members on any machines: ``positions`` has each member's, by group rank."""
    present = tuple(member for member, position in enumerate(positions) if position not in vacant)
    size = len(present)
    if size <= MESH_LIMIT:
        for i, j in itertools.combinations(present, 2):
            yield ranks[i], ranks[j]
        return
    tree = bracket(positions)
    if size < len(positions):
        tree = restricted(tree, present)
        ranks, positions = (tuple(many[member] for member in present) for many in (ranks, positions))
    pairs: list[tuple[int, int]] = [*merges_of(tree), *((i, (i + 1) % size) for i in range(size))]
    inside = cells(positions)
    if layered and is_layered([len(cell) for cell in inside]):
        for cell in inside:
            pairs += itertools.combinations(cell, 2)
        for lane in zip(*inside, strict=True):
            if len(lane) <= MESH_LIMIT:
                pairs += itertools.combinations(lane, 2)
            else:
                pairs += ((lane[i], lane[j]) for i, j in merges_of(restricted(tree, lane)))
    for i, j in dict.fromkeys((min(pair), max(pair)) for pair in pairs):
        yield ranks[i], ranks[j]


def group_links(
    group: str,
    channel: str,
    ranks: tuple[int, ...],
    ranks_per_machine: int,
    vacant: Collection[int] = (),
) -> frozenset[Link]:
    """All links of one group."""
    return frozenset(link(group, channel, a, b) for a, b in edges(ranks, ranks_per_machine, vacant=vacant))


def placed_links(
    group: str, channel: str, ranks: tuple[int, ...], positions: tuple[int, ...]
) -> frozenset[Link]:
    """All links of one group whose members sit on any machines."""
    return frozenset(link(group, channel, a, b) for a, b in placed_edges(ranks, positions))


def boundary_links(world_size: int, ranks_per_machine: int, vacant: Collection[int] = ()) -> frozenset[Link]:
    """Links of the iteration boundary: the world's own topology, and each rank to its guardian."""
    pairs = edges(tuple(range(world_size)), ranks_per_machine, layered=False, vacant=vacant)
    found = {link(WORLD, BOUNDARY, a, b) for a, b in pairs}
    for rank in range(world_size):
        guardian = guardian_of(rank, world_size, ranks_per_machine, vacant)
        if guardian != rank and rank // ranks_per_machine not in vacant:
            found.add(link(WORLD, BOUNDARY, rank, guardian))
    return frozenset(found)


def links_of(layout: Layout, groups: Mapping[str, tuple[int, ...]]) -> frozenset[Link]:
    """Every link that lives as long as a layout does: the boundary's and the groups'."""
    vacant = layout.vacant
    found = set(boundary_links(layout.world_size, layout.ranks_per_machine, vacant))
    for name, ranks in groups.items():
        found |= group_links(name, COLLECTIVE, tuple(ranks), layout.ranks_per_machine, vacant)
    return frozenset(found)


def links_in(
    group: str,
    channel: str,
    members: Row | Listed,
    rank: int,
    ranks_per_machine: int,
    vacant: Collection[int] = (),
) -> frozenset[Link]:
    """The links that one rank has in one of its groups."""
    if has_absent(members, ranks_per_machine, vacant):
        pairs = edges(members.ranks, ranks_per_machine, vacant=vacant)
        return frozenset(link(group, channel, a, b) for a, b in pairs if rank in (a, b))
    others = partners(members, members.index(rank), ranks_per_machine)
    return frozenset(link(group, channel, rank, members.rank(other)) for other in others)


def has_absent(members: Row | Listed, ranks_per_machine: int, vacant: Collection[int]) -> bool:
    """Whether a group has a member on a vacant position."""
    return any(
        rank in members
        for seat in vacant
        for rank in range(seat * ranks_per_machine, (seat + 1) * ranks_per_machine)
    )


def links_at_boundary(
    rank: int, world_size: int, ranks_per_machine: int, vacant: Collection[int] = ()
) -> frozenset[Link]:
    """The boundary's links of one rank."""
    if vacant:
        everybodys = boundary_links(world_size, ranks_per_machine, vacant)
        return frozenset(item for item in everybodys if rank in (item.low, item.high))
    others = boundary_partners(rank, world_size, ranks_per_machine)
    return frozenset(link(WORLD, BOUNDARY, rank, other) for other in others)


def links_at(
    rank: int, world_size: int, ranks_per_machine: int, groups: Groups, vacant: Collection[int] = ()
) -> frozenset[Link]:
    """The lasting links of one rank: those of ``links_of`` that end there."""
    found = set(links_at_boundary(rank, world_size, ranks_per_machine, vacant))
    for name, members in groups.of(rank):
        found |= links_in(name, COLLECTIVE, members, rank, ranks_per_machine, vacant)
    return frozenset(found)


def seated(layout: Layout, links: Iterable[Link]) -> frozenset[SeatedLink]:
    """The links with the machines that hold their ends in this layout."""
    machine_of = cache(layout.machine_of)  # a rank has many links
    return frozenset(SeatedLink(item, machine_of(item.low), machine_of(item.high)) for item in links)
