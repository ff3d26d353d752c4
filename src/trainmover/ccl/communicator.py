"""The communicator: where a rank's calls go, whatever its situation.

Every process group of a rank hands its calls to the one communicator of the process.  A call is
*live* (a walk over links), *played* from a recording (sandbox), or *swallowed*: when the epoch is
broken, or between a broken vote and the boundary, a call completes at once without a peer, so
that DDP, FSDP and user code never see an error they cannot survive; the step is void anyway.

A process outside a job has nobody who votes on its steps: there calls *raise* instead.

The communicator also knows the process's groups, for the links they need.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch.futures import Future

from trainmover.ccl import algorithms
from trainmover.ccl.engine import Begins, Engine, Steps, Walk
from trainmover.ccl.table import Plan
from trainmover.ccl.tags import MESSAGE, tag_of
from trainmover.ccl.view import Group
from trainmover.errors import LinkError
from trainmover.topology.links import (
    BOUNDARY,
    COLLECTIVE,
    WORLD,
    Link,
    link,
    links_in,
    pair_link,
    placed_links,
)
from trainmover.topology.members import Listed, Row, boundary_partners, members_of

log = logging.getLogger(__name__)


LOOK_SECONDS = 0.05
"""How often a rank that waits for a new group's links looks whether the epoch has broken."""


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
        return tag_of(self.name, zlib.crc32(self.detail.encode()))

    def swallow(self) -> None:
        """Complete without peers: own values stay, pure outputs become zeros."""
        if not self.in_place:
            for tensor in self.outputs:
                tensor.detach().zero_()


class Tap(Protocol):
    """Whoever watches results go by (the recorder)."""

    def saw(self, group: str, call: Call) -> None:
        """A live call completed; called before its owner knows."""


class Player(Protocol):
    """Whoever answers calls in the sandbox."""

    def play(self, group: str, call: Call) -> None:
        """Fill the call's outputs from the recording."""


@dataclass
class GroupInfo:
    """A process group: its global ranks by group rank.

    ``limit`` is its calls' own, instead of the communicator's.  ``sends_to`` has the group ranks that this
    rank has reached over links made on demand.
    """

    name: str
    ranks: tuple[int, ...]
    limit: float | None = None
    swallowed: int = 0
    calls: int = 0
    sends_to: set[int] = field(default_factory=set)
    members: Row | Listed = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.members = members_of(self.ranks)


