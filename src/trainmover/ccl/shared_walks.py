"""Collectives of ranks on one machine, as walks over shared windows.

Those that gain by it: reductions, and what everybody or many read.  What one member has for one other
(all_to_all, gather, scatter) is copied as often by a unix socket.

Each member copies what others need of its tensor into its own window, tells them with empty frames on
their links, and takes what it needs straight out of theirs.  Reductions are slice-wise: member j combines
slice j of every piece in the canonical bracketing and shows the result in its window.  Large tensors go
in pieces, through the places of the windows in turn.

*When a place may be written again.*  A :class:`Room` counts steps; step s uses place s mod 4, and all members
take the same steps.  At the end of every walk here holds: the places that the next two steps use are read by
nobody.  Three ways to keep that:

- ``reduce``, ``all_gather``, ``reduce_scatter``, small sums: in each step all members meet, and come there
  only when they are done with reading the step before.  So at its end only its own place has readers.
- ``all_reduce`` looks ahead, so that nobody has to wait for the others' last word: before the meeting of step
  s a member shows its piece of step s + 1, combines that of s - 1, and has taken the results of s - 3.  So
  after the meeting nobody reads pieces up to s - 1 or results up to s - 3; at the end of the walk only the
  results of its last two steps can still be read.
- ``broadcast`` takes no step and stays within the places of the next two: readers say when they are done, and
  the root waits for all of them before it ends.

The frames carry the call's tag and the epoch, so members that make different calls are told so, and what
belongs to a broken epoch is thrown away; in a new epoch the steps start at 0 on all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from trainmover.ccl import sizes
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import Combine
from trainmover.ccl.shared import NAME_BYTES, Window
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.ccl.walks import pieces, slices
from trainmover.topology.bracket import Bracket

NOTHING = memoryview(b"")


@dataclass(frozen=True)
class Room:
    """The windows of a group whose members are all on one machine, during one walk.

    Attributes:
        group: the members.
        own: this rank's window.
        windows: everybody's, by member.
        tag: the call's.
    """

    group: Group
    own: Window
    windows: tuple[Window, ...]
    tag: int

    @property
    def step(self) -> int:
        """The current step."""
        return self.own.step

    def advance(self, steps: int = 2) -> None:
        """Go on, mostly by two steps: of two places in turn more stays in the cache."""
        self.own.step += steps

    def tell(self, members: Iterable[int]) -> None:
        """Say that my part is there (or that I am done reading)."""
        for member in members:
            self.group.send_bytes(member, NOTHING, self.tag, None)

    def hear(self, members: Iterable[int]) -> list[Transfer]:
        """What tells that these members have spoken."""
        return [self.group.receive_bytes(member, NOTHING, self.tag, None) for member in members]

    def meet(self) -> Steps:
        """Go on when everybody is here."""
        self.arrive()
        yield from self.all_here()

    def arrive(self) -> None:
        """Say that I am here, and do not wait.

        Two members tell each other.  More of them tell the first one, who tells all: two hops instead
        of one, but each of the others is woken once and not by everybody.
        """
        if self.group.size == 2:
            self.tell(self.group.others)
        elif self.group.me != 0:
            self.tell([0])

    def all_here(self) -> Steps:
        """Go on when everybody has arrived."""
        if self.group.size == 2:
            yield self.hear(self.group.others)
        elif self.group.me != 0:
            yield self.hear([0])
        else:
            yield self.hear(self.group.others)
            self.tell(self.group.others)


def enter(group: Group, tag: int) -> Steps:
    """The group's windows, or None when not all members can see each other's.

    In the first call of an epoch the members find out together: each names its window, checks that what it
    sees of the others are the windows that they name, and says so; all come to the same answer.
    """
    own = group.engine.table.window(group.group)
    found = [None if m == group.me else group.slot(m).connected.window for m in range(group.size)]
    if own.epoch != group.engine.epoch:
        names = {member: bytearray(NAME_BYTES) for member in group.others}
        for member in group.others:
            group.send_bytes(member, memoryview(own.name), tag, None)
        yield [group.receive_bytes(member, memoryview(name), tag, name) for member, name in names.items()]
        good = all(_is_named(found[member], name) for member, name in names.items())
        answers = {member: bytearray(1) for member in group.others}
        for member in group.others:
            group.send_bytes(member, memoryview(bytes([good])), tag, None)
        yield [group.receive_bytes(member, memoryview(said), tag, said) for member, said in answers.items()]
        own.usable = good and all(said == b"\x01" for said in answers.values())
        own.epoch, own.step = group.engine.epoch, 0
    if not own.usable:
        return None
    return Room(group, own, tuple(own if window is None else window for window in found), tag)


def _is_named(window: Window | None, name: bytearray) -> bool:
    return window is not None and window.name == name


# -- reductions ------------------------------------------------------------------------------------


def all_reduce(room: Room, flat: torch.Tensor, combine: Combine) -> Steps:
    """Every member ends with the canonical combination of all; in place."""
    group, most = room.group, sizes.SHARED_PIECE_BYTES
    if flat.nbytes * (group.size - 1) <= sizes.SHARED_WHOLE_BYTES and flat.nbytes <= most:
        room.own.input(room.step, flat, flat.numel()).copy_(flat)
        yield from room.meet()
        _combine(room, flat, 0, combine, flat)
        room.advance()
        return
    size = min(most, max(sizes.LEAST_SHARED_PIECE_BYTES, flat.nbytes // 4))
    cuts = list(pieces(0, flat.numel(), flat.element_size(), size))
    for ahead, cut in enumerate(cuts[:2]):
        _show(room, flat, cut, room.step + ahead)
    room.arrive()
    for k, cut in enumerate(cuts):
        yield from room.all_here()
        _own_slice(room, flat, cut, combine)
        if k + 2 < len(cuts):
            _show(room, flat, cuts[k + 2], room.step + 2)
        room.arrive()
        if k:
            _take(room, flat, cuts[k - 1], room.step - 1)
        room.advance(1)
    yield from room.all_here()
    _take(room, flat, cuts[-1], room.step - 1)


def reduce(room: Room, flat: torch.Tensor, root: int, combine: Combine) -> Steps:
    """The root ends with the canonical combination; in place there, untouched elsewhere."""
    group, others = room.group, room.group.others
    for a, b in pieces(0, flat.numel(), flat.element_size(), sizes.SHARED_PIECE_BYTES):
        _show(room, flat, (a, b), room.step)
        yield from room.meet()
        low, high = slices(b - a, group.size)[group.me]
        result = room.own.result(room.step, flat, high - low)
        _combine(room, flat[a + low : a + high], low, combine, result)
        if group.me == root:
            flat[a + low : a + high].copy_(result)
            yield room.hear(others)
            _take(room, flat, (a, b), room.step)
        else:
            room.tell([root])
        room.advance()


def reduce_scatter(
    room: Room, inputs: torch.Tensor, output: torch.Tensor, bounds: list[tuple[int, int]], combine: Combine
) -> Steps:
    """Member i ends with the combination of everybody's run ``bounds[i]`` of ``inputs``."""
    group, others, item = room.group, room.group.others, inputs.element_size()
    lane = sizes.SHARED_PIECE_BYTES // group.size // 64 * 64 // item
    start, end = bounds[group.me]
    for at in range(0, max(b - a for a, b in bounds), lane):
        for member in others:
            a, b = bounds[member]
            part = inputs[a + at : min(a + at + lane, b)]
            room.own.input(room.step, inputs, part.numel(), member * lane * item).copy_(part)
        yield from room.meet()
        mine = inputs[start + at : min(start + at + lane, end)]
        if mine.numel():
            _combine(room, mine, group.me * lane, combine, output[at : at + mine.numel()])
        room.advance()


