"""One checkpoint in the making, at one rank: what it has copied, what it waits for, what came of it.

What lives here: the facts and the one wait of an attempt.  What never lives here: files (``shelf``), who
writes what when (``checkpoint``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from trainmover.training.pieces import Piece

GIVE_UP_SECONDS = 600.0
"""Longest wait for the others' parts of a checkpoint."""
POLL_SECONDS, POLL_MOST = 0.01, 0.5
"""How often to look for what others write: soon at first, then ever less often."""


Outcome = Literal["", "done", "failed", "lost"]
"""What came of an attempt: nothing yet; the own part is done; given up; given up for a lost rank."""


class GivenUpError(Exception):
    """This checkpoint will not be finished."""

    outcome: Outcome = "failed"


class LostError(GivenUpError):
    """A rank was lost before it had done its part."""

    outcome: Outcome = "lost"


@dataclass
class Snapshot:
    """What one rank has at one boundary, in host memory.

    Attributes:
        step: committed steps.
        held: the pieces with copies of their contents.
        copying: seconds that training waited for the copy.
    """

    step: int
    rank: int
    world_size: int
    held: list[tuple[Piece, torch.Tensor]]
    shared: bytes
    private: bytes
    copying: float
    absent: Mapping[int, bytes] = field(default_factory=dict)
    """Private values of ranks that are not there."""

    @property
    def present(self) -> list[int]:
        """Ranks that are there."""
        return [rank for rank in range(self.world_size) if rank not in self.absent]


class Attempt:
    """One checkpoint in the making, at one rank."""

    def __init__(self, snapshot: Snapshot, epoch: int) -> None:
        self.snapshot = snapshot
        self.epoch = epoch
        self.began = time.monotonic()
        self.waiting = False
        self.given_up = threading.Event()
        self.over = threading.Event()
        self.outcome: Outcome = ""
        self.lost: Mapping[int, str] = {}

    def wait_for(self, found: Callable[[], Any], what: str, whose: Callable[[], Iterable[int]]) -> Any:
        """Wait until ``found`` returns something; ``whose`` tells which ranks it comes from.

        Raises:
            LostError: such a rank was lost, and had not written it.
            GivenUpError: the next checkpoint is due, or it takes too long.
        """
        pause, self.waiting = POLL_SECONDS, True
        until = time.monotonic() + GIVE_UP_SECONDS
        while True:
            # Asked before the look, which finds all that had been written by then.
            over, lost = self.given_up.is_set(), self.lost
            result, refused = _look(found)
            if result is not None:
                self.waiting = False
                return result
            if gone := sorted(lost.keys() & set(whose())):
                raise LostError(f"rank {gone[0]} was lost before it had written {what}")
            if refused is not None:
                raise refused
            if over or time.monotonic() > until:
                limit = "before the next one was due" if over else f"within {GIVE_UP_SECONDS:g} s"
                raise GivenUpError(f"{what} did not come {limit}")
            self.given_up.wait(pause)
            pause = min(POLL_MOST, pause * 1.5)


def _look(found: Callable[[], Any]) -> tuple[Any, GivenUpError | None]:
    """What is there, or why it will not come; neither: it may come yet."""
    try:
        return found(), None
    except GivenUpError as error:
        return None, error