class Communicator:
    """The calls of one rank process.

    Args:
        engine: moves the bytes.
        rank: own global rank; changes once, when a standby is promoted.
        world_size: number of ranks, fixed for the life of the job.
        ranks_per_machine: K.
        limit: seconds that one call may take before it breaks the epoch.
        positions: machine position by global rank, where machines have different numbers of ranks;
            None when position p holds the ranks ``p*K`` to ``p*K + K - 1``.
        on_broken: what becomes of a call that a broken epoch ends: ``swallow`` it (in a job, whose
            vote voids the step), or ``raise`` the reason from its wait.
    """

    def __init__(
        self,
        engine: Engine,
        rank: int,
        world_size: int,
        ranks_per_machine: int,
        limit: float,
        positions: Mapping[int, int] | None = None,
        on_broken: Literal["swallow", "raise"] = "swallow",
    ) -> None:
        self.engine = engine
        self.rank = rank
        self.world_size = world_size
        self.ranks_per_machine = ranks_per_machine
        self.limit = limit
        self.positions = positions
        self.on_broken = on_broken
        self.groups: dict[str, GroupInfo] = {}
        self._views: dict[tuple[str, str], tuple[tuple[int, int, tuple[int, ...]], Group]] = {}
        self.player: Player | None = None
        self.tap: Tap | None = None
        self.plan: Plan | None = None
        self._open = True

    # -- the gate ------------------------------------------------------------------------------

    def close_gate(self) -> None:
        """From now on calls are swallowed: the step is void and its epoch is over."""
        self._open = False

    def open_gate(self) -> None:
        """Calls go to the peers again."""
        self._open = True

    @property
    def swallowing(self) -> bool:
        """True when calls complete without their peers."""
        return not self._open or self.engine.broken

    # -- groups --------------------------------------------------------------------------------

    def add_group(self, name: str, ranks: tuple[int, ...], limit: float | None = None) -> GroupInfo:
        """Make a process group: its links too, when this rank is live in an epoch.

        ``limit`` is what its calls may take, where it is not the communicator's limit.

        In a broken epoch there is nobody to connect to; the next epoch makes the links.

        Raises:
            LinkError: its links could not be made within 60 s.
        """
        if name in self.groups:
            raise LinkError(f"a process group named {name!r} exists already")
        info = self.groups[name] = GroupInfo(name, ranks, limit)
        links = self._links_of(info)
        if self.plan is not None and self.player is None and links:
            try:
                self._connect(self.plan, info, links)
            except LinkError:
                self.remove_group(name)
                raise
        return info

    def remove_group(self, name: str) -> None:
        """Forget a process group and close its links."""
        info = self.groups.pop(name, None)
        self._views.pop((name, COLLECTIVE), None)
        if info is not None and self.plan is not None:
            self.engine.call(lambda: self.engine.table.drop_group(name))

    def links(self) -> frozenset[Link]:
        """Every lasting link of this rank: the boundary's and its groups'."""
        others = boundary_partners(self.rank, self.world_size, self.ranks_per_machine)
        found = {link(WORLD, BOUNDARY, self.rank, other) for other in others}
        for info in list(self.groups.values()):
            found |= self._links_of(info)
        return frozenset(found)

    def still_wanted(self, plan: Plan) -> Plan:
        """A coming epoch's plan without the links of groups that were destroyed since it was made."""
        links = frozenset(item for item in plan.links if item.group == WORLD or item.group in self.groups)
        return replace(plan, links=links)

    def as_of_now(self, plan: Plan) -> Plan:
        """A coming epoch's plan with the groups that there are at the boundary, where it is entered.

        A group that was made while the epoch was prepared keeps its links to the processes that stay.
        It has none to a newcomer, whose own plan does not know it either.
        """
        wanted = self.still_wanted(plan)
        if self.plan is None:
            return wanted
        new = {item for item in self.links() - plan.links if not item.on_demand}
        kept = {item for item in new if plan.life_of(item) == self.plan.life_of(item)}
        for item in sorted(new - kept):
            log.warning(
                "rank %d: link %s has no connection: its group was made while rank %d was being replaced",
                self.rank,
                item,
                item.other(self.rank),
            )
        return replace(wanted, links=wanted.links | kept)

    def _links_of(self, info: GroupInfo) -> frozenset[Link]:
        """A group's links at this rank; not kept, because a promotion changes the rank."""
        if self.rank not in info.members:
            return frozenset()
        if self.positions is None:
            lasting = links_in(info.name, COLLECTIVE, info.members, self.rank, self.ranks_per_machine)
        else:
            lasting = self._mine(placed_links(info.name, COLLECTIVE, info.ranks, self._places(info.ranks)))
        return lasting | {
            pair_link(info.name, self.rank, info.ranks[member])
            for member in tuple(info.sends_to)
            if info.ranks[member] != self.rank
        }

    def _places(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Machine positions of some ranks."""
        if self.positions is not None:
            return tuple(self.positions[rank] for rank in ranks)
        return tuple(rank // self.ranks_per_machine for rank in ranks)

    def _mine(self, links: frozenset[Link]) -> frozenset[Link]:
        return frozenset(item for item in links if self.rank in (item.low, item.high))

    def _connect(self, current: Plan, info: GroupInfo, links: frozenset[Link]) -> None:
        plan = Plan(current.epoch, self.rank, current.peers, links, current.limit)
        ready, errors = threading.Event(), list[LinkError]()
        table = self.engine.table

        def made(*_: object) -> None:
            # In the same moment: a faster peer may have used the group and left it before this rank wakes.
            try:
                table.install(plan)
            except LinkError as error:
                errors.append(error)
            ready.set()

        self.engine.call(lambda: table.extend(plan, made))
        until = time.monotonic() + plan.limit
        while not ready.wait(LOOK_SECONDS):
            late = time.monotonic() > until
            if not late and not self.engine.broken:
                continue
            self.engine.call(lambda: table.abandon(plan.epoch))
            if not late:
                return
            raise LinkError(
                f"rank {self.rank}: the links of process group {info.name!r} (ranks {info.ranks}) were not "
                f"made within {plan.limit:g} s; every rank must create the same groups in the same order"
            )
        if errors:
            raise errors[0]

    def view(self, name: str, ranks: tuple[int, ...], channel: str = COLLECTIVE) -> Group:
        """A group as walks see it from this rank in the current epoch."""
        now = (self.rank, self.engine.epoch, ranks)
        seen = self._views.get((name, channel))
        if seen is None or seen[0] != now:
            group = Group(self.engine, name, channel, ranks, self._places(ranks), ranks.index(self.rank))
            seen = self._views[name, channel] = (now, group)
        return seen[1]

    # -- calls ---------------------------------------------------------------------------------

    def run(self, name: str, call: Call, key: str | None = None) -> Future[Any]:
        """Carry a call out; the future's value is the list of output tensors, or ``call.value``."""
        info = self.groups[name]
        info.calls += 1
        call.number = info.calls
        info.sends_to.update(algorithms.on_demand(call.name, len(info.ranks), call.peer))
        # The future of a call on an accelerator notes where its streams are when it is completed.
        future: Future[Any] = Future() if call.device is None else Future(devices=[call.device])
        if self.player is not None:
            self.player.play(name, call)
            self._deliver(call, future)
        elif self.swallowing:
            self._unanswered(info, call, future, self.engine.reason)
        elif len(info.ranks) == 1:
            self._alone(info, call)
            self._finish(name, call, future)
        else:
            group = self.view(name, info.ranks)
            walk = Walk(
                lambda: f"{call.name} ({call.detail}) of group {name!r}",
                lambda: call.walk(group, call.tag),
                lambda result: self._finish(name, call, future, result),
                lambda reason: self._unanswered(info, call, future, reason),
                call.limit or info.limit or self.limit,
                0 if key or call.name == MESSAGE else call.tag,
            )
            call.drive = self.engine.drive
            self.engine.submit(key or name, walk, call.begins)
        return future

    def _alone(self, info: GroupInfo, call: Call) -> None:
        for _ in call.walk(self.view(info.name, info.ranks), call.tag):
            pass

    def _finish(self, name: str, call: Call, future: Future[Any], result: Any = None) -> None:
        call.result = result
        with call.stream():
            if call.after is not None:
                call.after()
            if self.tap is not None:
                self.tap.saw(name, call)
            self._deliver(call, future)

    @staticmethod
    def _deliver(call: Call, future: Future[Any]) -> None:
        future.set_result(call.outputs if call.value is None else call.value)

    def _unanswered(self, info: GroupInfo, call: Call, future: Future[Any], reason: str) -> None:
        info.swallowed += 1
        if self.on_broken == "raise":
            what = f"{call.name} ({call.detail}) of {info.name!r}"
            error = LinkError(f"rank {self.rank}: {what} failed: {reason}")
            error.__cause__ = self.engine.fatal
            future.set_exception(error)
            return
        with call.stream():
            call.swallow()
            self._deliver(call, future)
