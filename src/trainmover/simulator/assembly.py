"""An assembly: all ranks of one epoch, as far as they have entered.

What lives here: who is in it, and whether all of them can go on.  What never lives here: what they do
together (``training``).
"""

from __future__ import annotations

from trainmover.events import catalogue as say
from trainmover.simulator.ranks import SimulatedRank


class Assembly:
    """All ranks of one epoch; see the module.

    Attributes:
        order: the request that made it.
        ranks: those that have entered, by place.
        over: it broke, or went on to another epoch.
        parted_since: when neighbours in it were first seen not to reach each other, virtual seconds.
    """

    def __init__(self, order: say.SwitchPrepare) -> None:
        self.order = order
        self.ranks: dict[int, SimulatedRank] = {}
        self.over = False
        self.running = False
        self.parted_since: float | None = None

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self.order.epoch

    @property
    def size(self) -> int:
        """Ranks of the layout, absent ones among them."""
        return len(self.order.machines) * self.order.ranks_per_machine

    @property
    def whole(self) -> bool:
        """Everybody has entered."""
        return len(self.ranks) == sum(map(bool, self.order.machines)) * self.order.ranks_per_machine

    @property
    def runs(self) -> bool:
        """Everybody is there, runs and reaches the others."""
        return self.whole and all(rank.runs and not rank.machine.apart for rank in self.ranks.values())
