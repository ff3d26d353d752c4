"""A rank's standing in the cluster: who it is, what it was told, which epochs are prepared.

The session owns the control line, the engine and the communicator.  Orders arrive on the control
thread (`switch.prepare`, `switch.aborted`, ...) and turn into work of the engine; the main thread
asks the session only at the boundary.  Every decision about a step is :mod:`boundary`'s.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.connection import Connection
from trainmover.ccl.engine import Engine
from trainmover.ccl.table import LinkTable, Peer, Plan, new_life
from trainmover.errors import JobError
from trainmover.events.catalogue import (
    Endpoint,
    Event,
    JobCompleted,
    JobFailed,
    LinkBroken,
    MachineFailed,
    RankStarted,
    SwitchAborted,
    SwitchCommitted,
    SwitchPrepare,
    SwitchPrepared,
)
from trainmover.topology.layout import Layout, guardian_of
from trainmover.topology.links import STATE, WORLD, Link, link
from trainmover.training.control import ControlLine
from trainmover.training.environment import Environment

log = logging.getLogger(__name__)

REMIND_SECONDS = 10.0
HOLD_SECONDS = 24 * 3600.0
"""Longest wait at the boundary for a new epoch (no standby is left and nobody adds a machine)."""
MAX_SOURCES = 8


class Released(SystemExit):
    """This rank's machine has left the job in good order; the script ends here."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True, slots=True)
class Order:
    """One epoch as this rank was told about it. ``plan`` is None for a rank that leaves."""

    event: SwitchPrepare
    layout: Layout
    plan: Plan | None

    @property
    def epoch(self) -> int:
        return self.event.epoch

    def sources(self, joiner: int) -> list[int]:
        """Ranks linked to a joiner for its state: its guardian first, all on machines that stay."""
        stay = [
            rank
            for rank in range(self.layout.world_size)
            if self.layout.machine_of(rank) not in self.event.joiners
        ]
        first = guardian_of(joiner, self.layout.world_size, self.layout.ranks_per_machine)
        return sorted(stay, key=lambda rank: (rank != first, rank))[:MAX_SOURCES]

    def state_links(self) -> frozenset[Link]:
        """The links of this switch's state copy."""
        if self.event.kind == "start":
            return frozenset()
        return frozenset(
            link(WORLD, STATE, joiner, source)
            for machine in self.event.joiners
            for joiner in self.layout.ranks_of(machine)
            for source in self.sources(joiner)
        )


