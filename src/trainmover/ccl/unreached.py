"""Peers at whose address nothing answers, however often they are dialled.

A peer that is gone is found out by others, and one that is late answers a little later.  Two machines
between which the network drops everything are neither: both are well, and the link between them is never
made.  After :data:`SECONDS` of dialling whoever dials says so; what follows from it is not decided here.

Only attempts in which no connection came about count.  A peer that refuses, or is too busy to shake hands,
was reached.

What lives here: since when which link is dialled in vain.  What never lives here: dialling (``connectors``),
and what a plan needs (``table``).  All of it belongs to the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trainmover.ccl.plan import Plan
from trainmover.topology.links import Link

SECONDS = 20.0
"""For how long a link is dialled in vain before that is told: four attempts that hear nothing at all."""
LOOK_SECONDS = 1.0
"""From one look at what is dialled to the next, from then on."""

Key = tuple[Link, str]
"""A link, and the process at its other end."""

Tell = Callable[[Plan, Link, float, str], None]
"""Told of a plan's link that is not reached: for how many seconds, and why; no reason: it is, after all."""


class Unreached:
    """What one process dials in vain.

    Attributes:
        tell: told on the engine's thread.
    """

    def __init__(self) -> None:
        self.tell: Tell | None = None
        self._failing: dict[Key, str] = {}
        self._told: dict[str, tuple[Plan, Link]] = {}
        self._demanded: dict[Key, float] = {}

    def tried(self, key: Key, reason: str) -> None:
        """An attempt has ended: without a connection, for this reason; or it has reached the peer."""
        if reason:
            self._failing[key] = reason
            return
        self._failing.pop(key, None)
        self._demanded.pop(key, None)
        told = self._told.pop(key[1], None)
        if told is not None and self.tell is not None:
            self.tell(*told, 0.0, "")

    def look(self, plan: Plan, started: float, keys: list[Key]) -> None:
        """Tell what a plan has dialled in vain since it was ``started``, of each peer once.

        Args:
            plan: whose links.
            started: on the clock of ``time.monotonic``.
            keys: links of it that this process dials, and that are not there.
        """
        seconds = time.monotonic() - started
        for key in keys:
            link, life = key
            told = self._told.get(life)
            if key in self._failing and self.tell and (told is None or told[0].epoch < plan.epoch):
                self._told[life] = plan, link
                self.tell(plan, link, seconds, self._failing[key])

    def demanded(self, plan: Plan, key: Key) -> bool:
        """A message waits for this link, and an attempt has just failed.  True: for too long now."""
        since = self._demanded.setdefault(key, time.monotonic())
        if self.tell is None or key not in self._failing or time.monotonic() - since < SECONDS:
            return False
        del self._demanded[key]
        self.tell(plan, key[0], time.monotonic() - since, self._failing[key])
        return True

    def swapped(self) -> None:
        """Another epoch begins: nothing of the one before is waited for."""
        self._demanded.clear()
        self._told.clear()
        self._failing.clear()
