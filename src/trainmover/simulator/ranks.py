"""Ranks as the control plane sees them: processes that prepare, enter epochs and step together.

What lives here: what one rank process knows and says.  What never lives here: what ranks do
together (``training``), what its machine does (``machines``).

A rank follows ``training.session`` and ``training.orders``: it notes orders, is prepared for some of
them, never enters an epoch that was given up, and epochs only grow.  Where a real one waits for
something (the first epoch, a place, an epoch after a broken one), it is ``WAITING``, and takes the
highest epoch that it is prepared for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from trainmover.events import catalogue as say

if TYPE_CHECKING:
    from trainmover.simulator.assembly import Assembly
    from trainmover.simulator.machines import SimulatedMachine


class Doing(StrEnum):
    """What a rank process does."""

    STARTING = "starting"
    WARMING = "warming"
    WAITING = "waiting"
    MEETING = "meeting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class SimulatedRank:
    """One rank process.  The fields up to ``line`` are those that ``machine.relay`` knows of a rank.

    Attributes:
        machine: where it runs.
        place: its rank; a standby's is -1 until it has one.
        epoch: the epoch that it works in.
        committed: steps committed; -1: none, and no state.
        assembly: those that it works with.
        stopped: the process is stopped (SIGSTOP) by itself.
        launched: it began as a live rank, not in the sandbox, so it describes itself.
        mirroring: votes since it knows that its state has no replica; -1: it does not know that.
        keeps: whose state is in its memory once more: committed steps, by rank.
    """

    machine: SimulatedMachine
    slot: int
    mode: say.RankMode
    generation: int
    role: str = ""
    prepared: int = 0
    endpoint: say.Endpoint | None = None
    line: object | None = None
    place: int = -1
    pid: int = 0
    doing: Doing = Doing.STARTING
    epoch: int = 0
    committed: int = 0
    history: bool = False
    resumed: bool = False
    finished: bool = False
    stopped: bool = False
    launched: bool = False
    described: bool = False
    roles: say.RolesFound | None = None
    recorded: bool = False
    mirroring: int = -1
    keeps: dict[int, int] = field(default_factory=dict)
    waiting_since: float = 0.0
    assembly: Assembly | None = None
    orders: dict[int, say.SwitchPrepare] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.machine.name}/{self.slot}{f' ({self.role})' if self.role else ''}"

    @property
    def runs(self) -> bool:
        """The process is there and not stopped."""
        machine = self.machine
        return machine.alive and not machine.process.frozen and not self.stopped and not self.over

    @property
    def over(self) -> bool:
        """The process has ended."""
        return self.doing is Doing.ENDED

    @property
    def life(self) -> tuple[str, str]:
        """Whose it is."""
        return (self.machine.name, self.machine.incarnation)

    def send(self, event: say.Event) -> None:
        """What its machine hands on; see ``machine.relay``."""
        if not self.over:
            self.machine.training.heard(self, event)

    def tell(self, event: say.Event) -> None:
        """Tell its machine, which tells the bus."""
        if not self.over:
            self.machine.tell(event)

    def has_place(self, order: say.SwitchPrepare) -> bool:
        """This machine has a seat in that layout (it does not leave)."""
        return self.machine.name in order.machines

    def place_in(self, order: say.SwitchPrepare) -> int:
        """Its global rank in that layout."""
        return order.machines.index(self.machine.name) * order.ranks_per_machine + self.slot

    def best(self) -> say.SwitchPrepare | None:
        """The highest later epoch that it is prepared for, if it has a place there."""
        ready = [epoch for epoch in self.ready if epoch > self.epoch and epoch not in self.aborted]
        if not ready:
            return None
        order = self.orders[max(ready)]
        return order if self.has_place(order) else None

    def ballot(self) -> int:
        """The coming epoch that it votes for; 0: none."""
        return max((epoch for epoch in self.ready if epoch > self.epoch), default=0)


class RankSet:
    """All ranks of a machine, as ``machine.relay`` sees them."""

    def __init__(self) -> None:
        self.all: list[SimulatedRank] = []

    def __iter__(self) -> object:
        return iter(self.all)

    def of_role(self, role: str) -> list[SimulatedRank]:
        """The set that is warm in this role."""
        return [rank for rank in self.all if rank.role == role]
