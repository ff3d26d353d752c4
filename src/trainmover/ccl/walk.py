"""A walk: one running collective, a generator that the engine wakes when its transfers are done.

What lives here: how one is begun, woken and dropped.  Which one runs when, and what a broken epoch
does to them, is :mod:`trainmover.ccl.schedule`'s and :mod:`trainmover.ccl.engine`'s business.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from trainmover.ccl.transfer import Transfer
from trainmover.errors import LinkError, TrainMoverError

if TYPE_CHECKING:
    from trainmover.ccl.schedule import Schedule

Steps = Generator[list[Transfer], None, Any]
"""A walk's body: yields the transfers that must finish before it goes on; returns its result."""


class CallsOpen(LinkError):
    """Calls of the current epoch are still under way where it should end."""


class EpochBroken(TrainMoverError):
    """The epoch broke while something waited for it; the next epoch settles what to do."""


class Answer:
    """What a walk ends with, for the one thread that waits for it."""

    __slots__ = ("_ended", "_reason", "_result", "given")

    def __init__(self) -> None:
        self.given = False
        self._result: Any = None
        self._reason: str | None = None
        self._ended: threading.Event | None = None

    def give(self, result: Any) -> None:
        """The walk has ended with this result."""
        self._result = result
        self._end()

    def refuse(self, reason: str) -> None:
        """The epoch has broken."""
        self._reason = reason
        self._end()

    def _end(self) -> None:
        self.given = True
        if self._ended is not None:
            self._ended.set()

    def _given(self) -> bool:
        return self.given

    def wait(self, limit: float) -> Any:
        """The walk's result.

        Raises:
            EpochBroken: the epoch broke before the walk's end, or that did not come within ``limit`` seconds.
        """
        if not self.given:
            self._ended = ended = threading.Event()
            if not (self._given() or ended.wait(limit)):
                raise EpochBroken(f"no answer came within {limit:g} s")
        if self._reason is not None:
            raise EpochBroken(self._reason)
        return self._result


class Walk:
    """One running collective: a generator, and what to do at its end.

    Args:
        label: for messages, e.g. ``all_reduce of group 0``; or what makes it, when it is needed.
        body: makes the generator; called on the engine's thread when the walk's turn comes.
        done: called with the result.
        abort: called with the reason when the epoch broke.
        limit: seconds after which the walk breaks the epoch.
        tag: of the call, where it is a collective: all members of a group make the same ones.
    """

    __slots__ = (
        "_label",
        "_waiting",
        "abort",
        "body",
        "deadline",
        "done",
        "key",
        "limit",
        "number",
        "schedule",
        "steps",
        "tag",
        "tell_at",
    )

    def __init__(
        self,
        label: str | Callable[[], str],
        body: Callable[[], Steps],
        done: Callable[[Any], None],
        abort: Callable[[str], None],
        limit: float,
        tag: int = 0,
    ) -> None:
        self._label = label
        self.body = body
        self.done = done
        self.abort = abort
        self.limit = limit
        self.tag = tag
        self.number = 0
        self.deadline = 0.0
        self.tell_at = 0.0
        self.key = ""
        self.steps: Steps | None = None
        self.schedule: Schedule | None = None
        self._waiting = 0

    @property
    def label(self) -> str:
        """What this is, in words."""
        return self._label if isinstance(self._label, str) else self._label()

    def is_over(self) -> bool:
        """True once it has ended, or was ended."""
        return self.schedule is None

    def transfer_done(self) -> None:
        self._waiting -= 1
        if self._waiting == 0 and self.schedule is not None:
            self.schedule.runnable(self)

    def advance(self) -> bool:
        """Run until transfers are outstanding. True: still running."""
        if self.steps is None:
            self.steps = self.body()
        while True:
            transfers = next(self.steps)
            open_ones = [transfer for transfer in transfers if not transfer.done]
            if not open_ones:
                continue
            self._waiting = len(open_ones)
            for transfer in open_ones:
                transfer.waiter = self
            return True

    def drop(self) -> None:
        """Never wake again. A walk whose own send broke the epoch is still running: it ends by itself."""
        self.schedule = None
        if self.steps is not None and inspect.getgeneratorstate(self.steps) != inspect.GEN_RUNNING:
            self.steps.close()
