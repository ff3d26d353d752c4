"""Which walk runs when: calls of one queue in the order in which they were made, each within its limit.

Walks are started, woken by their transfers, and ended here, always by whoever is at the engine's
wheel.  What an error in one of them means is the engine's business (:class:`Judge`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from trainmover.ccl.rollcall import RollCall
from trainmover.ccl.walk import Walk
from trainmover.errors import LinkError

log = logging.getLogger(__name__)

LIMIT_CHECK_SECONDS = 1.0

TELL_SECONDS = 1.0
"""A collective that takes as long as this tells the peers what it is; then at twice the time, and so on."""

EXACT_LIMIT_SECONDS = 10.0
"""Shorter limits than this are looked after one by one."""


class Judge(Protocol):
    """Decides what an error means."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action after a while."""

    def deliver(self, done: Callable[[Any], None], result: Any) -> None:
        """Give a walk's result to its owner."""

    def walk_failed(self, walk: Walk, error: Exception) -> None:
        """A walk ended with an error."""

    def overdue(self, walk: Walk) -> None:
        """A walk has not ended within its limit."""

    def waits(self, walk: Walk) -> None:
        """A collective takes long."""


class Schedule:
    """The walks of one engine."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.roll = RollCall()
        self._queues: dict[str, deque[Walk]] = {}
        self.runnables: deque[Walk] = deque()
        """Walks that can go on."""

    @property
    def busy(self) -> bool:
        """True while walks are under way."""
        return bool(self._queues)

    def has(self, key: str) -> bool:
        """True while walks of this queue are under way."""
        return key in self._queues

    def labels(self, key: str | None = None) -> list[str]:
        """What is under way, in words; of one queue or of all."""
        queues = self._queues.values() if key is None else [self._queues.get(key, deque())]
        return [walk.label for queue in queues for walk in queue]

    def start(self) -> None:
        """Begin to look after limits."""
        self._look_at_limits()
        self._tell_who_waits()
        self._judge.later(LIMIT_CHECK_SECONDS, self.start)

    def add(self, key: str, walk: Walk) -> None:
        """Queue a walk behind the earlier ones of the same key."""
        if self._admit(key, walk):
            self.runnables.append(walk)

    def _admit(self, key: str, walk: Walk) -> bool:
        """Put a walk into its queue. True: it is its turn."""
        walk.schedule, walk.key = self, key
        if walk.tag:
            walk.number = self.roll.note(key, walk.tag)
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((walk,))
            self._set_out(walk)
            return True
        queue.append(walk)
        return False

    def watch(self, key: str, walk: Walk) -> None:
        """Look after a walk that is under way already, alone in its queue, until it is retired."""
        walk.schedule, walk.key = self, key
        self._queues[key] = deque((walk,))
        self._set_out(walk)

    def runnable(self, walk: Walk) -> None:
        """A walk's transfers are done."""
        self.runnables.append(walk)

    def run(self) -> None:
        """Run what can go on, until everything waits."""
        while self.runnables:
            self._step(self.runnables.popleft())

    def end_all(self, reason: str) -> None:
        """End every walk through its ``abort``."""
        walks = [walk for queue in self._queues.values() for walk in queue]
        self._queues.clear()
        self.runnables.clear()
        for walk in walks:
            walk.drop()
        for walk in walks:
            self.abort(walk, reason)

    @staticmethod
    def abort(walk: Walk, reason: str) -> None:
        """End one walk."""
        try:
            walk.abort(reason)
        except Exception:
            log.exception("%s could not be aborted", walk.label)

    def _begin(self, walk: Walk) -> None:
        self._set_out(walk)
        self.runnables.append(walk)

    def _set_out(self, walk: Walk) -> None:
        """From now on its time counts."""
        now = time.monotonic()
        walk.deadline, walk.tell_at = now + walk.limit, now + TELL_SECONDS
        if walk.limit < EXACT_LIMIT_SECONDS:
            self._judge.later(walk.limit + 0.001, self._look_at_limits)

    def _step(self, walk: Walk) -> None:
        if walk.schedule is None:
            return
        try:
            walk.advance()
            if walk.schedule is None:
                walk.drop()
        except StopIteration as stop:
            self._ended(walk, stop.value)
        except Exception as error:  # noqa: BLE001 - the engine decides
            self._raised(walk, error)

    def _raised(self, walk: Walk, error: Exception) -> None:
        if walk.schedule is not None or isinstance(error, LinkError):
            self._judge.walk_failed(walk, error)

    def _ended(self, walk: Walk, result: Any) -> None:
        if walk.schedule is None:
            return
        self.retire(walk)
        try:
            self._judge.deliver(walk.done, result)
        except Exception as error:
            log.exception("the result of %s could not be delivered", walk.label)
            self._judge.walk_failed(walk, error)
            self.abort(walk, str(error))

    def retire(self, walk: Walk) -> None:
        """A walk has ended: it is the next one's turn in its queue."""
        queue = self._queues[walk.key]
        queue.popleft()
        if queue:
            self._begin(queue[0])
        else:
            del self._queues[walk.key]
        walk.schedule = None

    def carry_out(self, key: str, walk: Walk, turn: Callable[[], bool]) -> None:
        """Run a walk from its begin to its end, where its own thread is at the wheel and waits for it.

        It is in its queue meanwhile like any other, but nothing has to be noted to wake it.

        Args:
            key: its queue.
            walk: what to run.
            turn: one round of the engine's loop; False: this thread makes no other, and the walk may not
                have ended.
        """
        if not self._admit(key, walk):
            while walk.schedule is not None and turn():
                pass
            return
        walk.steps = steps = walk.body()
        try:
            while walk.schedule is not None:
                for transfer in next(steps):
                    while not transfer.done:
                        if walk.is_over() or not turn():
                            return
            walk.drop()
        except StopIteration as stop:
            self._ended(walk, stop.value)
        except Exception as error:  # noqa: BLE001 - the engine decides
            self._raised(walk, error)

    def _look_at_limits(self) -> None:
        now = time.monotonic()
        for queue in self._queues.values():
            if queue and queue[0].deadline and now > queue[0].deadline:
                self._judge.overdue(queue[0])
                break

    def _tell_who_waits(self) -> None:
        now = time.monotonic()
        for queue in list(self._queues.values()):
            walk = queue[0]
            if walk.tag and now >= walk.tell_at > 0.0:
                begun = walk.deadline - walk.limit
                walk.tell_at = now + (now - begun)
                self._judge.waits(walk)
