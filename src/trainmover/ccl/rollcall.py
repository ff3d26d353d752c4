"""Which collectives a rank has called in this epoch: so that ranks which wait in vain can compare.

Two ranks that call different things usually find out by their frames' tags.  Where each waits for the
other (one gathers to itself, the other waits for its broadcast) no frame is ever sent.  All ranks of a
group make the same calls in the same order, so the n-th call of an epoch has the same tag on all of them:
a rank that has waited for a while tells its peers the number and the tag of the call that it is in.
"""

from __future__ import annotations

from collections import deque

KEPT = 64
"""Calls of a group that are remembered; whoever is further behind than that waits for something else."""


class RollCall:
    """The last collectives of each group in this epoch."""

    def __init__(self) -> None:
        self._tags: dict[str, deque[int]] = {}
        self._counts: dict[str, int] = {}

    def note(self, group: str, tag: int) -> int:
        """A collective is called; returns the how-many-th of its group it is."""
        self._tags.setdefault(group, deque(maxlen=KEPT)).append(tag)
        self._counts[group] = number = self._counts.get(group, 0) + 1
        return number

    def tag(self, group: str, number: int) -> int | None:
        """The tag of a call, unless it is not made yet or long ago."""
        tags, back = self._tags.get(group, ()), self._counts.get(group, 0) - number
        return tags[-1 - back] if 0 <= back < len(tags) else None

    def clear(self) -> None:
        """A new epoch begins: all ranks count from its first call."""
        self._tags.clear()
        self._counts.clear()
