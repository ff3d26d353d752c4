"""The delta of two layouts: which links are dropped and which are made.

A set difference over seated links.  Only links with an end on a changed position can differ, so
the work is proportional to those; whole topologies are compared, never "the joiner takes the
leaver's place in the ring".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainmover.errors import ConfigError
from trainmover.topology.layout import Layout
from trainmover.topology.links import Link, SeatedLink, links_of, seated


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


def delta(old: Layout | None, new: Layout, groups: Mapping[str, tuple[int, ...]]) -> Delta:
    """Links to drop and to make when ``new`` follows ``old`` (None: a start from nothing)."""
    wanted = links_of(new, groups)
    if old is None:
        return Delta(seated(new, wanted), frozenset(), len(wanted))
    if (old.world_size, old.ranks_per_machine) != (new.world_size, new.ranks_per_machine):
        raise ConfigError(f"a replacement keeps the world: {old} and {new} differ in size")
    changed = {p for p, (a, b) in enumerate(zip(old.machines, new.machines, strict=True)) if a != b}
    touched = [item for item in wanted if _touches(item, changed, new)]
    before, after = seated(old, touched), seated(new, touched)
    return Delta(after - before, before - after, len(wanted))


def _touches(item: Link, changed: set[int], layout: Layout) -> bool:
    return layout.position_of(item.low) in changed or layout.position_of(item.high) in changed
