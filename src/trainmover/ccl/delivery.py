"""Handing a call's result to its owner, whatever the owner does with it.

Completing a future runs its callbacks, here, on the thread at the engine's wheel.  A callback may call
another collective and wait for it (PowerSGD's hook for DDP does, twice): then the thread that would carry
it out is the one that waits.  Calling a collective inside a callback is the sign.  At that moment the thread
lets go of the wheel and a *stand-in* runs the engine until the callback has returned.  It costs a
thread, and only those who do this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trainmover.ccl.wheel import Wheel


class _Visit:
    """One delivery: on which thread, and who runs the engine meanwhile."""

    __slots__ = ("back", "stand_in", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.back: threading.Event | None = None
        self.stand_in: threading.Thread | None = None


class Deliveries:
    """Deliveries of one engine.

    Args:
        wheel: the engine's.
        turn: one round of the engine's loop, for whoever holds the wheel.
    """

    def __init__(self, wheel: Wheel, turn: Callable[[], object]) -> None:
        self._wheel = wheel
        self._turn = turn
        self._visit: _Visit | None = None

    def deliver(self, done: Callable[[Any], None], result: Any) -> None:
        """Call ``done(result)``, from the thread at the wheel, which is there again afterwards."""
        mine = _Visit()
        outer, self._visit = self._visit, mine
        try:
            done(result)
        finally:
            if mine.stand_in is not None and mine.back is not None:
                self._come_back(mine.back, mine.stand_in)
            self._visit = outer

    def step_aside(self) -> bool:
        """Let go of the wheel if this thread is at it and inside a delivery: it may be about to wait.

        Returns:
            Whether it did: then a stand-in is at the wheel.
        """
        mine = self._visit
        if mine is None or mine.thread != threading.get_ident():
            return False
        self._visit = None
        mine.back = threading.Event()
        mine.stand_in = threading.Thread(
            target=self._stand_in, args=(mine.back,), name="trainmover-stand-in", daemon=True
        )
        self._wheel.let_go()
        mine.stand_in.start()
        return True

    def _stand_in(self, back: threading.Event) -> None:
        self._wheel.take_over()
        while not (back.is_set() or self._wheel.ended):
            self._turn()
        self._wheel.let_go()

    def _come_back(self, back: threading.Event, stand_in: threading.Thread) -> None:
        back.set()
        self._wheel.ask(lambda: None)  # wakes it
        stand_in.join()
        self._wheel.take_over()
