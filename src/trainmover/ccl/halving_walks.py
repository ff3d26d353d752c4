"""Large sums by recursive halving and doubling, for groups whose canonical bracketing is a perfect tree.

On the way up through the brackets a member swaps halves of what it still has to reduce with its
counterpart: each keeps one half, so the work and the bytes halve from round to round and every addition is
the bracketing's own.  On the way back the same counterparts give each other what they have finished.  As
many bytes as slice by slice, in ``2 log2(size)`` messages instead of ``2 (size - 1)``.

A tensor goes piece by piece, each all the way up and back, with two pieces under way at a time: what has
been received is added and sent on while the processor's cache still has it.  Members take up their pieces in
turns, one round of each after the other, so that frames come in the order in which they are waited for.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import islice

import torch

from trainmover.ccl import sizes
from trainmover.ccl.doubling_walks import swaps
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group, as_bytes
from trainmover.ccl.walks import pieces
from trainmover.topology.bracket import Bracket

PIECES = 2
"""How many pieces are under way at a time: one is combined while others travel."""

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
    if group.size == 1 or flat.numel() == 0:
        return
    piece_bytes = sizes.HALVING_PIECE_BYTES * (1 if group.size == 2 else 4)
    cuts = list(pieces(0, flat.numel(), flat.element_size(), piece_bytes))
    sends: list[Transfer] = []
    if len(cuts) == 1:
        yield from _piece(group, flat, cuts[0], combine, tag, sends, (0, cuts[0][1]))
        yield sends
        return
    fresh = (
        _piece(group, flat, bounds, combine, tag, sends, (number % PIECES, cuts[0][1]))
        for number, bounds in enumerate(cuts)
    )
    under_way: deque[tuple[Steps, list[Transfer]]] = deque()
    for piece in islice(fresh, PIECES):
        under_way.append((piece, next(piece)))
    while under_way:
        piece, awaited = under_way.popleft()
        yield awaited
        following = next(piece, None)
        if following is None:
            another = next(fresh, None)
            if another is None:
                continue
            piece, following = another, next(another)
        under_way.append((piece, following))
    yield sends


def _piece(
    group: Group,
    flat: torch.Tensor,
    bounds: tuple[int, int],
    combine: Combine,
    tag: int,
    sends: list[Transfer],
    room: tuple[int, int],
) -> Steps:
    """One piece's way up and back.

    What a member gives away it gets back from the one that it gave it to, who has read all of it by then:
    so results may be received into memory whose sending nobody has waited for.

    Args:
        bounds: the piece.
        sends: what is sent is added here; whoever drives this waits for it at the end.
        room: which of the pieces under way this is, and how many elements the largest one has.
    """
    view, item = as_bytes(flat), flat.element_size()
    (low, high), (place, most) = bounds, room
    back: list[tuple[int, int, int]] = []
    for swap in swaps(group.tree, group.me):
        middle = min(high, low + -(-(high - low) // (2 * ALIGNED)) * ALIGNED)
        first, last = (low, middle), (middle, high)
        (low, high), (a, b) = (first, last) if swap.left else (last, first)
        most = most // 2 + ALIGNED
        sends.append(group.send_bytes(swap.source, view[a * item : b * item], tag, flat))
        theirs, received = group.stage(swap.source, flat, high - low, tag, place, most, PIECES)
        yield [received]
        mine = flat[low:high]
        if swap.left:
            combine(mine, theirs, mine)
        else:
            combine(theirs, mine, mine)
        back.append((swap.source, a, b))
    for member, a, b in reversed(back):
        sends.append(group.send_bytes(member, view[low * item : high * item], tag, flat))
        yield [group.receive_bytes(member, view[a * item : b * item], tag, flat)]
        low, high = min(low, a), max(high, b)
