"""Who reaches whom: the machines' network, at the grain of pairs.

What lives here: whether packets get from one machine to another.  What never lives here: what ranks make of
it (``preparing``, ``training``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainmover.simulator.ranks import SimulatedRank

if TYPE_CHECKING:
    from trainmover.simulator.machines import SimulatedMachine


class Reach:
    """The network between machines; see the module.

    Attributes:
        machines: latest life under each name.
        parted: pairs of machines that do not reach each other, though everybody else reaches both.
        narrow: pairs between which only small packets get through: enough for a link, too little for a step.
    """

    def __init__(self) -> None:
        self.machines: dict[str, SimulatedMachine] = {}
        self.parted: set[frozenset[str]] = set()
        self.narrow: set[frozenset[str]] = set()

    @property
    def whole(self) -> bool:
        """Everybody reaches everybody."""
        return not (self.parted or self.narrow) and not any(
            machine.apart for machine in self.machines.values()
        )

    def between(self, one: str, other: str) -> bool:
        """Packets get from one machine to the other, and back."""
        apart = any(name in self.machines and self.machines[name].apart for name in (one, other))
        return not apart and frozenset({one, other}) not in self.parted

    def wide(self, one: str, other: str) -> bool:
        """Large packets get through, too."""
        return self.between(one, other) and frozenset({one, other}) not in self.narrow

    def silent(self, one: str, other: str) -> bool:
        """Nothing answers one machine at the other's address: a frozen one's kernel does."""
        machine = self.machines.get(other)
        return machine is None or not machine.alive or not self.between(one, other)

    def ranks_of(self, name: str) -> Iterable[SimulatedRank]:
        """The ranks of a machine."""
        machine = self.machines.get(name)
        return machine.ranks.all if machine is not None else ()
