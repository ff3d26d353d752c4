"""The vote's reduction: everybody's ballot to one member, and the tally back to all.

A few numbers decide every step, so what counts is how many messages they take and how much Python each of
them costs.  In a full mesh all ballots go to one member, the *teller*, who combines them in the canonical
bracketing and tells the others: two messages for each of them, where doubling takes ``2 log2(size)``, and
every rank but the teller waits once.  In larger groups ballots climb the canonical tree and the tally comes
down again.  Ballots are lists of floats, not tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache

from trainmover.ccl.view import Group
from trainmover.ccl.walk import Steps
from trainmover.topology.bracket import leader, reduce_along
from trainmover.topology.links import MESH_LIMIT

Ballot = Sequence[float]

Combine = Callable[[Ballot, Ballot], Ballot]
"""Makes one ballot of two, left operand first."""


class Poll:
    """One vote at one member.

    Ballots that a member takes are awaited from its making on, as they may come before it is ready to vote.

    Args:
        group: the members; those that are absent are left out.
        size: how many numbers a ballot has.
        tag: the call's.
    """

    def __init__(self, group: Group, size: int, tag: int) -> None:
        group = group.present
        self._group, self._tag, self._form = group, tag, _form(size)
        self._mesh = group.size <= MESH_LIMIT
        self._children, self._parent = _under_teller(group) if self._mesh else group.family
        self._papers = [bytearray(self._form.size) for _ in self._children]
        self._awaited = [
            group.receive_bytes(child, memoryview(paper), tag, None)
            for child, paper in zip(self._children, self._papers, strict=True)
        ]

    def vote(self, mine: Ballot, combine: Combine) -> Steps:
        """Every member ends with the canonical combination of all ballots, which is the walk's result."""
        group, form, tag = self._group, self._form, self._tag
        if self._awaited:
            yield self._awaited
        total = self._counted(mine, combine)
        tally = form.pack(*total)
        sends = []
        if self._parent is not None:
            answer = bytearray(form.size)
            answered = group.receive_bytes(self._parent, memoryview(answer), tag, None)
            yield [group.send_bytes(self._parent, memoryview(tally), tag, tally), answered]
            tally = bytes(answer)
        sends += [group.send_bytes(child, memoryview(tally), tag, tally) for child in self._children]
        yield sends
        return form.unpack(tally)

    def _counted(self, mine: Ballot, combine: Combine) -> Ballot:
        ballots = [self._form.unpack(paper) for paper in self._papers]
        if self._mesh and ballots:
            everybodys = dict(zip(self._children, ballots, strict=True)) | {self._group.me: mine}
            in_order = [everybodys[member] for member in range(self._group.size)]
            return reduce_along(self._group.tree, in_order, combine)
        for ballot in ballots:
            mine = combine(mine, ballot)
        return mine


@cache
def _form(size: int) -> struct.Struct:
    return struct.Struct(f"<{size}d")


def _under_teller(group: Group) -> tuple[list[int], int | None]:
    """In a full mesh: whose ballots I take, and to whom I give mine (None: I am the teller)."""
    teller = leader(group.tree)
    return (group.others, None) if group.me == teller else ([], teller)