def _show(room: Room, flat: torch.Tensor, cut: tuple[int, int], step: int) -> None:
    """Copy a piece into my window, but for my own slice, which nobody else reads."""
    a, b = cut
    low, high = slices(b - a, room.group.size)[room.group.me]
    shown = room.own.input(step, flat, b - a)
    if low:
        shown[:low].copy_(flat[a : a + low])
    if high < b - a:
        shown[high:].copy_(flat[a + high : b])


def _own_slice(room: Room, flat: torch.Tensor, cut: tuple[int, int], combine: Combine) -> None:
    """Combine my slice of this step's piece, in place and to be seen in my window."""
    a, b = cut
    low, high = slices(b - a, room.group.size)[room.group.me]
    mine = flat[a + low : a + high]
    _combine(room, mine, low, combine, mine, room.own.result(room.step, flat, high - low))


def _combine(
    room: Room,
    mine: torch.Tensor,
    offset: int,
    combine: Combine,
    out: torch.Tensor,
    copy: torch.Tensor | None = None,
) -> None:
    """Combine the members' parts canonically into ``out``, which may be my own part, and ``copy``.

    The others' parts are in their windows, at an offset of so many elements.
    """
    item, count = mine.element_size(), mine.numel()
    left, right = room.group.tree  # type: ignore[misc]  # more than one member
    places = max(_places(left), _places(right) + 1) if isinstance(right, tuple) else _places(left)
    parts = [
        mine if member == room.group.me else window.input(room.step, mine, count, offset * item)
        for member, window in enumerate(room.windows)
    ]
    for a, b in pieces(0, count, item, sizes.BLOCK_BYTES):
        block, spare = [part[a:b] for part in parts], room.own.spare(mine, b - a, places)
        # A block is read for the last time by the combination that writes the result.
        combine(_fold(left, block, combine, spare), _fold(right, block, combine, spare[1:]), out[a:b])
        if copy is not None:
            copy[a:b].copy_(out[a:b])


