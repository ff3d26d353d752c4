"""Virtual time: an asyncio event loop whose clock jumps to whatever is due next.

What lives here: the loop, and the *processes* that share it.  What never lives here: anything about
TrainMover.

The services' shell is asyncio code.  Here it runs as it is, on a loop that has no sockets, no
threads and no waiting: when nothing is ready, the clock is put to the earliest deadline.  What is
due at the same instant runs in the order in which it was asked for, so a run depends on nothing but
its inputs.

Each callback belongs to the process that was current when it was asked for (a context variable, which
tasks inherit).  A process can be frozen, as by SIGSTOP: its callbacks wait until it is thawed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Process:
    """A program that can be frozen; see the module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.waiting: list[Timer] = []


NOBODY = Process("the simulation")

_current: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=NOBODY)


class Timer:
    """A callback that is to run, at once or at a time; has what tasks use of an ``asyncio.TimerHandle``."""

    __slots__ = ("act", "arguments", "context", "order", "over", "when_due")

    def __init__(
        self,
        when: float,
        order: int,
        act: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self.when_due, self.order, self.act, self.arguments = when, order, act, arguments
        self.context, self.over = context, False

    def cancel(self) -> None:
        """It will not run."""
        self.over = True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.over

    def when(self) -> float:
        """When it is due."""
        return self.when_due

    def __lt__(self, other: Timer) -> bool:
        return (self.when_due, self.order) < (other.when_due, other.order)

    def __repr__(self) -> str:
        return f"<{self.act} at {self.when_due:.6f}>"


class VirtualLoop:
    """The loop; see the module.  It has what tasks, futures and queues use of an event loop.

    Attributes:
        now: virtual seconds since the beginning.
        failures: errors that nobody looked at, as asyncio describes them.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.failures: list[dict[str, Any]] = []
        self._ready: deque[Timer] = deque()
        self._heap: list[Timer] = []
        self._order = 0
        self._outside = contextvars.Context()

    # -- what tasks ask for ------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Timer:
        """See asyncio."""
        timer = self._timer(self.now, callback, args, context)
        self._ready.append(timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        """See asyncio."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        """See asyncio."""
        timer = self._timer(max(when, self.now), callback, args, context)
        heapq.heappush(self._heap, timer)
        return timer

    def _timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> Timer:
        self._order += 1
        return Timer(
            when, self._order, callback, args, contextvars.copy_context() if context is None else context
        )

    def later(self, delay: float, act: Callable[..., object], *args: Any) -> Timer:
        """Call ``act`` after so many seconds, whichever process runs now, as nobody's."""
        return self.call_at(self.now + delay, act, *args, context=self._outside)

    def at(self, when: float, act: Callable[..., object], *args: Any) -> Timer:
        """Call ``act`` at a time, as nobody's."""
        return self.call_at(when, act, *args, context=self._outside)

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def create_task(
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """See asyncio."""
        return asyncio.Task(work, loop=cast("asyncio.AbstractEventLoop", self), name=name, context=context)

    def get_debug(self) -> bool:
        """See asyncio: never."""
        return False

    def is_running(self) -> bool:
        """See asyncio."""
        return asyncio._get_running_loop() is cast("asyncio.AbstractEventLoop", self)

    def is_closed(self) -> bool:
        """See asyncio."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Somebody's error that nobody looked at: kept for the report."""
        self.failures.append(context)

    # -- processes ---------------------------------------------------------------------------------

    def within(self, process: Process) -> contextvars.Context:
        """The context of a process: pass it to ``call_soon`` or ``create_task``."""
        context = contextvars.copy_context()
        context.run(_current.set, process)
        return context

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on with what it has missed."""
        process.frozen = False
        waiting, process.waiting = process.waiting, []
        for timer in waiting:
            timer.when_due = self.now
            self._ready.append(timer)

    # -- running -----------------------------------------------------------------------------------

    def run_until(self, over: Callable[[], bool], limit: float) -> bool:
        """Run until ``over()`` (asked between two callbacks) or until the time; True when it was over."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self))
        try:
            while not over():
                timer = self._next(limit)
                if timer is None:
                    return False
                process = timer.context.get(_current, NOBODY)
                if process.frozen:
                    process.waiting.append(timer)
                else:
                    timer.context.run(timer.act, *timer.arguments)
            return True
        finally:
            asyncio._set_running_loop(before)

    def _next(self, limit: float) -> Timer | None:
        while True:
            if self._ready:
                timer = self._ready.popleft()
            elif self._heap and self._heap[0].when_due <= limit:
                timer = heapq.heappop(self._heap)
                self.now = max(self.now, timer.when_due)
            else:
                self.now = max(self.now, limit)
                return None
            if not timer.over:
                return timer
