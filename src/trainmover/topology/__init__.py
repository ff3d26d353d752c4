"""What connects whom: layouts, links, deltas and the canonical bracketing. Pure, no torch."""

from trainmover.topology.bracket import bracket, merges, reduce_in_order
from trainmover.topology.delta import Delta, delta
from trainmover.topology.layout import Layout, guardian_of, ward_of
from trainmover.topology.links import Link, SeatedLink, boundary_links, group_links, links_of

__all__ = [
    "Delta",
    "Layout",
    "Link",
    "SeatedLink",
    "boundary_links",
    "bracket",
    "delta",
    "group_links",
    "guardian_of",
    "links_of",
    "merges",
    "reduce_in_order",
    "ward_of",
]
