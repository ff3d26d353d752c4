"""A walk: one running collective, a generator that the engine wakes when its transfers are done.

What lives here: how one is begun, woken and dropped.  Which one runs when, and what a broken epoch
does to them, is :mod:`trainmover.ccl.schedule`'s and :mod:`trainmover.ccl.engine`'s business.
"""

from __future__ import annotations

import inspect
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
