"""What connects whom: layouts, links, deltas and the canonical bracketing. Pure, no torch."""

from trainmover.topology.bracket import (
    bracket,
    merges,
    merges_of,
    reduce_along,
    reduce_in_order,
    restricted,
)
from trainmover.topology.delta import Delta, delta
from trainmover.topology.groups import Grid, Groups
from trainmover.topology.layout import VACANT, Layout, guardian_of, ward_of
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
from trainmover.topology.shares import shares_of

__all__ = [
    "VACANT",
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
    "merges_of",
    "reduce_along",
    "reduce_in_order",
    "restricted",
    "shares_of",
    "ward_of",
]