def _take(room: Room, flat: torch.Tensor, cut: tuple[int, int], step: int) -> None:
    """Copy the others' slices of a piece's result out of their windows."""
    a, b = cut
    bounds = slices(b - a, room.group.size)
    for member in room.group.others:
        low, high = bounds[member]
        flat[a + low : a + high].copy_(room.windows[member].result(step, flat, high - low))


@cache
def _places(tree: Bracket) -> int:
    """How many pieces of spare memory a bracket needs: one for each combination that waits for another."""
    return max(1, _places(tree[0]), _places(tree[1]) + 1) if isinstance(tree, tuple) else 0


def _fold(
    tree: Bracket, parts: list[torch.Tensor], combine: Combine, spare: list[torch.Tensor]
) -> torch.Tensor:
    """What a bracket comes to: a part as it is, or a combination in spare memory. No part is written to."""
    if isinstance(tree, int):
        return parts[tree]
    left = _fold(tree[0], parts, combine, spare)
    right = _fold(tree[1], parts, combine, spare[1:])
    combine(left, right, spare[0])
    return spare[0]


# -- moving data -----------------------------------------------------------------------------------


def all_gather(room: Room, mine: torch.Tensor, outputs: Sequence[torch.Tensor]) -> Steps:
    """Every member ends with everybody's tensor; ``outputs`` by group rank, and sizes may differ."""
    group = room.group
    if outputs[group.me] is not mine:
        outputs[group.me].copy_(mine)
    longest = max(output.numel() for output in outputs)
    for a, b in pieces(0, longest, mine.element_size(), sizes.SHARED_PIECE_BYTES):
        part = mine[a:b]
        room.own.input(room.step, part, part.numel()).copy_(part)
        yield from room.meet()
        for member in group.others:
            part = outputs[member][a:b]
            part.copy_(room.windows[member].input(room.step, part, part.numel()))
        room.advance()


def broadcast(room: Room, flat: torch.Tensor, root: int) -> Steps:
    """Everybody ends with the root's tensor; in place."""
    others, turn = room.group.others, sizes.SHARED_PIECE_BYTES
    cuts = list(pieces(0, flat.numel(), flat.element_size(), turn))
    done: list[list[Transfer]] = []
    for k, (a, b) in enumerate(cuts):
        place = room.windows[root].input(room.step + k % 2, flat, b - a)
        if room.group.me == root:
            if k >= 2:
                yield done[k - 2]
            place.copy_(flat[a:b])
            room.tell(others)
            done.append(room.hear(others))
        else:
            yield room.hear([root])
            flat[a:b].copy_(place)
            room.tell([root])
    yield [transfer for transfers in done[-2:] for transfer in transfers]
