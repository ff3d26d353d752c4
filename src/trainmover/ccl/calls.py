"""What the communicator and those around it talk about: calls, groups, places.

A :class:`Call` is one call of a process group, whoever answers it.  A :class:`GroupInfo` is a process
group as the communicator knows it; a :class:`Place` is where a process sits: a rank, and the groups that
this rank is in.  A :class:`Tap` watches results go by, a :class:`Player` answers calls in the sandbox.

A group has two names: its *local* name, which torch has given it in this process and compiled code holds
on to, and its name on the *wire*, in links.  They differ after a standby has taken the place of a rank in
other groups than those that it was warmed in.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from weakref import WeakSet

import torch

from trainmover.ccl.engine import Begins, Steps
from trainmover.ccl.tags import tag_of
from trainmover.ccl.view import Group
from trainmover.topology.members import Listed, Row, members_of


@dataclass
class Call:
    """One call of a process group.

    Attributes:
        name: collective's name, one of ``tags.CALLS``.
        detail: what must be the same on all ranks (operation, dtype, size): part of the frame tag.
        outputs: the caller's tensors that hold the result.
        in_place: the outputs also hold the input, so swallowing leaves them as they are.
        walk: makes the walk, given the group; works on flat contiguous memory.
        after: copies the result from flat memory to the outputs where these differ.
        peer: group rank of the member that this rank sends to, where it is one.
        source: group rank of the member whose message this call receives; None where it may be anybody's.
        inside: all whom it concerns are on this rank's machine; set when it is carried out.
        number: the how-many-th call of its group this is; set when it is carried out.
        result: what the walk returned.
        value: what the future gives, where it is not the outputs.
        device: the accelerator that the outputs are on; None for the CPU's memory.
        stream: makes the accelerator's stream on which results are delivered the current one.
        limit: seconds that it may take, instead of its group's.
        begins: on which thread it begins: the engine's; ``here``, because that is short; or here because
            the caller ``waits`` for its end at once.
        drive: moves it on while somebody waits; see :meth:`Engine.drive`.
    """

    name: str
    detail: str
    outputs: list[torch.Tensor]
    in_place: bool
    walk: Callable[[Group, int], Steps]
    after: Callable[[], None] | None = None
    peer: int | None = None
    source: int | None = None
    inside: bool = False
    number: int = 0
    result: Any = None
    value: Any = None
    device: torch.device | None = None
    stream: Callable[[], AbstractContextManager[Any]] = nullcontext
    limit: float | None = None
    begins: Begins = "engine"
    drive: Callable[[Callable[[], bool]], None] | None = None

    @property
    def tag(self) -> int:
        """Tag of this call's frames."""
        return _tag(self.name, self.detail)

    def swallow(self) -> None:
        """Complete without peers: own values stay, pure outputs become zeros."""
        if not self.in_place:
            for tensor in self.outputs:
                tensor.detach().zero_()


@lru_cache(4096)
def _tag(name: str, detail: str) -> int:
    return tag_of(name, zlib.crc32(detail.encode()))


class Tap(Protocol):
    """Whoever watches results go by (the recorder)."""

    def saw(self, group: GroupInfo, call: Call) -> None:
        """A live call completed; called before its owner knows."""


class Player(Protocol):
    """Whoever answers calls in the sandbox."""

    def play(self, group: GroupInfo, call: Call) -> None:
        """Fill the call's outputs from the recording."""


class Member(Protocol):
    """A process group object, which keeps its ranks to itself."""

    def _renumber(self, ranks: tuple[int, ...]) -> None:
        """The group has these ranks now."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process sits: its rank, and for each of its groups, in creation order, wire name and ranks."""

    rank: int
    groups: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass
class GroupInfo:
    """A process group: its global ranks by group rank.

    ``limit`` is its calls' own, instead of the communicator's.  ``sends_to`` has the group ranks that this
    rank has reached over links made on demand.  ``ordinal`` counts the process's groups in creation order.
    """

    name: str
    ranks: tuple[int, ...]
    limit: float | None = None
    swallowed: int = 0
    calls: int = 0
    sends_to: set[int] = field(default_factory=set)
    ordinal: int = 0
    wire: str = field(init=False)
    members: Row | Listed = field(init=False, repr=False)
    _inside: tuple[int, bool] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        self.members = members_of(self.ranks)
        self.wire = wire_name(self.name)
        self.followers: WeakSet[Any] = WeakSet()

    def seat(self, wire: str, ranks: tuple[int, ...]) -> None:
        """From now on the group has this name on the wire and these ranks."""
        self.wire, self.ranks, self.members = wire, ranks, members_of(ranks)
        self._inside = None


_WIRE = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")


def wire_name(name: str) -> str:
    """A group's first name on the wire: its local one where events can carry that."""
    return name if _WIRE.fullmatch(name) else "h:" + hashlib.sha256(name.encode()).hexdigest()
