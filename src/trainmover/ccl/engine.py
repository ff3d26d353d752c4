"""The engine: one thread per rank process that owns every connection and moves all bytes.

Walks (collectives written as generators over a group's links) run here, woken by their
transfers; calls of one group run in the order in which they were made.  The main thread hands
work over with :meth:`Engine.call` and never touches a socket.

*Broken is a state.*  When a connection is lost, or a peer says BREAK, the epoch is broken: every
walk ends at once through its ``abort``, every healthy connection is told with a BREAK frame and
kept, and later walks of this epoch end as they come.  Only :meth:`Engine.adopt` of the next
epoch ends that state.  How connections come to be is :mod:`trainmover.ccl.table`'s business.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from trainmover.ccl import frames, reach
from trainmover.ccl.connection import Connection
from trainmover.ccl.delivery import Deliveries
from trainmover.ccl.poller import Poller
from trainmover.ccl.schedule import Schedule
from trainmover.ccl.table import LinkTable, Plan
from trainmover.ccl.tags import Mismatch
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.walk import Answer, CallsOpen, EpochBroken, Steps, Walk
from trainmover.ccl.wheel import Wheel
from trainmover.errors import LinkError
from trainmover.topology.links import Link

__all__ = ["CallsOpen", "Engine", "EpochBroken", "Steps", "Walk"]

log = logging.getLogger(__name__)

STOPPED = "the engine has stopped"

Begins = Literal["engine", "here", "waits"]
"""Where a walk begins: on the engine's thread; ``here``, on its caller's, as that is short; or there
because the caller ``waits`` for its end and carries it out."""


class Engine:
    """Owner of a rank process's connections and of its one communication thread.

    Args:
        table: where links and their connections are kept.
        on_break: called on the engine's thread as ``(epoch, peer or None, reason, told)`` when an
            epoch breaks; ``told`` is True when somebody else said so, who has reported it already.
        on_lost: called on the engine's thread when a connection made for a coming epoch is lost.
    """

    def __init__(
        self,
        table: LinkTable,
        on_break: Callable[[int, int | None, str, bool], None],
        on_lost: Callable[[Connection, str], None] = lambda *_: None,
    ) -> None:
        self.table = table
        self.fatal: Exception | None = None
        """An error that no new epoch can mend (two ranks call different collectives)."""
        self._on_break = on_break
        self._on_lost = on_lost
        self.epoch = 0
        """The current epoch; 0 before the first. Set by the engine alone, like the next two."""
        self.broken = False
        self.reason = ""
        """Why the epoch is broken; of the last broken one otherwise."""
        self._void: dict[int, str] = {}
        self.schedule = Schedule(self)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()
        self._wheel = Wheel()
        self._deliveries = Deliveries(self._wheel, self._turn)
        self._poller = Poller(self._wheel.fd, self._wheel.heard, table.socket_ready)
        self.lend, self.give_back = self._poller.lend, self._poller.give_back
        self.watch, self.unwatch = self._poller.watch, self._poller.unwatch
        self.watch_socket = self._poller.watch_socket
        self.deliver = self._deliveries.deliver
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="trainmover-engine", daemon=True)
        table.attach(self)
        self._thread.start()

    # -- from any thread -----------------------------------------------------------------------

    def call(self, action: Callable[[], None]) -> bool:
        """Run ``action`` on the engine's thread. False: the engine has stopped, it will not run."""
        return self._wheel.ask(action)

    def ask(self, action: Callable[[], Any], limit: float = 30.0) -> Any:
        """Run ``action`` on the engine's thread and wait for what it returns.

        Raises:
            EpochBroken: the engine has stopped.
        """
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(action())
            except Exception as error:  # noqa: BLE001 - handed to whoever asked
                answer.set_exception(error)

        if not self.call(run):
            raise EpochBroken(STOPPED)
        return answer.result(limit)

    def submit(self, key: str, walk: Walk, begins: Begins = "engine") -> None:
        """Queue a walk behind the earlier ones of the same key (a group's channel).

        Args:
            key: name of the queue.
            walk: what to run.
            begins: where.
        """
        if begins == "waits":
            self.carry_out(key, walk)
            return
        self._deliveries.step_aside()
        if begins == "here" and self._wheel.take_if_free():
            try:
                self._run_calls()
                self._enqueue(key, walk)
                self.schedule.run()
            except BaseException as error:
                self._failed(error)
                raise
            finally:
                self._wheel.leave(guest=False, busy=self.schedule.busy)
        elif not self.call(lambda: self._enqueue(key, walk)):
            walk.abort(STOPPED)

    def send_at_once(self, key: str, link: Link, transfer: Transfer, otherwise: Callable[[], Walk]) -> bool:
        """Send a message from this thread, where nothing is before it. False: that cannot be done.

        Args:
            key: queue of what is sent to this peer.
            link: the message's.
            transfer: the message.
            otherwise: makes the walk that waits until the last of it is out, if it is not at once.
        """
        if not self._wheel.take_if_free():
            return False
        try:
            self._run_calls()
            connection = None if self.broken or self.schedule.has(key) else self.table.pairs.free(link)
            if connection is None:
                return False
            connection.send(transfer)
            if not transfer.done:
                self._enqueue(key, otherwise())
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._wheel.leave(guest=False, busy=self.schedule.busy, soon=not transfer.done)
        return True

    def receive_at_once(self, key: str, link: Link, transfer: Transfer, walk: Walk) -> bool:
        """Post a receive from this thread. False: that cannot be done.

        Args:
            key: queue of this receive alone.
            link: the message's.
            transfer: memory for the message.
            walk: has nothing to do but to end with the transfer.
        """
        if not self._wheel.take_if_free():
            return False
        try:
            self._run_calls()
            self.schedule.run()  # earlier receives are posted before this one
            if self.broken:
                return False
            transfer.waiter = walk
            self.schedule.watch(key, walk)
            try:
                self.table.pairs.receive(link, transfer)
            except LinkError as error:
                self.walk_failed(walk, error)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            # Mostly its caller waits for it next; what comes earlier the system keeps.
            self._wheel.leave(guest=False, busy=self.schedule.busy, soon=False)
        return True

    def drive(self, done: Callable[[], bool], limit: float = 3600.0) -> None:
        """Run the engine on this thread until ``done()``, instead of waiting for its own thread to do so.

        It may return earlier (the engine stops, another thread is at it): then wait as usual.
        """
        if done() or threading.current_thread() is self._thread or not self._wheel.take(limit):
            return
        try:
            while not done() and self._turn():
                pass
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._wheel.leave(guest=True, busy=self.schedule.busy)

    def run(self, key: str, label: str, body: Callable[[], Steps], limit: float) -> Any:
        """Carry a walk out on this thread, at the wheel where that can be had, and return its result.

        Raises:
            EpochBroken: the epoch broke before the walk's end.
        """
        answer = Answer()
        walk = Walk(label, body, answer.give, answer.refuse, limit)
        self.carry_out(key, walk)
        return answer.wait(limit + 60.0)

    def carry_out(self, key: str, walk: Walk) -> None:
        """Carry a walk out on this thread, which would wait for it anyway, if the wheel can be had.

        Its ``done`` or its ``abort`` was mostly called when this returns; else they will be, by others.
        """
        aside = self._deliveries.step_aside() or threading.current_thread() is self._thread
        if aside or not self._wheel.take(walk.limit):
            if not self.call(lambda: self._enqueue(key, walk)):
                walk.abort(STOPPED)
            return
        try:
            self._run_calls()
            if self.broken:
                self._enqueue(key, walk)
            else:
                self.schedule.carry_out(key, walk, self._turn)
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._wheel.leave(guest=True, busy=self.schedule.busy)

    def adopt(self, plan: Plan) -> dict[str, int]:
        """Enter the plan's epoch: swap the changed links, keep the others, end the broken state.

        Returns:
            Counts: ``swapped``, ``kept`` and ``closed`` links.
        """
        counts: dict[str, int] = self.ask(lambda: self._adopt(plan))
        return counts

    def break_epoch(self, epoch: int, reason: str, *, told: bool, dead: Sequence[str] = ()) -> None:
        """Declare an epoch broken, if it is still the current one.

        Args:
            epoch: which one is meant.
            reason: for messages.
            told: somebody else said so, who has reported it already.
            dead: lives of processes that are known to be gone; their connections are closed.
        """

        def act() -> None:
            if epoch == self.epoch:
                for life in dead:
                    self.table.drop_process(life)
                self._break(reason, None, told)

        self.call(act)

    def stop(self, limit: float = 5.0) -> None:
        """Say BYE on every link, flush and end the thread."""

        def leave() -> None:
            # First of all: a peer that has left a moment earlier is no loss that others must hear of.
            self._stopping = True
            for connection in self.table.connections():
                connection.signal(frames.BYE)

        self.call(leave)
        self._thread.join(limit)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run ``action`` on the engine's thread after a while (engine's thread only)."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._ticket), action))

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        self.schedule.start()
        self._look_for_peers()
        leave_at = 0.0
        while True:
            self._wheel.hold()
            self._turn()
            if self._stopping:
                now = time.monotonic()
                leave_at = leave_at or now + 3.0
                if now > leave_at or not any(c.wants_write for c in self.table.connections()):
                    break
            self._wheel.let_go()
        self.broken, self.reason = True, STOPPED
        self.schedule.end_all(STOPPED)
        self.table.close()
        self._poller.close()
        self._wheel.end()
        self._run_calls()
        self._wheel.let_go()

    def _turn(self) -> bool:
        """One round of the engine's loop. False: a guest makes no other."""
        timers, wheel, schedule = self._timers, self._wheel, self.schedule
        try:
            timeout = 0.2 if self._stopping else 5.0
            if schedule.runnables or wheel.asked:
                timeout = 0.0
            elif timers and (left := timers[0][0] - time.monotonic()) < timeout:
                timeout = left if left > 0.0 else 0.0
            self._poller.wait(timeout)
            if wheel.asked:
                self._run_calls()
            if timers and timers[0][0] <= time.monotonic():
                self._run_timers()
            if schedule.runnables:
                schedule.run()
        except Exception as error:
            log.exception("the engine failed")
            self._failed(error)
        return not self._stopping

    def _failed(self, error: BaseException) -> None:
        self.fatal = error if isinstance(error, Exception) else None
        self._break(f"the engine failed: {error!r}", None)

    def _look_for_peers(self) -> None:
        """Give up connections whose other end does not answer any more."""
        self.later(reach.LOOK_SECONDS, self._look_for_peers)
        for connection in reach.unreached(self.table.connections(), time.monotonic()):
            connection.give_up(f"nothing was acknowledged for {reach.UNREACHED_SECONDS:g} s")

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            self._guard(heapq.heappop(self._timers)[2])

    def _run_calls(self) -> None:
        actions = self._wheel.actions()
        while actions:
            self._guard(actions.popleft())

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            log.exception("the engine failed in %s", action)
            self._break(f"the engine failed: {error!r}", None)

    # -- what the schedule tells (Judge) -----------------------------------------------------------

    def _enqueue(self, key: str, walk: Walk) -> None:
        if self.broken:
            walk.abort(f"epoch {self.epoch} is broken: {self.reason}")
        else:
            self.schedule.add(key, walk)

    def walk_failed(self, walk: Walk, error: Exception) -> None:
        if isinstance(error, Mismatch):
            self._mismatch(error)
        elif isinstance(error, LinkError):
            self._break(f"{walk.label}: {error}", None)
        else:
            log.error("%s failed", walk.label, exc_info=error)
            self.fatal = error
            self._break(f"{walk.label} failed: {error!r}", None)

    def overdue(self, walk: Walk) -> None:
        self._break(f"{walk.label}: Timed out waiting {walk.limit * 1000:.0f}ms for the peers", None)

    def waits(self, walk: Walk) -> None:
        for connection in self.table.connections_of(walk.key):
            connection.signal(frames.WAITS, (walk.tag, walk.number))

    # -- epochs --------------------------------------------------------------------------------

    def _mismatch(self, error: Mismatch) -> None:
        """Another rank calls something else: no epoch can mend that, and both ranks shall know it."""
        error.me = self.table.rank
        self.fatal = error
        for connection in self.table.connections():
            if connection.peer == error.peer and not self.broken:
                connection.signal(frames.BREAK, (error.our_tag, error.tag))
        self._break(str(error), error.peer)

    def _break(self, reason: str, peer: int | None, told: bool = False) -> None:
        if self.broken:
            return
        self.broken, self.reason = True, reason
        log.info("epoch %d is broken: %s", self.epoch, reason)
        for connection in self.table.connections():
            connection.cancel()
            connection.signal(frames.BREAK)
            connection.readable()
        self.table.pairs.clear()
        self.schedule.end_all(reason)
        self._on_break(self.epoch, peer, reason, told)

    def _adopt(self, plan: Plan) -> dict[str, int]:
        if plan.epoch <= self.epoch:
            raise LinkError(f"epoch {plan.epoch} cannot follow epoch {self.epoch}")
        if not self.broken and (left := self.schedule.labels()):
            raise CallsOpen(f"calls are still open at the boundary: {', '.join(left)}")
        self.epoch = plan.epoch
        self.broken = False
        self.schedule.roll.clear()
        counts = self.table.swap(plan)
        missing = self.table.missing(plan)
        for connection in self.table.connections():
            connection.new_epoch()
        if void := self._void.pop(plan.epoch, None):
            self._break(void, None, told=True)
        elif missing:
            self._break(f"no connection for {missing[0]}", missing[0].other(plan.rank))
        self._void = {epoch: why for epoch, why in self._void.items() if epoch > self.epoch}
        return counts

    # -- what connections tell (Listener) --------------------------------------------------------

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self.unwatch(connection)
        in_use = self.table.forget(connection)
        if self._stopping:
            return
        if in_use and isinstance(connection.fault, Mismatch):
            self._mismatch(connection.fault)
        elif in_use:
            self._break(f"lost rank {connection.peer}: {reason}", connection.peer)
        else:
            self._on_lost(connection, reason)

    def unreached(self, peer: int, reason: str) -> None:
        """A message waits for a peer that nobody answers for: it will not go out in this epoch."""
        self._break(f"rank {peer} is not reached: {reason}", peer)

    def break_received(self, connection: Connection, epoch: int, tags: tuple[int, int]) -> None:
        reason = f"rank {connection.peer} says that epoch {epoch} is broken"
        if epoch == self.epoch and any(tags) and self.fatal is None:
            fault = Mismatch(connection.peer, tags[1], None, tags[0], None)
            fault.me = self.table.rank
            self.fatal, reason = fault, str(fault)
        if epoch == self.epoch:
            self._break(reason, None, told=True)
        elif epoch > self.epoch:
            self._void[epoch] = reason

    def peer_waits(self, connection: Connection, epoch: int, tag: int, number: int) -> None:
        group = self.table.group_of(connection)
        if epoch != self.epoch or self.broken or group is None:
            return
        ours = self.schedule.roll.tag(group, number)
        if ours not in (None, tag):
            self._mismatch(Mismatch(connection.peer, ours, None, tag, None))

    def interest_changed(self, connection: Connection, mask: int) -> None:
        if connection.closed or not self._poller.watches(connection):
            return
        if connection.ended:
            self.unwatch(connection)
            self.table.left(connection)
        else:
            self._poller.change(connection, mask)
