"""The link table: which connection each link has now, and those made ready for a coming epoch.

Phase 1, *prepare*: for every link that a plan wants and that has no connection to the right
process yet, one is dialled (by the lower rank) or awaited, authenticated and put aside; running
links are not touched.  Phase 2, *swap*: the entries of the table are pointed at the connections
put aside, the old ones are closed.  A slot keeps its staging memory through a swap, so a switch
needs no new buffers.

All state belongs to the engine's thread; connecting and shaking hands is the business of
:mod:`trainmover.ccl.connectors`, whose threads hand finished connections over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from trainmover.ccl.connection import Connection
from trainmover.ccl.connectors import Arrival, Connectors, new_life
from trainmover.ccl.handshake import Hello
from trainmover.ccl.pairs import Pairs
from trainmover.ccl.plan import Peer, Plan
from trainmover.ccl.secure import LinkTls
from trainmover.ccl.shared import Window
from trainmover.ccl.unreached import LOOK_SECONDS, SECONDS, Unreached
from trainmover.errors import LinkError
from trainmover.topology.links import Link

if TYPE_CHECKING:
    from trainmover.ccl.engine import Engine

__all__ = ["LinkTable", "Peer", "Plan", "Slot", "new_life"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.05


@dataclass(slots=True)
class Slot:
    """One link's place in the table. ``staging`` outlives every connection."""

    link: Link
    connection: Connection | None = None
    staging: bytearray = field(default_factory=bytearray)

    @property
    def connected(self) -> Connection:
        """The connection of a link that must have one."""
        if self.connection is None:
            raise LinkError(f"link {self.link} has no connection")
        return self.connection

    def scratch(self, size: int) -> memoryview:
        """Staging memory of at least ``size`` bytes; grows on first use and then stays."""
        if len(self.staging) < size:
            self.staging = bytearray(size)
        return memoryview(self.staging)[:size]


@dataclass(slots=True)
class _Pending:
    plan: Plan
    ready: Callable[[float, int, int], None]
    started: float
    kept: int
    announced: bool = False


