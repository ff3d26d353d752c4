"""The communicator: where a rank's calls go, whatever its situation.

Every process group of a rank hands its calls to the one communicator of the process.  A call is
*live* (a walk over links), *played* from a recording (sandbox), or *swallowed*: when the epoch is
broken, or between a broken vote and the boundary, a call completes at once without a peer, so
that DDP, FSDP and user code never see an error they cannot survive; the step is void anyway.

A process outside a job has nobody who votes on its steps: there calls *raise* instead.

The communicator also knows the process's groups, for the links they need, and its place among the ranks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch.futures import Future

from trainmover.ccl import algorithms
from trainmover.ccl.calls import Call, GroupInfo, Place, Player, Tap
from trainmover.ccl.engine import Engine, Walk
from trainmover.ccl.table import Plan
from trainmover.ccl.tags import MESSAGE
from trainmover.ccl.view import Group
from trainmover.errors import LinkError
from trainmover.topology.links import (
    COLLECTIVE,
    WORLD,
    Link,
    links_at_boundary,
    links_in,
    pair_link,
    placed_links,
)
from trainmover.topology.members import Listed, Row, members_of

__all__ = ["Call", "Communicator", "GroupInfo", "Place", "Player", "Tap"]

log = logging.getLogger(__name__)


LOOK_SECONDS = 0.05
"""How often a rank that waits for a new group's links looks whether the epoch has broken."""


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
        self.vacant: frozenset[int] = frozenset()
        """Seats that nobody has in the current epoch; what their ranks would do is left out."""
        self.on_broken = on_broken
        self.groups: dict[str, GroupInfo] = {}
        self._views: dict[tuple[str, str], tuple[tuple[int, int, tuple[int, ...]], Group]] = {}
        self._made = 0
        self.player: Player | None = None
        self.meet: Callable[[], None] = lambda: None
        """Makes the sandbox's neighbours known; called before the first call among them."""
        self.tap: Tap | None = None
        self.plan: Plan | None = None
        self.short_ways = True
        """False: every call goes through :meth:`run`, where somebody watches."""
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

    @property
    def takes_short_ways(self) -> bool:
        """True while calls go to all the peers there are, and nobody watches them go by."""
        watched = self.player is not None or self.tap is not None or not self.short_ways
        return self._open and not (watched or self.vacant)

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
        info = self.groups[name] = GroupInfo(name, ranks, limit, ordinal=self._made)
        self._made += 1
        links = self._links_of(info)
        if self.player is not None:
            links = links if self._is_inside(info) else frozenset()
            if links:
                self.meet()
        if self.plan is not None and links:
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
            self.engine.call(lambda: self.engine.table.drop_group(info.wire))

    def links(self) -> frozenset[Link]:
        """Every lasting link of this rank: the boundary's and its groups'."""
        return self.links_at(self.place())

    def links_at(self, place: Place, vacant: Collection[int] | None = None) -> frozenset[Link]:
        """Every lasting link that this process has or would have in a place, with some seats vacant."""
        rank, vacant = place.rank, self.vacant if vacant is None else vacant
        found = set(links_at_boundary(rank, self.world_size, self.ranks_per_machine, vacant))
        for info, (wire, ranks) in zip(list(self.groups.values()), place.groups, strict=True):
            members = info.members if ranks == info.ranks else members_of(ranks)
            found |= self._links_in(wire, members, info.sends_to, rank, vacant)
        return frozenset(found)

    # -- places --------------------------------------------------------------------------------

    def place(self) -> Place:
        """Where this process sits now."""
        infos = list(self.groups.values())
        return Place(self.rank, tuple((info.wire, info.ranks) for info in infos))

    def place_with(self, rank: int, groups: Sequence[tuple[str, tuple[int, ...]]]) -> Place:
        """A rank's place with these groups, in creation order, for the groups of this process.

        Raises:
            LinkError: they are not groups of the same sizes in the same order, all with the rank in them.
        """
        infos = list(self.groups.values())
        mine, theirs = [len(info.ranks) for info in infos], [len(ranks) for _, ranks in groups]
        if mine != theirs:
            raise LinkError(
                f"rank {rank} is in groups of {theirs} members (in creation order), this process made groups "
                f"of {mine}; it was warmed for another role, or makes its groups later"
            )
        for wire, ranks in groups:
            if rank not in ranks:
                raise LinkError(f"rank {rank} is not in group {wire!r}, whose ranks are {ranks}")
        return Place(rank, tuple(groups))

    def take(self, place: Place) -> dict[str, tuple[int, ...]]:
        """Sit down in a place; returns the ranks that each group had before, by local name."""
        before = {info.name: info.ranks for info in self.groups.values()}
        for gone in {info.wire for info in self.groups.values()} - {wire for wire, _ in place.groups}:
            self.engine.call(lambda gone=gone: self.engine.table.drop_group(gone))  # type: ignore[misc]
        self.rank = place.rank
        self._views.clear()
        for info, (wire, ranks) in zip(list(self.groups.values()), place.groups, strict=True):
            info.seat(wire, ranks)
            for follower in list(info.followers):
                follower._renumber(ranks)
        return before

    def still_wanted(self, plan: Plan, place: Place | None = None) -> Plan:
        """A coming epoch's plan without the links of groups that were destroyed since it was made.

        ``place`` is where this process will sit then, if it is not where it sits now.
        """
        place = self.place() if place is None or place.rank == self.rank else place
        wires = {wire for wire, _ in place.groups}
        links = frozenset(item for item in plan.links if item.group == WORLD or item.group in wires)
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
        return self._links_in(info.wire, info.members, info.sends_to, self.rank, self.vacant)

    def _links_in(
        self, wire: str, members: Row | Listed, sends_to: set[int], rank: int, vacant: Collection[int]
    ) -> frozenset[Link]:
        if rank not in members:
            return frozenset()
        if self.positions is None:
            lasting = links_in(wire, COLLECTIVE, members, rank, self.ranks_per_machine, vacant)
        else:
            everybodys = placed_links(wire, COLLECTIVE, members.ranks, self._places(members.ranks))
            lasting = frozenset(item for item in everybodys if rank in (item.low, item.high))
        return lasting | {
            pair_link(wire, rank, members.rank(member))
            for member in tuple(sends_to)
            if members.rank(member) != rank and members.rank(member) // self.ranks_per_machine not in vacant
        }

    @property
    def absent(self) -> frozenset[int]:
        """Ranks whose seats nobody has in the current epoch."""
        slots = range(self.ranks_per_machine)
        return frozenset(seat * self.ranks_per_machine + slot for seat in self.vacant for slot in slots)

    def check_there(self, rank: int, what: str) -> None:
        """See that a rank is there whose part nobody else can play.

        Raises:
            LinkError: its seat is vacant.
        """
        if self.vacant and rank // self.ranks_per_machine in self.vacant:
            raise LinkError(
                f"rank {self.rank}: {what} needs rank {rank}, whose machine was lost and not replaced; only "
                "ranks of one data-parallel replica may depend on each other alone while the job is shrunk"
            )

    def _places(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Machine positions of some ranks."""
        if self.positions is not None:
            return tuple(self.positions[rank] for rank in ranks)
        return tuple(rank // self.ranks_per_machine for rank in ranks)

    def _is_inside(self, info: GroupInfo) -> bool:
        """Whether all members of a group are on this machine."""
        if info._inside is None or info._inside[0] != self.rank:
            few = len(info.ranks) <= self.ranks_per_machine or self.positions is not None
            inside = few and len(set(self._places((self.rank, *info.ranks)))) == 1
            info._inside = (self.rank, inside)
        return info._inside[1]

    def _stays_inside(self, info: GroupInfo, call: Call) -> bool:
        """Whether a call crosses the machine's border, by its members or by its message's two ends."""
        other = call.source if call.peer is None else call.peer
        if call.name != MESSAGE or other is None or self._is_inside(info):
            return self._is_inside(info)
        mine, theirs = self._places((self.rank, info.ranks[other]))
        return mine == theirs

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
            wire = self.groups[name].wire if channel == COLLECTIVE and name in self.groups else name
            places = self._places(ranks)
            gone = (member for member, place in enumerate(places) if place in self.vacant)
            absent = frozenset(gone) if self.vacant else frozenset()
            group = Group(self.engine, wire, channel, ranks, places, ranks.index(self.rank), absent)
            seen = self._views[name, channel] = (now, group)
        return seen[1]

    # -- calls ---------------------------------------------------------------------------------

    def run(self, name: str, call: Call, key: str | None = None) -> Future[Any]:
        """Carry a call out; the future's value is the list of output tensors, or ``call.value``."""
        info = self.groups[name]
        other = call.source if call.peer is None else call.peer
        if self.vacant and call.name == MESSAGE and other is not None:
            self.check_there(info.ranks[other], f"a message of group {name!r}")
        self.begin(info, call)
        # The future of a call on an accelerator notes where its streams are when it is completed.
        future: Future[Any] = Future() if call.device is None else Future(devices=[call.device])
        if self.player is not None or self.tap is not None:
            call.inside = self._stays_inside(info, call)
        if self.player is not None and call.inside and len(info.ranks) > 1:
            self.meet()
        if self.player is not None and not call.inside:
            self.player.play(info, call)
            self._deliver(call, future)
        elif self.swallowing:
            self._unanswered(info, call, future, self.engine.reason)
        elif len(info.ranks) == 1:
            self._alone(info, call)
            self._finish(info, call, future)
        else:
            walk = self.walk_of(
                info,
                call,
                lambda result: self._finish(info, call, future, result),
                lambda reason: self._unanswered(info, call, future, reason),
                0 if key or call.name == MESSAGE else call.tag,
            )
            self.engine.submit(key or info.wire, walk, call.begins)
        return future

    def begin(self, info: GroupInfo, call: Call) -> None:
        """A call gets its number, and what it sends to counts as wanted from now on."""
        info.calls += 1
        call.number = info.calls
        info.sends_to.update(algorithms.on_demand(call.name, len(info.ranks), call.peer))

    def walk_of(
        self,
        info: GroupInfo,
        call: Call,
        done: Callable[[Any], None],
        abort: Callable[[str], None],
        tag: int,
    ) -> Walk:
        """The walk of a call that has begun, in the group as it is now; see :class:`Walk`."""
        group = self.view(info.name, info.ranks)
        call.drive = self.engine.drive
        return Walk(
            lambda: f"{call.name} ({call.detail}) of group {info.name!r}",
            lambda: call.walk(group, call.tag),
            done,
            abort,
            call.limit or info.limit or self.limit,
            tag,
        )

    def _alone(self, info: GroupInfo, call: Call) -> None:
        for _ in call.walk(self.view(info.name, info.ranks), call.tag):
            pass

    def _finish(self, info: GroupInfo, call: Call, future: Future[Any], result: Any = None) -> None:
        call.result = result
        with call.stream():
            if call.after is not None:
                call.after()
            if self.tap is not None:
                self.tap.saw(info, call)
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
