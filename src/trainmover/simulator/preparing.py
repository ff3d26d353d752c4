"""Preparing: a rank makes its links of a coming epoch, beside training.

What lives here: from an order to ``switch.prepared``, and whom a rank dials in vain.  What never lives here:
entering the epoch (``training``), who reaches whom (``reach``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from trainmover.events import catalogue as say
from trainmover.simulator.clock import VirtualLoop
from trainmover.simulator.ranks import SimulatedRank
from trainmover.simulator.reach import Reach

DIAL_SECONDS = 20.0
"""A link that is dialled in vain for so long is told of; see ``ccl.unreached``."""


class Preparing:
    """The links of coming epochs; see the module.

    Args:
        prepared: told of every rank that has become prepared for an epoch.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        chance: Random,
        reach: Reach,
        prepared: Callable[[SimulatedRank], None],
    ) -> None:
        self._loop, self._chance, self._reach, self._prepared = loop, chance, reach, prepared
        self._since: dict[tuple[SimulatedRank, int], float] = {}
        self._unreached: dict[tuple[SimulatedRank, int], set[str]] = {}

    @property
    def under_way(self) -> list[tuple[SimulatedRank, int]]:
        """Who prepares which epoch, in the order in which they began."""
        return list(self._since)

    def ordered(self, rank: SimulatedRank, order: say.SwitchPrepare) -> None:
        """A rank hears of a coming epoch."""
        epoch = order.epoch
        if order.generation != rank.generation or epoch <= rank.epoch:
            return
        if epoch in rank.orders or epoch in rank.aborted:
            return
        if not rank.has_place(order):
            rank.orders[epoch] = order
            rank.ready.add(epoch)
            return
        if rank.history and rank.place >= 0 and rank.place_in(order) != rank.place:
            return
        rank.orders[epoch] = order
        self._since[rank, epoch] = self._loop.now
        rank.machine.later(self._chance.uniform(0.005, 0.05), self._prepare, rank, epoch)

    def forget(self, rank: SimulatedRank, epoch: int) -> None:
        """The epoch will not come."""
        self._since.pop((rank, epoch), None)
        self._unreached.pop((rank, epoch), None)

    def look_again(self) -> None:
        """Somebody may answer who did not."""
        for rank, epoch in self.under_way:
            if rank.over:
                self.forget(rank, epoch)
            elif rank.runs:
                self._prepare(rank, epoch)

    def _prepare(self, rank: SimulatedRank, epoch: int) -> None:
        """Its links to the neighbours are there, once those listen to the same order."""
        order = rank.orders.get(epoch)
        if order is None or (rank, epoch) not in self._since or rank.over or rank.stopped:
            return
        self._dial(rank, order)
        if not all(self._answers(rank, name, order) for name in _neighbours(rank, order)):
            return
        del self._since[rank, epoch]
        rank.ready.add(epoch)
        rank.tell(
            say.SwitchPrepared(
                epoch=epoch,
                rank=rank.place_in(order),
                machine=rank.machine.name,
                seconds=0.01,
                links_made=1,
                links_kept=1,
            )
        )
        self._prepared(rank)

    def _answers(self, rank: SimulatedRank, name: str, order: say.SwitchPrepare) -> bool:
        """A machine's ranks answer those who make links for this order, if they are reached."""
        return self._reach.between(rank.machine.name, name) and any(
            order.epoch in other.orders and other.runs and not other.machine.apart
            for other in self._reach.ranks_of(name)
        )

    def _dial(self, rank: SimulatedRank, order: say.SwitchPrepare) -> None:
        """Whom it dials in vain it says after a while; and when that one answers after all."""
        told = self._unreached.setdefault((rank, order.epoch), set())
        late = self._loop.now - self._since[rank, order.epoch] > DIAL_SECONDS
        place = rank.place_in(order)
        for name in _neighbours(rank, order):
            peer = order.machines.index(name) * order.ranks_per_machine
            silent = self._reach.silent(rank.machine.name, name)
            if place > peer or silent == (name in told):
                continue
            who: dict[str, Any] = {
                "epoch": order.epoch,
                "rank": place,
                "machine": rank.machine.name,
                "peer": peer,
                "peer_machine": name,
            }
            if silent and late:
                told.add(name)
                rank.tell(say.LinkUnreached(**who, seconds=DIAL_SECONDS, reason="timed out"))
            elif not silent:
                told.discard(name)
                rank.tell(say.LinkReached(**who))


def _neighbours(rank: SimulatedRank, order: say.SwitchPrepare) -> Iterable[str]:
    taken = [machine for machine in order.machines if machine]
    seat, count = taken.index(rank.machine.name), len(taken)
    near = {taken[(seat + step) % count] for step in (-1, 1)}
    return sorted((near | set(order.joiners)) - {rank.machine.name})
