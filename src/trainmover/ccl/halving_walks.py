"""Large sums by recursive halving and doubling, for groups whose canonical bracketing is a perfect tree.

On the way up through the brackets a member swaps halves of what it still has to reduce with its
counterpart: each keeps one half, so the work and the bytes halve from round to round and every addition is
the bracketing's own.  On the way back the same counterparts give each other what they have finished.  As
many bytes as slice by slice, in ``2 log2(size)`` messages instead of ``2 (size - 1)``.
"""

from __future__ import annotations

from collections import deque
from functools import cache

import torch

from trainmover.ccl.doubling_walks import swaps
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group, as_bytes
from trainmover.ccl.walks import pieces
from trainmover.topology.bracket import Bracket

PIECE_BYTES = 1024 * 1024
"""Halves are combined in pieces of this size, while the next one arrives."""

ALIGNED = 16
"""Halves begin at multiples of so many elements."""


@cache
def fits(tree: Bracket, size: int) -> bool:
    """True when every bracket of the group has two halves of the same size."""
    rounds = size.bit_length() - 1
    return size == 1 << rounds and all(
        len(swaps(tree, member)) == rounds
        and all(swap.targets == (swap.source,) for swap in swaps(tree, member))
        for member in range(size)
    )


def all_reduce(group: Group, flat: torch.Tensor, combine: Combine, tag: int) -> Steps:
    """Every member of a full mesh that :func:`fits` ends with the canonical combination; in place."""
    view, item = as_bytes(flat), flat.element_size()
    low, high = 0, flat.numel()
    back: list[tuple[int, int, int]] = []
    sends: list[Transfer] = []

    def send(member: int, a: int, b: int) -> None:
        sends.append(group.send_bytes(member, view[a * item : b * item], tag, flat))

    for swap in swaps(group.tree, group.me):
        middle = min(high, low + -(-(high - low) // (2 * ALIGNED)) * ALIGNED)
        first, last = (low, middle), (middle, high)
        (low, high), given = (first, last) if swap.left else (last, first)
        for a, b in pieces(*given, item, PIECE_BYTES):
            send(swap.source, a, b)
        yield from _take_in(group, flat, (low, high), swap.source, swap.left, combine, tag)
        back.append((swap.source, *given))
    yield sends
    for member, a, b in reversed(back):
        sends.clear()
        if high > low:
            send(member, low, high)
        if b > a:
            sends.append(group.receive_bytes(member, view[a * item : b * item], tag, flat))
        yield sends
        low, high = min(low, a), max(high, b)


def _take_in(
    group: Group,
    flat: torch.Tensor,
    bounds: tuple[int, int],
    member: int,
    left: bool,
    combine: Combine,
    tag: int,
) -> Steps:
    """Receive a member's part of a run and combine it with mine, piece by piece."""
    cuts = list(pieces(*bounds, flat.element_size(), PIECE_BYTES))
    whole = cuts[0][1] - cuts[0][0] if cuts else 0
    posted: deque[tuple[torch.Tensor, Transfer]] = deque()
    for k, (a, b) in enumerate(cuts):
        for ahead in range(k + len(posted), min(k + 2, len(cuts))):
            count = cuts[ahead][1] - cuts[ahead][0]
            posted.append(group.stage(member, flat, count, tag, ahead % 2, whole))
        room, received = posted.popleft()
        yield [received]
        part = flat[a:b]
        if left:
            combine(part, room, part)
        else:
            combine(room, part, part)
