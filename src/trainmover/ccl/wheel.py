"""Who runs the engine: its own thread, or for a while a thread that waits for it.

A call that somebody waits for would cost two changes of thread more than it needs: to the engine's
thread and back.  So a thread that waits takes the *wheel* and runs the engine itself until what it
waits for has ended (it is the engine's *guest*; one at a time).  The engine's thread then keeps away
for a moment, because the next such call is likely to follow soon, and takes the wheel again when none does.
What must not wait for that moment wakes it.

Whoever holds the wheel is "the engine's thread" to everything else: there is never more than one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

REST_SECONDS = 0.002
"""How long the engine's thread keeps away after a guest has left."""
VISIT_SECONDS = 0.005
"""How often it looks whether a guest is still there."""

Action = Callable[[], None]


class Wheel:
    """The engine's wheel, and what other threads have asked of it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when something was asked: whoever waits for sockets waits for it too."""
        self.ended = False
        self._lock = threading.Lock()
        self._door = threading.Lock()
        self.asked: deque[Action] = deque()
        """What other threads have asked, in order; to be looked at by whoever holds the wheel."""
        self._awake = False
        self._guest = threading.Lock()
        self._rest_until = 0.0
        self._rested = threading.Event()
        self._resting = False

    # -- from any thread -----------------------------------------------------------------------

    def ask(self, action: Action) -> bool:
        """Have an action run by whoever holds the wheel. False: the engine has ended."""
        with self._door:
            if self.ended:
                return False
            self.asked.append(action)
            if not self._awake:
                self._awake = True
                os.eventfd_write(self.fd, 1)
                if self._resting:
                    self._rested.set()
        return True

    def take_if_free(self) -> bool:
        """Take the wheel for one short action, if nobody holds it; then :meth:`leave`."""
        return self._lock.acquire(blocking=False) and self._still_there()

    def take(self, limit: float) -> bool:
        """Become the guest: take the wheel as soon as the engine's thread lets go; then :meth:`leave`.

        False: there is another guest, the engine has ended, or ``limit`` seconds were not enough.
        """
        if not self._guest.acquire(blocking=False):
            return False
        if not self._lock.acquire(blocking=False):
            with self._door:
                if not self.ended:
                    os.eventfd_write(self.fd, 1)
            if not self._lock.acquire(timeout=limit):
                self._guest.release()
                return False
        if self._still_there():
            return True
        self._guest.release()
        return False

    def _still_there(self) -> bool:
        if self.ended:
            self._lock.release()
        return not self.ended

    def leave(self, *, guest: bool, busy: bool, soon: bool = True) -> None:
        """Let go of the wheel; ``busy``: there is work that nobody waits for at the wheel.

        ``soon``: it cannot wait for the end of the engine's thread's rest.
        """
        self._rest_until = 0.0 if busy else time.monotonic() + REST_SECONDS
        self._lock.release()
        if guest:
            self._guest.release()
        if busy and soon and self._resting:
            self._rested.set()

    def take_over(self) -> None:
        """Take the wheel from one who lets go of it just now; then :meth:`let_go`."""
        self._lock.acquire()

    # -- the engine's thread -------------------------------------------------------------------

    def hold(self) -> None:
        """Take the wheel, after a rest where guests come and go."""
        while (visited := self._guest.locked()) or (not self._awake and time.monotonic() < self._rest_until):
            self._resting = True
            if visited or not self._awake:
                self._rested.wait(VISIT_SECONDS if visited else REST_SECONDS)
            self._resting = False
            self._rested.clear()
        self._lock.acquire()

    def let_go(self) -> None:
        """Let go of the wheel, so that a guest can take it."""
        self._lock.release()

    # -- whoever holds the wheel ---------------------------------------------------------------

    def heard(self) -> None:
        """The descriptor was readable."""
        os.eventfd_read(self.fd)
        self._awake = False

    def actions(self) -> deque[Action]:
        """What was asked, to be emptied from the left."""
        self._awake = False
        return self.asked

    def end(self) -> None:
        """The engine has ended: nothing is asked of it any more."""
        with self._door:
            self.ended = True
            os.close(self.fd)
