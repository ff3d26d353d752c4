"""A rank's standing in the cluster: who it is, what it was told, which epochs are prepared.

The session owns the control line, the engine and the communicator.  Orders arrive on the control
thread (`switch.prepare`, `switch.aborted`, ...) and turn into work of the engine; the main thread
asks the session only at the boundary.  Every decision about a step is :mod:`boundary`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.connection import Connection
from trainmover.ccl.engine import Engine
from trainmover.ccl.secure import LinkTls
from trainmover.ccl.table import LinkTable, Peer, Plan, new_life
from trainmover.errors import JobError, LinkError, StateLost
from trainmover.events.catalogue import (
    Endpoint,
    Event,
    JobCompleted,
    JobFailed,
    MachineFailed,
    RolesFound,
    SandboxPeers,
    SwitchAborted,
    SwitchCommitted,
    SwitchPrepare,
)
from trainmover.topology.layout import Layout
from trainmover.topology.links import Link
from trainmover.training.control import ControlLine
from trainmover.training.environment import Environment
from trainmover.training.orders import Order, OrderBook
from trainmover.training.places import is_in, place_for
from trainmover.training.points import Points
from trainmover.training.preparing import order_of
from trainmover.training.reports import Reports

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""A rank that waits this long for an epoch says so; then again every REMIND_SECONDS."""
REMIND_SECONDS = 10.0
NEIGHBOURS_SECONDS = 600.0
"""Longest wait in the sandbox for the other ranks of this machine, which warm up at idle priority."""
SANDBOX_EPOCH = 1
"""The epoch of the links inside a sandbox. A real epoch 1 is over before anybody warms up."""
HOLD_SECONDS = 24 * 3600.0
"""Longest wait at the boundary for a new epoch (no standby is left and nobody adds a machine)."""


class Released(SystemExit):
    """This rank's machine has left the job in good order; the script ends here."""

    def __init__(self) -> None:
        super().__init__(0)


