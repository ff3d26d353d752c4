"""From which size on a collective goes which way, and in what pieces: the one table of what was measured.

:mod:`algorithms` chooses by the first part, the walks cut their tensors by the second.  All of it in bytes.
No figure here changes a bit of any result.  ``benchmarks/collectives.py`` compares; what was found is in
docs/explanation/decisions.md.
"""

from __future__ import annotations

KIB, MIB = 1 << 10, 1 << 20

# -- which way -------------------------------------------------------------------------------------

DOUBLING_BYTES = 256 * KIB
"""Up to this size sums over links are made by doubling: few messages, each with the whole tensor."""

SHARED_BYTES = 128 * KIB + 1
"""From this size on a sum goes through shared windows; frames are quicker for less."""

SHARED_PARTS_BYTES = 512 * KIB + 1
"""The same for all_gather and reduce_scatter, of all members' parts together."""

SHARED_BROADCAST_BYTES = 1 * MIB
"""The same for a broadcast to more than one other member."""

SHARED_WHOLE_BYTES = 2 * MIB
"""Up to this much reading per member a sum through windows is made whole by everybody: it saves a meeting."""

LAYERED_BYTES = 64 * KIB
"""From this size on a sum over machines with several members each is made inside the machines first."""

# -- in what pieces --------------------------------------------------------------------------------

MESH_PIECE_BYTES = 4 * MIB
"""Slice by slice over a mesh: large ones cost few wake-ups, small ones little memory."""

LEAST_MESH_PIECE_BYTES = 16 * KIB
"""However many members there are."""

STAGING_BYTES = 16 * MIB
"""What the members of a group may have staged at one rank: two pieces of each of them."""

HALVING_PIECE_BYTES = 1 * MIB
"""What two members sum up at a time; more of them four times as much, since they cut it more often."""

TREE_PIECE_BYTES = 512 * KIB
"""Pieces climb a tree one behind the other: small ones keep every level busy."""

SHARED_PIECE_BYTES = 2 * MIB
"""Through windows, where it may not be more than a place has room for."""

LEAST_SHARED_PIECE_BYTES = 1 * MIB
"""A sum through windows has four pieces, so that they overlap, but none below this size."""

BLOCK_BYTES = 512 * KIB
"""Parts in windows are combined in blocks of this size: what is in between stays in the cache."""
