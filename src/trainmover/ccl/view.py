"""A group as its walks see it: its members, the links to them, and staging memory for what they send.

A group may have *absent* members, whose seats nobody has.  Walks run over :attr:`Group.present`, the group of
the others alone; who calls a walk translates (:mod:`trainmover.ccl.algorithms`).

Two kinds: a :class:`Group` uses the links of its channel, which its topology names and a plan
prepares; a :class:`PairGroup` reaches any member over a link that is made on demand.  Walks are written
against the first and run over either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from trainmover.ccl import sizes
from trainmover.ccl.engine import Engine
from trainmover.ccl.table import Slot
from trainmover.ccl.transfer import Transfer
from trainmover.errors import LinkError
from trainmover.topology.bracket import Bracket, bracket, cells, merges_of, restricted
from trainmover.topology.links import Link, link, pair_link
from trainmover.topology.members import is_layered


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a flat contiguous CPU tensor as writable bytes (no copy)."""
    return memoryview(tensor.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy stubs


@dataclass(frozen=True)
class Group:
    """A group as its walks see it, in one epoch.

    Attributes:
        engine: who moves the bytes.
        group, channel: name the links.
        ranks: global ranks by group rank.
        positions: machine position of each member, for the canonical bracketing.
        me: own group rank.
        absent: members that are not there, by group rank.
        shape: the canonical bracketing, where it is not that of the positions: in a part of another group.
    """

    engine: Engine
    group: str
    channel: str
    ranks: tuple[int, ...]
    positions: tuple[int, ...]
    me: int
    absent: frozenset[int] = frozenset()
    shape: Bracket | None = None
    _slots: dict[int, Slot] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @cached_property
    def tree(self) -> Bracket:
        """The canonical bracketing of the members, absent ones among them."""
        return bracket(self.positions) if self.shape is None else self.shape

    @cached_property
    def present(self) -> Group:
        """The group of the members that are there, in their order: itself where all are."""
        return self.part(self.there) if self.absent else self

    @cached_property
    def there(self) -> tuple[int, ...]:
        """The members that are there, by group rank."""
        return tuple(member for member in range(self.size) if member not in self.absent)

    def part(self, members: tuple[int, ...]) -> Group:
        """The group of some members, this rank among them, with what is left of the bracketing."""
        return Group(
            self.engine,
            self.group,
            self.channel,
            tuple(self.ranks[member] for member in members),
            tuple(self.positions[member] for member in members),
            members.index(self.me),
            shape=restricted(self.tree, members),
        )

    @cached_property
    def family(self) -> tuple[list[int], int | None]:
        """My children in the canonical tree, in the order in which they are combined, and my parent.

        The root has None for a parent.
        """
        steps = merges_of(self.tree)
        children = [source for into, source in steps if into == self.me]
        parents = [into for into, source in steps if source == self.me]
        return children, parents[0] if parents else None

    @cached_property
    def is_together(self) -> bool:
        """True when all members are on one machine."""
        return len(set(self.positions)) == 1

    @cached_property
    def is_layered(self) -> bool:
        """True when the group has equally many members on each of several machines."""
        return is_layered([len(cell) for cell in cells(self.positions)])

    @cached_property
    def others(self) -> list[int]:
        """The other members, starting after me so that not everybody starts with the same one."""
        return [(self.me + i) % self.size for i in range(1, self.size)]

    @cached_property
    def pairs(self) -> PairGroup:
        """The same members, joined by links that are made on demand."""
        return PairGroup(
            self.engine,
            self.group,
            self.channel,
            self.ranks,
            self.positions,
            self.me,
            self.absent,
            self.shape,
        )

    def slot(self, member: int) -> Slot:
        """The link to a member."""
        slot = self._slots.get(member)
        if slot is None:
            ours, theirs = self.ranks[self.me], self.ranks[member]
            slot = self._slots[member] = self.engine.table.slot(link(self.group, self.channel, ours, theirs))
        return slot

    def send(self, member: int, tensor: torch.Tensor, tag: int) -> Transfer:
        """Start sending a tensor's bytes; the tensor must keep its content until it is done."""
        return self.send_bytes(member, as_bytes(tensor), tag, tensor)

    def send_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        """Start sending memory that ``keep`` owns."""
        transfer = Transfer(view, tag, keep)
        self.slot(member).connected.send(transfer)
        if self.engine.broken:
            self._give_up()
        return transfer

    def receive(self, member: int, tensor: torch.Tensor, tag: int) -> Transfer:
        """Post a tensor's memory for the next bytes from a member."""
        return self.receive_bytes(member, as_bytes(tensor), tag, tensor)

    def receive_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        """Post memory that ``keep`` owns for the next bytes from a member."""
        transfer = Transfer(view, tag, keep)
        self.slot(member).connected.receive(transfer)
        if self.engine.broken:
            self._give_up()
        return transfer

    def receive_up_to(self, member: int, most: int, tag: int) -> Transfer:
        """Receive bytes whose number only the sender knows; they are in the transfer's ``view``."""
        transfer = Transfer(memoryview(b""), tag, most=most)
        self.slot(member).connected.receive(transfer)
        if self.engine.broken:
            self._give_up()
        return transfer

    @staticmethod
    def _give_up() -> None:
        """End the walk, because its own transfer has broken the epoch: its memory is the caller's again."""
        raise LinkError("the epoch has broken")

    @property
    def piece_bytes(self) -> int:
        """Reductions move in pieces of this size; from each member two of them are staged."""
        room = sizes.STAGING_BYTES // (2 * max(1, self.size - 1))
        return max(sizes.LEAST_MESH_PIECE_BYTES, min(sizes.MESH_PIECE_BYTES, room // 4096 * 4096))

    def stage(
        self,
        member: int,
        like: torch.Tensor,
        count: int,
        tag: int,
        place: int = 0,
        whole: int = 0,
        places: int = 2,
    ) -> tuple[torch.Tensor, Transfer]:
        """Receive elements from a member into the staging memory for what comes from it.

        Args:
            member: group rank of the sender.
            like: has the dtype.
            count: number of elements.
            tag: the call's.
            place: which of several places in the memory.
            whole: number of elements that a place has room for, where there are several.
            places: how many there are then.

        Returns:
            The elements, and the transfer after which they are there.
        """
        item = like.element_size()
        size, start = count * item, place * whole * item
        view = self.staging(member, (places * whole or count) * item)[start : start + size]
        room = torch.frombuffer(view, dtype=like.dtype, count=count) if count else like.new_empty(0)
        return room, self.receive_bytes(member, view, tag, None)

    def staging(self, member: int, size: int) -> memoryview:
        """Staging memory for what comes from a member; it outlives every connection."""
        return self.slot(member).scratch(size)


@dataclass(frozen=True)
class PairGroup(Group):
    """A group whose members reach each other over directed links, made when first needed.

    Receives are matched by sender and tag, not by the order of the frames.
    """

    _links: dict[tuple[int, int], Link] = field(default_factory=dict, init=False, repr=False, compare=False)

    def send_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        transfer = Transfer(view, tag, keep)
        self.engine.table.pairs.send(self._link(self.me, member), transfer)
        if self.engine.broken:
            self._give_up()
        return transfer

    def receive_bytes(self, member: int, view: memoryview, tag: int, keep: object) -> Transfer:
        transfer = Transfer(view, tag, keep)
        self.engine.table.pairs.receive(self._link(member, self.me), transfer)
        if self.engine.broken:
            self._give_up()
        return transfer

    def receive_any(self, tensor: torch.Tensor, tag: int) -> Transfer:
        """Post a tensor's memory for the next message of this tag, whoever sends it."""
        transfer = Transfer(as_bytes(tensor), tag, tensor)
        self.engine.table.pairs.receive_any([self._link(member, self.me) for member in self.others], transfer)
        if self.engine.broken:
            self._give_up()
        return transfer

    def staging(self, member: int, size: int) -> memoryview:
        return self.engine.table.pairs.room(self.group, self.ranks[member], size)

    def link_to(self, member: int) -> Link:
        """The link for messages to a member."""
        return self._link(self.me, member)

    def link_from(self, member: int) -> Link:
        """The link for a member's messages to me."""
        return self._link(member, self.me)

    def _link(self, sender: int, receiver: int) -> Link:
        found = self._links.get((sender, receiver))
        if found is None:
            found = pair_link(self.group, self.ranks[sender], self.ranks[receiver])
            self._links[sender, receiver] = found
        return found