class LinkTable:
    """The links of one rank process.

    Args:
        job: job id; connections of another job are refused.
        life: name of this process.
        secret: the job's secret.
        host: address to listen on; the port is the system's choice.
        tls: encrypts the links that leave the machine; None: they are plain.

    Attributes:
        unreached: what is dialled in vain, and who is told of it.
    """

    def __init__(self, job: str, life: str, secret: bytes, host: str, tls: LinkTls | None = None) -> None:
        self.job, self.life = job, life
        self._slots: dict[Link, Slot] = {}
        self._aside: dict[tuple[Link, str], tuple[int, Connection]] = {}
        self._pending: dict[int, _Pending] = {}
        self._dialling: set[tuple[Link, str]] = set()
        self._engine: Engine | None = None
        self._current_plan: Plan | None = None
        self.pairs = Pairs(self._connection_of, self._reach)
        self.unreached = Unreached()
        self._connectors = Connectors(
            job,
            life,
            secret,
            host,
            epoch=lambda: self.engine.epoch,
            hand_over=lambda action: self.engine.call(action),  # noqa: PLW0108 - the engine comes later
            tls=tls,
        )
        self.host, self.port = self._connectors.host, self._connectors.port
        self._closed = False

    # -- engine's thread -----------------------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        """Tie the table to its engine (once, before the engine's thread runs)."""
        self._engine = engine
        for fd in self._connectors.files():
            engine.watch_socket(fd)

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise LinkError("the link table has no engine")
        return self._engine

    @property
    def rank(self) -> int | None:
        """Own rank in the current epoch; None before the first."""
        return None if self._current_plan is None else self._current_plan.rank

    def slot(self, link: Link) -> Slot:
        """The slot of a link that must be connected.

        Raises:
            LinkError: there is no such link, or it has no connection.
        """
        slot = self._slots.get(link)
        if slot is None or slot.connection is None or slot.connection.closed:
            raise LinkError(f"link {link} has no connection")
        return slot

    def connections(self) -> list[Connection]:
        """Connections of the current epoch's links."""
        found = [slot.connection for slot in self._slots.values() if slot.connection is not None]
        return [connection for connection in found if not connection.closed]

    def window(self, group: str) -> Window:
        """This process's own window in a group."""
        return self._connectors.windows.own(group)

    def trust(self, secret: bytes) -> None:
        """From now on make connections with those who know this secret; those that there are stay."""
        self._connectors.trust(secret)

    def connections_of(self, group: str) -> list[Connection]:
        """Connections of one group's links in the current epoch."""
        found = [slot.connection for link, slot in self._slots.items() if link.group == group]
        return [connection for connection in found if connection is not None and not connection.closed]

    def group_of(self, connection: Connection) -> str | None:
        """The group whose link has this connection in the current epoch."""
        links = (link for link, slot in self._slots.items() if slot.connection is connection)
        return next((link.group for link in links), None)

    def staging_bytes(self) -> int:
        """Bytes of staging memory held by all slots."""
        return sum(len(slot.staging) for slot in self._slots.values()) + self.pairs.staging_bytes()

    def prepare(self, plan: Plan, ready: Callable[[float, int, int], None]) -> None:
        """Phase 1: make what the plan's epoch needs, then call ``ready(seconds, made, kept)`` once."""
        if plan.epoch > self.engine.epoch:
            self.extend(plan, ready)

    def extend(self, plan: Plan, ready: Callable[[float, int, int], None]) -> None:
        """Make more links within the current epoch (a new group); then :meth:`install` them."""
        kept = sum(self._current(plan, link) for link in plan.links)
        self._pending[plan.epoch] = pending = _Pending(plan, ready, time.monotonic(), kept)
        self._ensure(plan.epoch)
        self.engine.later(SECONDS, lambda: self._look_for_unreached(pending))

    def abandon(self, epoch: int) -> None:
        """The epoch will not come. Its connections stay aside for a later plan that wants them."""
        self._pending.pop(epoch, None)

    def missing(self, plan: Plan) -> list[Link]:
        """Links of the plan without a connection in the table."""
        return sorted(link for link in plan.links if not self._current(plan, link))

    def swap(self, plan: Plan) -> dict[str, int]:
        """Phase 2: point the table at the plan's connections; close what is no longer wanted."""
        self._pending = {epoch: item for epoch, item in self._pending.items() if epoch > plan.epoch}
        self._current_plan = plan
        self.pairs.clear()
        self.unreached.swapped()
        counts = {"swapped": 0, "kept": 0, "closed": 0}
        for link in sorted(plan.links):
            if self._current(plan, link):
                counts["kept"] += 1
                self._slots[link].connected.peer = link.other(plan.rank)
                continue
            found = self._aside.pop((link, plan.life_of(link)), None)
            if found is None:
                continue
            slot = self._slots.setdefault(link, Slot(link))
            counts["closed"] += self._discard(slot.connection)
            slot.connection = found[1]
            counts["swapped"] += 1
        for link in [link for link in self._slots if link not in plan.links]:
            if not (link.on_demand and self._current(plan, link)):
                counts["closed"] += self._discard(self._slots.pop(link).connection, over=True)
        for link, life in [key for key, (epoch, _) in self._aside.items() if epoch <= plan.epoch]:
            if link.on_demand and life == plan.life_of(link):
                self._install(link, self._aside.pop((link, life))[1])
        # What was made for this very epoch and is not in its plan belongs to a group that a faster
        # rank is already creating in it.
        for key in [key for key, (epoch, _) in self._aside.items() if epoch < plan.epoch]:
            if not self._wanted_by_others(*key):
                self._discard(self._aside.pop(key)[1], over=True)
        return counts

    def drop(self, links: list[Link]) -> None:
        """Close links for good (a group was destroyed, a state copy is done)."""
        for link in links:
            if slot := self._slots.pop(link, None):
                # The peer may drop it a little later: it is told that this end is no failure.
                self._discard(slot.connection, over=True)

    def drop_pairs(self, group: str) -> None:
        """Close the links of a group that were made on demand: its ranks get other numbers."""
        self.pairs.forget(group)
        self.drop([link for link in self._slots if link.group == group and link.on_demand])

    def drop_group(self, group: str) -> None:
        """Close every link of a group (it was destroyed), and wait for none of it in a coming epoch."""
        self.pairs.forget(group)
        for item in self._pending.values():
            gone = {link for link in item.plan.links if link.group == group}
            item.kept -= sum(self._current(item.plan, link) for link in gone)
            item.plan = replace(item.plan, links=item.plan.links - gone)
        self.drop([link for link in self._slots if link.group == group])
        self._connectors.windows.drop(group)
        self._ensure_all()

    def install(self, plan: Plan) -> None:
        """Add the plan's links to the current epoch (a new group), without ending any other."""
        self._pending.pop(plan.epoch, None)
        for link in plan.links:
            found = self._aside.pop((link, plan.life_of(link)), None)
            if found is None:
                raise LinkError(f"link {link} was lost while its group was made")
            self._install(link, found[1])

    def _install(self, link: Link, connection: Connection) -> None:
        """Point a link of the current epoch at a connection, unless its peer has no place there any more."""
        current = self._current_plan
        if current is None or connection.peer_life != current.life_of(link):
            self._discard(connection, over=True)
            return
        slot = self._slots.setdefault(link, Slot(link))
        self._discard(slot.connection, over=True)
        slot.connection = connection
        if link.on_demand:
            self.pairs.arrived(link, connection)
        connection.readable()

    def drop_process(self, life: str) -> None:
        """Close every connection to a process that is known to be dead."""
        for slot in self._slots.values():
            if slot.connection is not None and slot.connection.peer_life == life:
                self._discard(slot.connection)
                slot.connection = None
        for key in [key for key in self._aside if key[1] == life]:
            self._discard(self._aside.pop(key)[1])

    def forget(self, connection: Connection) -> bool:
        """A connection ended. True when a link of the current epoch had it."""
        in_use = False
        for slot in self._slots.values():
            if slot.connection is connection:
                slot.connection, in_use = None, True
        for key in [key for key, (_, aside) in self._aside.items() if aside is connection]:
            del self._aside[key]
        self._ensure_all()
        return in_use

    def left(self, connection: Connection) -> None:
        """The peer hung up in good order: a link in use notices when it is needed.

        One put aside for a coming epoch is gone; one for this epoch stays, for a group still to be made.
        """
        coming = {key: aside for key, (at, aside) in self._aside.items() if at > self.engine.epoch}
        gone = [key for key, aside in coming.items() if aside is connection]
        if gone:
            for key in gone:
                self._discard(self._aside.pop(key)[1])
            self._ensure_all()

    def close(self) -> None:
        """Close everything."""
        self._closed = True
        self._connectors.close()
        for connection in [*self.connections(), *(aside for _, aside in self._aside.values())]:
            self._discard(connection)
        self._slots.clear()
        self._aside.clear()

    def join(self) -> None:
        """Wait for the connector threads of a closed table (from another thread than the engine's)."""
        self._connectors.join()

    # -- phase 1 -------------------------------------------------------------------------------

    def _current(self, plan: Plan, link: Link) -> bool:
        slot = self._slots.get(link)
        connection = slot.connection if slot is not None else None
        if connection is None or connection.ended:
            return False
        return connection.peer_life == plan.life_of(link)

    def _wanted(self, plan: Plan) -> Iterator[Link]:
        for link in plan.links:
            if not self._current(plan, link) and (link, plan.life_of(link)) not in self._aside:
                yield link

    def _wanted_by_others(self, link: Link, life: str) -> bool:
        """True when a coming epoch counts on a connection to that process for the link."""
        return any(
            link in item.plan.links and item.plan.life_of(link) == life for item in self._pending.values()
        )

    def _ensure_all(self) -> None:
        for epoch in list(self._pending):
            self._ensure(epoch)

    def _ensure(self, epoch: int) -> None:
        pending = self._pending.get(epoch)
        if pending is None or self._closed:
            return
        plan, open_links = pending.plan, 0
        for link in sorted(self._wanted(plan)):
            open_links += 1
            if link.dialler == plan.rank:
                self._begin_dial(plan, link)
        if not open_links and not pending.announced:
            pending.announced = True
            made = len(plan.links) - pending.kept
            pending.ready(time.monotonic() - pending.started, made, pending.kept)

    def _begin_dial(self, plan: Plan, link: Link) -> None:
        key = link, plan.life_of(link)
        if key not in self._dialling:
            self._dialling.add(key)
            self._connectors.dial(plan, link, partial(self._dialled, plan, link))

    def _look_for_unreached(self, pending: _Pending) -> None:
        """Tell of the links of a plan that are dialled in vain, for as long as it is prepared."""
        plan = pending.plan
        if self._closed or pending.announced or self._pending.get(plan.epoch) is not pending:
            return
        mine = [link for link in sorted(self._wanted(plan)) if link.dialler == plan.rank]
        self.unreached.look(plan, pending.started, [(link, plan.life_of(link)) for link in mine])
        self.engine.later(LOOK_SECONDS, lambda: self._look_for_unreached(pending))

    def _reach(self, link: Link) -> None:
        """Begin to make a link that is needed in the current epoch and no topology names."""
        if self._current_plan is None:
            raise LinkError(f"link {link} is needed before the first epoch")
        self._begin_dial(self._current_plan, link)

    def _reach_again(self, link: Link) -> None:
        if self.pairs.wants(link) and not self._closed:
            self._reach(link)

    def _connection_of(self, link: Link) -> Connection | None:
        slot = self._slots.get(link)
        return None if slot is None or slot.connection is None or slot.connection.closed else slot.connection

    def _dialled(self, plan: Plan, link: Link, found: Arrival | None, reason: str, reached: bool) -> None:
        life = plan.life_of(link)
        self._dialling.discard((link, life))
        self.unreached.tried((link, life), "" if reached else reason)
        if found is not None:
            self._put_aside(link, link.other(plan.rank), life, plan.epoch, found)
            return
        if self._closed:
            return
        if self.pairs.wants(link) and plan is self._current_plan:
            if self.unreached.demanded(plan, (link, life)):
                self.engine.unreached(link.other(plan.rank), reason)
                return
            self.engine.later(RETRY_SECONDS, lambda: self._reach_again(link))
            return
        pending = self._pending.get(plan.epoch)
        if pending is not None and time.monotonic() - pending.started > plan.limit:
            log.warning("gave up on link %s of epoch %d: %s", link, plan.epoch, reason)
            return
        if self._wanted_by_others(link, life):
            log.debug("link %s of epoch %d: %s; trying again", link, plan.epoch, reason)
            self.engine.later(RETRY_SECONDS, self._ensure_all)

    def _put_aside(self, link: Link, rank: int, life: str, epoch: int, found: Arrival) -> None:
        if self._closed:
            found.sock.close()
            return
        found.sock.setblocking(False)
        connection = Connection(found.sock, rank, life, self.engine)
        connection.window = found.window
        if link.on_demand and epoch <= self.engine.epoch:
            self.engine.watch(connection)
            self._install(link, connection)
            return
        old = self._aside.pop((link, life), None)
        if old is not None:
            self._discard(old[1], over=True)
        self._aside[link, life] = (epoch, connection)
        self.engine.watch(connection)
        self._ensure_all()

    def _discard(self, connection: Connection | None, *, over: bool = False) -> int:
        """Close a connection; ``over``: its link ends in good order, so tell the peer."""
        if connection is None or connection.closed:
            return 0
        self.engine.unwatch(connection)
        if over:
            connection.leave()
        else:
            connection.close()
        return 1

    def socket_ready(self, fd: int) -> None:
        """Somebody is at one of the doors (engine's thread)."""
        if not self._closed:
            self._connectors.at_door(fd, self._heard)

    def _heard(self, hello: Hello, found: Arrival) -> None:
        self._put_aside(hello.link, hello.sender, hello.sender_life, hello.epoch, found)
