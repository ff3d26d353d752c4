"""What connects whom: layouts, links, deltas and the canonical bracketing. Pure, no torch."""

from trainmover.topology.bracket import bracket, merges, reduce_in_order
from trainmover.topology.delta import Delta, delta
from trainmover.topology.groups import Grid, Groups
from trainmover.topology.layout import Layout, guardian_of, ward_of
from trainmover.topology.links import (
    Link,
    SeatedLink,
    boundary_links,
    group_links,
    links_at,
    links_in,
    links_of,
)
from trainmover.topology.members import Listed, Row

__all__ = [
    "Delta",
    "Grid",
    "Groups",
    "Layout",
    "Link",
    "Listed",
    "Row",
    "SeatedLink",
    "boundary_links",
    "bracket",
    "delta",
    "group_links",
    "guardian_of",
    "links_at",
    "links_in",
    "links_of",
    "merges",
    "reduce_in_order",
    "ward_of",
]
