"""Membership as torch's own experimental calls change it: ``get_reconfigure_handle`` and ``reconfigure``.

Torch (2.14 and newer) leaves it to the user to hand the members' handles round; each member then calls
``reconfigure`` with the same list and takes its place in it as its rank.  Here that is a switch of the
link table like any other: the next epoch is one more than the latest of the handles, links to processes
that stay on their ranks are kept, only the others are made, and the old epoch's calls end.

A handle says where a process listens and how to be let in, so it is as secret as the group is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.futures import Future

from trainmover.ccl.engine import CallsOpen
from trainmover.ccl.plan import Peer, Plan
from trainmover.ccl.work import work_of
from trainmover.errors import LinkError
from trainmover.topology.links import COLLECTIVE, placed_links

if TYPE_CHECKING:
    from trainmover.ccl.reconfigurable import Reconfigurable
    from trainmover.ccl.standalone import Standalone


@dataclass(frozen=True, slots=True)
class Handle:
    """What a process tells others so that they can take it into a group."""

    peer: Peer
    machine: str
    rank: int
    epoch: int
    secret: str

    def encode(self) -> str:
        peer = self.peer
        return json.dumps([peer.host, peer.port, peer.life, self.machine, self.rank, self.epoch, self.secret])

    @classmethod
    def decode(cls, text: str) -> Handle:
        try:
            host, port, life, machine, rank, epoch, secret = json.loads(text)
            return cls(
                Peer(str(host), int(port), str(life)), str(machine), int(rank), int(epoch), str(secret)
            )
        except (ValueError, TypeError) as error:
            raise LinkError(f"not a handle of a trainmover group: {text[:60]!r}") from error


class Peers(dict[int, Peer]):
    """Peers by rank; a rank that has left is nobody."""

    def __missing__(self, rank: int) -> Peer:
        return Peer("", 0, "nobody")


class Membership:
    """Who is in a standalone process's group, and how that is changed.

    Args:
        standalone: the process's own communicator.
        group: the group; it must be the only one while it is changed.
        given: rank and size that torch was told, for a group that has no members before its first
            ``reconfigure``; None for one that began with all of them.
        fixed: rank and size, where they cannot be changed.
    """

    def __init__(
        self,
        standalone: Standalone,
        group: Reconfigurable,
        given: tuple[int, int] | None,
        fixed: tuple[int, int] | None,
    ) -> None:
        self._standalone, self._group, self._fixed = standalone, group, fixed
        self.given = given
        self._used: set[int] = set()

    def handle(self) -> str:
        """This process's handle, as of now: ask again after every change."""
        return self._standalone.handle().encode()

    def abort(self) -> None:
        """End every call with an error, here and at the peers."""
        comm = self._standalone.communicator
        comm.engine.break_epoch(comm.engine.epoch, f"rank {comm.rank} has aborted", told=False)

    def reconfigure(self, opts: Any) -> dist.Work:
        """Enter a group of exactly these members; the Work ends when all of them have.

        Args:
            opts: ``uuid`` (new for every change), ``handles`` (a list: rank by position; a set: in the
                order of the ranks that they have now), ``timeout`` (None: the group's).

        Raises:
            LinkError: the uuid was used, the handles are not those of a group with this process in it, or
                the process has other groups; what fails later is raised by the Work.
        """
        handles = ordered(opts.handles)
        if opts.uuid in self._used:
            raise LinkError(f"reconfigure: uuid {opts.uuid} was already used for this group")
        plan, positions = self._plan(handles, opts.timeout)
        self._used.add(opts.uuid)
        secret = bytes.fromhex(handles[0].secret)
        ended: Future[Any] = Future()

        def run() -> None:
            try:
                self._switch(plan, positions, secret)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                ended.set_exception(error)
            else:
                ended.set_result([])

        threading.Thread(target=run, name="trainmover-reconfigure", daemon=True).start()
        return work_of(ended)

    def _plan(self, handles: Sequence[Handle], timeout: timedelta | None) -> tuple[Plan, dict[int, int]]:
        own = self._standalone.handle()
        lives = [handle.peer.life for handle in handles]
        if own.peer.life not in lives:
            raise LinkError(f"reconfigure: this process ({own.peer.life}) is not among the handles")
        if len(set(lives)) != len(lives):
            raise LinkError("reconfigure: a process is there twice among the handles")
        key = self._group._key
        if others := sorted(set(self._standalone.communicator.groups) - {key}):
            raise LinkError(f"reconfigure: destroy the process's other groups first: {', '.join(others)}")
        epoch = max(handle.epoch for handle in handles) + 1
        if epoch <= own.epoch:
            raise LinkError(
                f"reconfigure: the handles are of epoch {epoch - 1}, this is epoch {own.epoch}; get new ones"
            )
        rank = lives.index(own.peer.life)
        if self._fixed is not None and self._fixed != (rank, len(handles)):
            raise LinkError(
                f"reconfigure: on the backend road this process stays rank {self._fixed[0]} of "
                f"{self._fixed[1]}; TRAINMOVER_ROAD=group lets it become rank {rank} of {len(handles)}"
            )
        peers = Peers(
            (place, replace(handle.peer, beside=handle.machine == own.machine))
            for place, handle in enumerate(handles)
        )
        machines: dict[str, int] = {}
        positions = {
            place: machines.setdefault(handle.machine, len(machines)) for place, handle in enumerate(handles)
        }
        places = tuple(range(len(handles)))
        everybodys = placed_links(key, COLLECTIVE, places, tuple(positions[place] for place in places))
        links = frozenset(link for link in everybodys if rank in (link.low, link.high))
        limit = self._standalone.limit if timeout is None else timeout.total_seconds()
        return Plan(epoch, rank, peers, links, limit), positions

    def _switch(self, plan: Plan, positions: dict[int, int], secret: bytes) -> None:
        """Both phases, on a thread of its own."""
        engine = self._standalone.communicator.engine
        ready, table = threading.Event(), engine.table
        self._standalone.trust(secret)
        engine.call(lambda: table.prepare(plan, lambda *_: ready.set()))
        if not ready.wait(plan.limit):
            missing = engine.ask(lambda: table.missing(plan))
            engine.call(lambda: table.abandon(plan.epoch))
            ranks = ", ".join(str(link.other(plan.rank)) for link in missing)
            raise LinkError(f"reconfigure: ranks {ranks} could not be reached within {plan.limit:g} s")
        moved = plan.rank != self._standalone.communicator.rank
        try:
            self._standalone.enter(plan, positions, self._group._key, drop_pairs=moved)
        except CallsOpen:
            # They wait for a member who is gone, or nobody has waited for them.
            engine.break_epoch(engine.epoch, "the group is reconfigured", told=True)
            self._standalone.enter(plan, positions, self._group._key, drop_pairs=moved)
        self._group._renumber(tuple(range(len(positions))))
        self.given = None
        try:
            self._group.barrier().wait(timedelta(seconds=plan.limit))
        except LinkError as error:
            engine.break_epoch(plan.epoch, "not every member of the new group came", told=False)
            raise LinkError(f"reconfigure: not every member came within {plan.limit:g} s: {error}") from error


def ordered(handles: Collection[str]) -> list[Handle]:
    """The members by rank: a list as it is, a set by the ranks that they have now."""
    if not handles:
        raise LinkError("reconfigure: no handles")
    found = [Handle.decode(text) for text in handles]
    if isinstance(handles, (list, tuple)):
        return found
    return sorted(found, key=lambda handle: (handle.rank, handle.peer.life))