class Session:
    """The connection of one rank process to its machine and its peers.

    Args:
        env: what the machine program told this process.
        limit: seconds that one collective call may take.
    """

    def __init__(self, env: Environment, limit: float) -> None:
        self.env = env
        self.sandbox = env.mode == "sandbox"
        self.life = new_life(env.machine, env.slot)
        self.order: Order | None = None
        """The order of the epoch that this rank works in."""
        self._changed = threading.Condition()
        self._orders: dict[int, Order] = {}
        self._prepared: set[int] = set()
        self._released = False
        self._completed = False
        self._failed: str | None = None
        table = LinkTable(env.job, self.life, env.secret, env.host)
        self.engine = Engine(table, self._epoch_broke, self._link_lost)
        self.communicator = Communicator(self.engine, env.rank, env.world_size, env.ranks_per_machine, limit)
        self.control = ControlLine(env.socket, self._heard)

    @property
    def rank(self) -> int:
        """Own global rank."""
        return self.communicator.rank

    def start(self) -> None:
        """Say that this process is up, and begin to hear orders."""
        table = self.engine.table
        self.control.say(
            RankStarted(
                machine=self.env.machine,
                incarnation=self.env.incarnation,
                slot=self.env.slot,
                mode="sandbox" if self.sandbox else "live",
                generation=self.env.generation,
                pid=os.getpid(),
                endpoint=Endpoint(host=table.host, port=table.port, life=self.life),
            )
        )
        self.control.start()

    def say(self, event: Event) -> None:
        """Tell the machine program."""
        self.control.say(event)

    def close(self) -> None:
        """Leave: say BYE on every link, hang up."""
        self.engine.stop()
        self.control.close()

    # -- what the boundary asks (main thread) --------------------------------------------------

    def prepared_epoch(self) -> int:
        """The highest coming epoch that this rank is ready for; 0 when there is none."""
        with self._changed:
            return max((epoch for epoch in self._prepared if epoch > self.engine.epoch), default=0)

    def order_for(self, epoch: int) -> Order:
        """The order of an epoch that all ranks are prepared for."""
        with self._changed:
            return self._orders[epoch]

    def wait_for_epoch(self) -> Order:
        """Wait until this rank is prepared for a coming epoch.

        Raises:
            Released: this machine leaves the job.
            JobError: the job failed, or nothing came within a day.
        """
        started = time.monotonic()
        reminded = started
        while True:
            with self._changed:
                self._check()
                epochs = [epoch for epoch in self._prepared if epoch > self.engine.epoch]
                if epochs and self._orders[max(epochs)].plan is not None:
                    return self._orders[max(epochs)]
                self._changed.wait(1.0)
            now = time.monotonic()
            if now - reminded > REMIND_SECONDS:
                reminded = now
                log.warning(
                    "rank %d holds at the boundary since %.0f s: no machine has taken the lost one's place",
                    self.rank,
                    now - started,
                )
            if now - started > HOLD_SECONDS:
                raise JobError(
                    f"rank {self.rank} was held at the boundary for {HOLD_SECONDS / 3600:g} h; giving up"
                )

    def wait_for_end(self, limit: float) -> bool:
        """Wait until the job is complete. False: the epoch broke instead, and a meeting is due."""
        until = time.monotonic() + limit
        with self._changed:
            while not self._completed:
                self._check()
                if self.engine.broken:
                    return False
                if time.monotonic() > until:
                    raise JobError(
                        f"rank {self.rank} has done all its steps, but the job was not completed within "
                        f"{limit:g} s; are the switcher service and the bus running?"
                    )
                self._changed.wait(0.2)
        return True

    def _check(self) -> None:
        if self._failed is not None:
            raise JobError(f"the job failed: {self._failed}")
        if self._released:
            raise Released
        if self.engine.fatal is not None:
            raise JobError(f"rank {self.rank} cannot go on: {self.engine.fatal}") from self.engine.fatal

    def adopt(self, order: Order) -> dict[str, int]:
        """Enter an order's epoch."""
        if order.plan is None:
            raise JobError(f"rank {self.rank} has no place in epoch {order.epoch}")
        counts = self.engine.adopt(order.plan)
        self.communicator.plan = order.plan
        with self._changed:
            self.order = order
            self._orders = {epoch: item for epoch, item in self._orders.items() if epoch >= order.epoch}
            self._prepared = {epoch for epoch in self._prepared if epoch > order.epoch}
        return counts

    # -- what the machine program says (control thread) ------------------------------------------

    def _heard(self, event: Event) -> None:
        if isinstance(event, SwitchPrepare):
            self._prepare(event)
        elif isinstance(event, SwitchAborted):
            self._abort(event)
        elif isinstance(event, MachineFailed):
            self._peer_failed(event.machine)
        elif isinstance(event, SwitchCommitted):
            if self.env.machine in event.leavers:
                self._tell(released=True)
        elif isinstance(event, JobCompleted):
            self._tell(completed=True)
        elif isinstance(event, JobFailed):
            self._tell(failed=event.reason)

    def _tell(self, *, released: bool = False, completed: bool = False, failed: str | None = None) -> None:
        with self._changed:
            self._released |= released
            self._completed |= completed
            self._failed = self._failed or failed
            self._changed.notify_all()

    def _prepare(self, event: SwitchPrepare) -> None:
        if event.generation != self.env.generation or event.epoch <= self.engine.epoch:
            return
        with self._changed:
            if event.epoch in self._orders:
                return
        layout = Layout(event.epoch, event.machines, event.ranks_per_machine)
        if self.env.machine not in layout.machines:
            self._ready(Order(event, layout, None))
            return
        rank = layout.ranks_of(self.env.machine)[self.env.slot]
        if rank != self.rank:
            if self.order is not None:
                log.error("rank %d cannot become rank %d in epoch %d", self.rank, rank, event.epoch)
                return
            self.communicator.rank = rank
        order = Order(event, layout, None)
        mine = {item for item in order.state_links() if rank in (item.low, item.high)}
        peers = tuple(Peer(e.host, e.port, e.life) for e in event.endpoints)
        plan = Plan(event.epoch, rank, peers, self.communicator.links() | mine, event.limit_seconds)
        order = Order(event, layout, plan)
        with self._changed:
            self._orders[event.epoch] = order

        def ready(seconds: float, made: int, kept: int) -> None:
            self._ready(order)
            self.say(
                SwitchPrepared(
                    epoch=event.epoch,
                    rank=rank,
                    machine=self.env.machine,
                    seconds=seconds,
                    links_made=made,
                    links_kept=kept,
                )
            )

        table = self.engine.table
        self.engine.call(lambda: table.prepare(plan, ready))

    def _ready(self, order: Order) -> None:
        with self._changed:
            self._orders[order.epoch] = order
            self._prepared.add(order.epoch)
            self._changed.notify_all()

    def _abort(self, event: SwitchAborted) -> None:
        with self._changed:
            self._prepared.discard(event.epoch)
        table = self.engine.table
        self.engine.call(lambda: table.abandon(event.epoch))
        if self.engine.epoch == event.epoch:
            self.engine.break_epoch(f"epoch {event.epoch} was aborted: {event.reason}", told=True)

    def _peer_failed(self, machine: str) -> None:
        order = self.order
        if order is None or machine == self.env.machine or order.plan is None:
            return
        lives = [order.plan.peers[rank].life for rank in order.layout.ranks_of(machine)]
        if not lives:
            return
        table = self.engine.table
        for life in lives:
            self.engine.call(lambda life=life: table.drop_process(life))  # type: ignore[misc]
        self.engine.break_epoch(f"machine {machine} failed", told=True)

    # -- what the engine says (engine's thread) --------------------------------------------------

    def _epoch_broke(self, epoch: int, peer: int | None, reason: str, told: bool) -> None:
        with self._changed:
            order = (
                self.order
                if self.order is not None and self.order.epoch == epoch
                else self._orders.get(epoch)
            )
            leaving = any(e > epoch and item.plan is None for e, item in self._orders.items())
            self._changed.notify_all()
        if told or order is None or leaving:
            return
        lost = self.rank if peer is None else peer
        self._report_lost(order, lost, reason)

    def _link_lost(self, connection: Connection, reason: str) -> None:
        with self._changed:
            orders = [item for epoch, item in sorted(self._orders.items()) if epoch > self.engine.epoch]
        for order in orders:
            if order.plan is not None and order.plan.peers[connection.peer].life == connection.peer_life:
                self._report_lost(order, connection.peer, reason)
                return

    def _report_lost(self, order: Order, peer: int, reason: str) -> None:
        self.say(
            LinkBroken(
                epoch=order.epoch,
                rank=self.rank,
                machine=self.env.machine,
                peer=peer,
                peer_machine=order.layout.machine_of(peer),
                reason=reason[:2000],
            )
        )