class Session:
    """The connection of one rank process to its machine and its peers.

    Args:
        env: what the machine program told this process.
        limit: seconds that one collective call may take.

    Attributes:
        settled: this process has its place for good; a standby only once it has the state that belongs there.
        unsure: an epoch that this rank has entered and that may yet be given up in favour of a machine that
            left for it; 0: none.
        on_place: called on the main thread when a standby has taken its place, with the ranks that each
            of its groups had before, by local name.
    """

    def __init__(self, env: Environment, limit: float) -> None:
        self.env = env
        self.sandbox = env.mode == "sandbox"
        self.life = new_life(env.machine, env.slot)
        self.orders = OrderBook()
        self.points = Points(env.faults, env.slot)
        self.unsure = self._sure = 0
        self._released = False
        self._completed = False
        self._failed: str | None = None
        self._unfit: str | None = None
        self.settled = not self.sandbox
        self._neighbours: SandboxPeers | None = None
        self._roles: RolesFound | None = None
        self._on_roles: Callable[[RolesFound], None] | None = None
        self.on_place: Callable[[dict[str, tuple[int, ...]]], None] = lambda _: None
        tls = LinkTls.read(env.link_tls) if env.link_tls else None
        table = LinkTable(env.job, self.life, env.secret, env.host, tls=tls)
        table.unreached.tell = self._unreached
        self.engine = Engine(table, self._epoch_broke, self._link_lost)
        self.communicator = Communicator(self.engine, env.rank, env.world_size, env.ranks_per_machine, limit)
        self.control = ControlLine(env.socket, self._heard)
        self.reports = Reports(env, self.control.say)

    @property
    def rank(self) -> int:
        """Own global rank."""
        return self.communicator.rank

    @property
    def leads(self) -> bool:
        """This is the first rank that is there: it speaks where one is enough."""
        seat, slot = divmod(self.rank, self.communicator.ranks_per_machine)
        return slot == 0 and all(other in self.communicator.vacant for other in range(seat))

    @property
    def order(self) -> Order | None:
        """The order of the epoch that this rank works in; None before its first."""
        return self.orders.of(self.engine.epoch)

    def start(self) -> None:
        """Say that this process is up, and begin to hear orders."""
        table = self.engine.table
        self.reports.started(Endpoint(host=table.host, port=table.port, life=self.life))
        self.control.start()

    def say(self, event: Event) -> None:
        """Tell the machine program."""
        self.control.say(event)

    def when_roles(self, action: Callable[[RolesFound], None]) -> None:
        """Call ``action`` once the roles are known (control thread), or now."""
        with self.orders.changed:
            self._on_roles, known = action, self._roles
        if known is not None:
            action(known)

    def unreplicated(self, rank: int) -> bool:
        """Whether the roles say that no other machine has a rank's state; False while they are unknown."""
        roles = self._roles
        return roles is not None and any(is_in(row, rank) for row in roles.unreplicated)

    def say_lost(self, error: StateLost) -> None:
        """Tell why this rank, and every other one, is about to end."""
        self.reports.state_lost(error, live=not self.sandbox or self.settled)

    def close(self) -> None:
        """Leave: say BYE on every link, hang up."""
        self.engine.stop()
        self.control.close()

    # -- what the boundary asks (main thread) --------------------------------------------------

    def prepared_epoch(self) -> int:
        """The highest coming epoch that this rank is ready for; 0 when there is none."""
        order = self.orders.next_prepared(self.engine.epoch)
        return 0 if order is None else order.epoch

    def order_for(self, epoch: int) -> Order | None:
        """The order of an epoch that the ranks agreed on; None when it was given up since, or if we leave."""
        order = self.orders.of(epoch)
        if order is None or order.plan is None or self.orders.is_aborted(epoch):
            return None
        return order

    def wait_for_epoch(self) -> Order:
        """Wait until this rank is prepared for a coming epoch.

        A rank that waits says so: should nobody else know that this epoch is over (an agreed switch
        was given up, a call took too long), the services make a new one.

        Raises:
            Released: this machine leaves the job.
            JobError: the job failed, or nothing came within a day.
        """
        started = time.monotonic()
        ask_at = started + ASK_SECONDS
        while True:
            with self.orders.changed:
                self._check()
                order = self.orders.next_prepared(self.engine.epoch)
                if order is not None and order.plan is not None:
                    return order
                self.orders.changed.wait(1.0)
            now = time.monotonic()
            if now > ask_at:
                ask_at = now + REMIND_SECONDS
                self._say_waiting(now - started)
            if now - started > HOLD_SECONDS:
                raise JobError(
                    f"rank {self.rank} was held at the boundary for {HOLD_SECONDS / 3600:g} h; giving up"
                )

    def _say_waiting(self, seconds: float) -> None:
        if seconds > REMIND_SECONDS:
            log.warning("rank %d is held at the boundary since %.0f s: no new epoch came", self.rank, seconds)
        order = self.order
        if order is not None and not self._leaves_after(order.epoch):
            self.reports.broken(
                order, self.rank, self.rank, f"waits at the boundary for a new epoch since {seconds:.0f} s"
            )

    def _leaves_after(self, epoch: int) -> bool:
        return any(order.plan is None for order in self.orders.after(epoch))

    def wait_for_end(self, limit: float) -> bool:
        """Wait until the job is complete. False: the epoch broke instead, and a meeting is due."""
        until = time.monotonic() + limit
        with self.orders.changed:
            while not self._completed:
                self._check()
                if self.engine.broken:
                    return False
                if time.monotonic() > until:
                    raise JobError(
                        f"rank {self.rank} has done all its steps, but the job was not completed within "
                        f"{limit:g} s; are the switcher service and the bus running?"
                    )
                self.orders.changed.wait(0.2)
        return True

    def _check(self) -> None:
        if self._unfit is not None:
            raise JobError(self._unfit)
        if self._failed is not None:
            raise JobError(f"the job failed: {self._failed}")
        if self._released:
            raise Released
        if self.engine.fatal is not None:
            raise JobError(f"rank {self.rank} cannot go on: {self.engine.fatal}") from self.engine.fatal

    def adopt(self, order: Order) -> dict[str, int]:
        """Enter an order's epoch; it is broken at once when it was given up meanwhile."""
        if order.plan is None:
            raise JobError(f"rank {self.rank} has no place in epoch {order.epoch}")
        if order.place is not None and not self.settled:
            # The links of the sandbox, and of a place that was given up, are not those of this epoch.
            self.communicator.plan = None
            self.on_place(self.communicator.take(order.place))
        self.communicator.vacant = order.layout.vacant
        plan = self.communicator.as_of_now(order.plan)
        counts = self.engine.adopt(plan)
        self.communicator.plan = plan
        with self.orders.changed:
            may_come_back = order.event.kind == "move" or len(order.event.leavers) > 1
            self.unsure = order.epoch if may_come_back and order.epoch > self._sure else 0
        self.orders.forget_before(order.epoch)
        if self.orders.is_aborted(order.epoch):
            self.engine.break_epoch(order.epoch, f"epoch {order.epoch} was given up", told=True)
        return counts

    def make_sure(self) -> None:
        """Before a vote: wait until the switch to this epoch is committed, where a machine left that lives.

        Were the switch given up after a step, that machine would come back without the step.

        Raises:
            Released, JobError: see :meth:`wait_for_epoch`.
        """
        with self.orders.changed:
            while self.unsure and not self.engine.broken:
                self._check()
                self.orders.changed.wait(0.2)

    # -- the sandbox (main thread) -------------------------------------------------------------------

    def meet_neighbours(self) -> None:
        """In the sandbox: learn where the other sandbox ranks of this machine are, once they are needed.

        Raises:
            JobError: the machine program does not say.
        """
        if self.communicator.plan is not None:
            return
        until = time.monotonic() + NEIGHBOURS_SECONDS
        with self.orders.changed:
            while self._neighbours is None:
                self._check()
                if time.monotonic() > until:
                    raise JobError(
                        f"sandbox rank {self.rank} (slot {self.env.slot}): the other ranks of "
                        f"{self.env.machine} in role {self.env.role!r} have not all started within "
                        f"{NEIGHBOURS_SECONDS:g} s"
                    )
                self.orders.changed.wait(0.2)
        first = self.rank - self.env.slot
        ends = enumerate(self._neighbours.endpoints, first)
        peers = {rank: Peer(end.host, end.port, end.life, beside=True) for rank, end in ends}
        plan = Plan(SANDBOX_EPOCH, self.rank, peers, frozenset(), NEIGHBOURS_SECONDS)
        self.engine.adopt(plan)
        self.communicator.plan = plan

    # -- what the machine program says (control thread) ------------------------------------------

    def _heard(self, event: Event) -> None:
        if isinstance(event, SwitchPrepare):
            self._prepare(event)
        elif isinstance(event, SwitchAborted):
            self._abort(event)
        elif isinstance(event, MachineFailed):
            self._peer_failed(event.machine)
        elif isinstance(event, SwitchCommitted):
            with self.orders.changed:
                self._sure = max(self._sure, event.epoch)
                self.unsure = self.unsure if self.unsure > self._sure else 0
                self.orders.changed.notify_all()
            if self.env.machine in event.leavers:
                self._tell(released=True)
        elif isinstance(event, JobCompleted):
            self._tell(completed=True)
        elif isinstance(event, JobFailed):
            self._tell(failed=event.reason)
        elif isinstance(event, RolesFound):
            self._hear_roles(event)
        elif isinstance(event, SandboxPeers):
            with self.orders.changed:
                self._neighbours = event
                self.orders.changed.notify_all()

    def _hear_roles(self, event: RolesFound) -> None:
        with self.orders.changed:
            self._roles, action = event, self._on_roles
        if action is not None:
            action(event)

    def _tell(self, *, released: bool = False, completed: bool = False, failed: str | None = None) -> None:
        with self.orders.changed:
            self._released |= released
            self._completed |= completed
            self._failed = self._failed or failed
            self.orders.changed.notify_all()

    def _prepare(self, event: SwitchPrepare) -> None:
        if event.generation != self.env.generation or event.epoch <= self.engine.epoch:
            return
        self.points.hit("prepare")
        layout = Layout(event.epoch, event.machines, event.ranks_per_machine)
        if self.env.machine not in layout.machines:
            if self.orders.add(Order(event, layout, None)):
                self.orders.prepared(event.epoch)
                self.points.hit("prepared")
            return
        rank = layout.ranks_of(self.env.machine)[self.env.slot]
        if self.settled and rank != self.rank:
            log.error("rank %d cannot become rank %d in epoch %d", self.rank, rank, event.epoch)
            return
        communicator = self.communicator
        try:
            place = communicator.place()
            if not self.settled:
                place = place_for(communicator, rank, Order(event, layout, None).told(rank))
        except LinkError as error:
            with self.orders.changed:
                self._unfit = f"epoch {event.epoch}: {error}"
                self.orders.changed.notify_all()
            return
        order = order_of(event, layout, place, communicator, self.order, settled=self.settled)
        plan = order.plan
        assert plan is not None, "a rank of the layout has links to make"
        if not self.orders.add(order):
            return

        def ready(seconds: float, made: int, kept: int) -> None:
            self.orders.prepared(event.epoch)
            self.reports.prepared(event.epoch, rank, seconds, made, kept)
            self.points.hit("prepared")

        table = self.engine.table
        # A group may be destroyed between here and there.
        self.engine.call(lambda: table.prepare(communicator.still_wanted(plan, place), ready))

    def _abort(self, event: SwitchAborted) -> None:
        self.orders.abort(event.epoch)
        table = self.engine.table
        self.engine.call(lambda: table.abandon(event.epoch))
        self.engine.break_epoch(event.epoch, f"epoch {event.epoch} was given up: {event.reason}", told=True)

    def _peer_failed(self, machine: str) -> None:
        order = self.order
        if order is None or machine == self.env.machine or order.plan is None:
            return
        ranks = order.layout.ranks_of(machine)
        if ranks:
            dead = [order.plan.peers[rank].life for rank in ranks if rank in order.plan.peers]
            self.engine.break_epoch(order.epoch, f"machine {machine} failed", told=True, dead=dead)

    # -- what the engine says (engine's thread) --------------------------------------------------

    def _epoch_broke(self, epoch: int, peer: int | None, reason: str, told: bool) -> None:
        with self.orders.changed:
            self.orders.changed.notify_all()
        order = self.orders.of(epoch)
        if not told and order is not None and not self._leaves_after(epoch):
            self.reports.broken(order, self.rank, self.rank if peer is None else peer, reason)

    def _link_lost(self, connection: Connection, reason: str) -> None:
        for order in self.orders.after(self.engine.epoch):
            peer = None if order.plan is None else order.plan.peers.get(connection.peer)
            if peer is not None and peer.life == connection.peer_life:
                self.reports.broken(order, self.rank, connection.peer, reason)
                return

    def _unreached(self, plan: Plan, item: Link, seconds: float, reason: str) -> None:
        order = self.orders.of(plan.epoch)
        if order is not None and not self.orders.is_aborted(plan.epoch):
            self.reports.unreached(order, plan.rank, item.other(plan.rank), seconds, reason)
