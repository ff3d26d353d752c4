"""One payload on its way over a link, out or in, and whoever waits for it."""

from __future__ import annotations

from typing import Protocol

Buffer = memoryview


class Waiter(Protocol):
    """Whoever waits for transfers (a walk)."""

    def transfer_done(self) -> None:
        """One awaited transfer has finished."""


class Transfer:
    """One payload on its way, out or in."""

    __slots__ = ("done", "keep", "most", "source", "tag", "view", "waiter")

    def __init__(
        self, view: Buffer, tag: int, keep: object = None, source: int | None = None, most: int = 0
    ) -> None:
        self.view = view
        self.most = most
        """Where a payload of unknown size is received: its limit. ``view`` is made when it comes."""
        self.tag = tag
        self.source = source
        """Rank that sends it, where receives are matched by source; None: not known yet."""
        self.keep = keep
        """Owner of the memory, held until the bytes are out."""
        self.done = False
        self.waiter: Waiter | None = None

    def finish(self) -> None:
        self.done = True
        self.keep = None
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.transfer_done()
