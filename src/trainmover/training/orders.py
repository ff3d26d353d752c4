"""Orders: the epochs that a rank was told about, and how far it is with each.

An order is known, then *prepared* (all its links are there), perhaps *aborted*; the rank enters an
epoch at most once and epochs only grow.  The book is shared by the control thread, the engine's
thread and the main thread; :attr:`OrderBook.changed` is notified on every change.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from trainmover.ccl.calls import Place
from trainmover.ccl.table import Plan
from trainmover.events.catalogue import JoinerRank, SwitchPrepare
from trainmover.topology.layout import Layout, guardian_of
from trainmover.topology.links import STATE, WORLD, Link, link

MAX_SOURCES = 8
"""Most ranks that send state to one joiner."""


@dataclass(frozen=True, slots=True)
class Order:
    """One epoch as this rank was told about it.

    Attributes:
        event: what it was told.
        layout: who sits where.
        plan: the links that it needs; None for a rank that leaves.
        place: where a standby takes its place; None for a rank that has one.
    """

    event: SwitchPrepare
    layout: Layout
    plan: Plan | None
    place: Place | None = None

    @property
    def epoch(self) -> int:
        """The epoch that is ordered."""
        return self.event.epoch

    def newcomers(self) -> list[int]:
        """The joiners' ranks."""
        return [rank for machine in self.event.joiners for rank in self.layout.ranks_of(machine)]

    def told(self, rank: int) -> JoinerRank | None:
        """What the order says of a joiner's rank."""
        return next((item for item in self.event.joiner_ranks if item.rank == rank), None)

    def guardian(self, joiner: int) -> int:
        """The rank that sends a joiner its private values.

        Of a seat that was vacant, the one that is named; else the guardian as of the epoch before, in
        which such seats were still vacant.
        """
        told, layout = self.told(joiner), self.layout
        if told is not None and told.keeper is not None:
            return told.keeper
        filled = {item.rank // layout.ranks_per_machine for item in self.filled()}
        return guardian_of(joiner, layout.world_size, layout.ranks_per_machine, layout.vacant | filled)

    def filled(self) -> list[JoinerRank]:
        """The joiners' ranks on seats that were vacant."""
        return [item for item in self.event.joiner_ranks if item.keeper is not None]

    def sources(self, joiner: int) -> list[int]:
        """Ranks that have a joiner's state and send it: its guardian first where it is one of them.

        Where the order does not say which ranks are replicas, all are.
        """
        first = self.guardian(joiner)
        told = self.told(joiner)
        if told is None:
            layout = self.layout
            ranks = [r for r in layout.present if layout.machine_of(r) not in self.event.joiners]
        else:
            ranks = list(told.sources)
        return sorted(ranks, key=lambda rank: (rank != first, rank))[:MAX_SOURCES]

    def mirrored(self, joiner: int) -> int | None:
        """The rank that has a joiner's state as a mirror; None: it comes from its sources."""
        told = self.told(joiner)
        return None if told is None else told.mirrored

    def _givers(self, joiner: int) -> set[int]:
        mirrored = self.mirrored(joiner)
        found = {*self.sources(joiner), self.guardian(joiner)}
        return found if mirrored is None else {*found, mirrored}

    def state_links(self) -> frozenset[Link]:
        """The links of this switch's state copy: to the sources, the guardian, and who has the mirror."""
        if self.event.kind == "start":
            return frozenset()
        return frozenset(
            link(WORLD, STATE, joiner, other)
            for machine in self.event.joiners
            for joiner in self.layout.ranks_of(machine)
            for other in self._givers(joiner)
            if self.layout.machine_of(other) not in self.event.joiners
        )


class OrderBook:
    """All orders of one rank."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._orders: dict[int, Order] = {}
        self._prepared: set[int] = set()
        self._aborted: set[int] = set()

    def add(self, order: Order) -> bool:
        """Note an order. False: its epoch is known or given up already."""
        with self.changed:
            if order.epoch in self._orders or order.epoch in self._aborted:
                return False
            self._orders[order.epoch] = order
            return True

    def prepared(self, epoch: int) -> None:
        """All that an epoch needs of this rank is ready."""
        with self.changed:
            if epoch in self._orders and epoch not in self._aborted:
                self._prepared.add(epoch)
            self.changed.notify_all()

    def abort(self, epoch: int) -> None:
        """An epoch will not come; it is never entered from now on."""
        with self.changed:
            self._aborted.add(epoch)
            self._prepared.discard(epoch)
            self.changed.notify_all()

    def is_aborted(self, epoch: int) -> bool:
        """Whether an epoch was given up."""
        with self.changed:
            return epoch in self._aborted

    def of(self, epoch: int) -> Order | None:
        """The order of an epoch."""
        with self.changed:
            return self._orders.get(epoch)

    def after(self, epoch: int) -> list[Order]:
        """Orders of later epochs that still stand, the earliest first."""
        with self.changed:
            return [o for e, o in sorted(self._orders.items()) if e > epoch and e not in self._aborted]

    def next_prepared(self, epoch: int) -> Order | None:
        """The highest later epoch that is prepared."""
        with self.changed:
            ready = [e for e in self._prepared if e > epoch]
            return self._orders[max(ready)] if ready else None

    def forget_before(self, epoch: int) -> None:
        """This rank has entered an epoch: earlier ones are history."""
        with self.changed:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch}
            self._prepared = {e for e in self._prepared if e > epoch}
            self._aborted = {e for e in self._aborted if e >= epoch}
