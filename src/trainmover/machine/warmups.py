"""Warm-ups: the sets of sandbox ranks of a spare, and what becomes of one that fails.

What lives here: how long a warm-up may take, and the one more try that it gets.  What never lives here: the
processes (``ranks``), when a spare is warmed in what (the standby service).

A spare is warm in several roles.  When a rank ends in one of them, the others are as good as before: that
set is ended and started anew, once.  When it ends once more, or is the one that is to take a seat, the
machine has failed.  A warm-up that takes longer than the job allows is ended, and told like an end of its
own; it gets no other try, which would take as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from trainmover.events.catalogue import StandbyWarm
from trainmover.machine.ranks import Rank, Ranks
from trainmover.machine.relay import Relay

log = logging.getLogger("trainmover.machine")


class WarmUps:
    """The warm-ups of one machine; see the module.

    Args:
        ranks: its rank processes.
        relay: knows the role that it is assigned.
        start: starts the ranks of a warm-up.
    """

    def __init__(self, ranks: Ranks, relay: Relay, start: Callable[[StandbyWarm], Awaitable[None]]) -> None:
        self._ranks, self._relay, self._start = ranks, relay, start
        self._orders: dict[str, StandbyWarm] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tried: set[str] = set()
        self._starting: set[asyncio.Task[None]] = set()

    def begun(self, order: StandbyWarm, limit: float) -> None:
        """The ranks of a warm-up are started; they have ``limit`` seconds."""
        self._orders[order.role] = order
        self._disarm(order.role)
        loop = asyncio.get_running_loop()
        self._timers[order.role] = loop.call_later(limit, self._too_long, order, limit)

    def again(self, rank: Rank) -> bool:
        """Whether the set of a rank that has ended is started anew."""
        order = self._orders.get(rank.role)
        if rank.mode != "sandbox" or rank.late or order is None or order.generation != rank.generation:
            return False
        if rank.role in self._tried or self._relay.role:
            return False
        self._tried.add(rank.role)
        for other in self._ranks.of_role(rank.role):
            other.asked = True
        task = asyncio.ensure_future(self._start_again(order))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return True

    def forget(self) -> None:
        """The ranks are ended, or about to be: nothing is started any more."""
        for role in list(self._timers):
            self._disarm(role)
        self._orders.clear()
        self._tried.clear()
        for task in self._starting:
            task.cancel()

    async def _start_again(self, order: StandbyWarm) -> None:
        log.warning("the ranks in the role %s are started again", order.role)
        await self._ranks.end_role(order.role)
        if self._orders.get(order.role) is order:
            await self._start(order)

    def _too_long(self, order: StandbyWarm, limit: float) -> None:
        self._disarm(order.role)
        for rank in self._ranks.of_role(order.role):
            if rank.generation == order.generation and rank.mode == "sandbox" and not rank.parked:
                rank.words = (
                    f"it was not warm in the role {order.role or 'of its seat'} within {limit:g} s "
                    "(--warm-limit), and was ended"
                )
                rank.late = True
                rank.child.kill()

    def _disarm(self, role: str) -> None:
        handle = self._timers.pop(role, None)
        if handle is not None:
            handle.cancel()
