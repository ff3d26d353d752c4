"""What a rank reports of itself and its links, in the words of events.

What lives here: the events that follow from this rank's own standing, filled in.  What never lives here: when
they are said (``session``), and what others say of this rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from trainmover.errors import StateLost
from trainmover.events.catalogue import (
    Endpoint,
    Event,
    LinkBroken,
    LinkReached,
    LinkUnreached,
    RankExited,
    RankStarted,
    SwitchPrepared,
)
from trainmover.training.environment import Environment
from trainmover.training.orders import Order

MOST_REASON = 2000
"""Characters of a reason at most."""


class Reports:
    """The reports of one rank process.

    Args:
        env: what the machine program told this process.
        say: tells the machine program.
    """

    def __init__(self, env: Environment, say: Callable[[Event], None]) -> None:
        self._env = env
        self._say = say

    def started(self, endpoint: Endpoint) -> None:
        """This process is up, and its peers reach it here."""
        self._say(
            RankStarted(
                machine=self._env.machine,
                incarnation=self._env.incarnation,
                slot=self._env.slot,
                mode="sandbox" if self._env.mode == "sandbox" else "live",
                generation=self._env.generation,
                pid=os.getpid(),
                endpoint=endpoint,
                role=self._env.role,
            )
        )

    def state_lost(self, error: StateLost, *, live: bool) -> None:
        """This rank, and every other one, is about to end: there is nothing to go on from."""
        self._say(
            RankExited(
                machine=self._env.machine,
                incarnation=self._env.incarnation,
                slot=self._env.slot,
                mode="live" if live else "sandbox",
                generation=self._env.generation,
                pid=os.getpid(),
                code=1,
                signal=None,
                error=str(error),
                role=self._env.role,
                hopeless=True,
            )
        )

    def prepared(self, epoch: int, rank: int, seconds: float, made: int, kept: int) -> None:
        """All links that an epoch needs of this rank are there."""
        self._say(
            SwitchPrepared(
                epoch=epoch,
                rank=rank,
                machine=self._env.machine,
                seconds=seconds,
                links_made=made,
                links_kept=kept,
            )
        )

    def broken(self, order: Order, rank: int, peer: int, reason: str) -> None:
        """A link to a peer is broken, in the epoch of this order."""
        self._say(
            LinkBroken(
                epoch=order.epoch,
                rank=rank if order.plan is None else order.plan.rank,
                machine=self._env.machine,
                peer=peer,
                peer_machine=order.layout.machine_of(peer),
                reason=reason[:MOST_REASON],
            )
        )

    def unreached(self, order: Order, rank: int, peer: int, seconds: float, reason: str) -> None:
        """A link to a peer is dialled in vain, for this order's epoch; no reason: the peer answers now."""
        machine, there = self._env.machine, order.layout.machine_of(peer)
        if machine == there:
            return
        if not reason:
            self._say(
                LinkReached(epoch=order.epoch, rank=rank, machine=machine, peer=peer, peer_machine=there)
            )
            return
        self._say(
            LinkUnreached(
                epoch=order.epoch,
                rank=rank,
                machine=machine,
                peer=peer,
                peer_machine=there,
                seconds=seconds,
                reason=reason[:MOST_REASON],
            )
        )
