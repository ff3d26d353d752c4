"""A layout: which machine sits on which ranks, in which epoch.

What lives here: the layout and the questions that only it can answer.  Pure data, no I/O, no
torch.  World size and ranks never change in a replacement; only who sits on a position does, so
a layout is just the machines by position and the number of ranks on each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmover.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Layout:
    """Machines by position; position p holds the ranks ``p*K`` to ``p*K + K - 1``.

    Attributes:
        epoch: grows by at least one with every change of membership.
        machines: machine ids by position, all different.
        ranks_per_machine: K, at least 1.
    """

    epoch: int
    machines: tuple[str, ...]
    ranks_per_machine: int
    _positions: dict[str, int] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.ranks_per_machine < 1:
            raise ConfigError(f"ranks_per_machine is {self.ranks_per_machine}; it must be 1 or more")
        if len(set(self.machines)) != len(self.machines):
            raise ConfigError(f"a machine sits on two positions: {', '.join(self.machines)}")

    def __str__(self) -> str:
        seats = " ".join(f"{i}:{m}" for i, m in enumerate(self.machines))
        return f"epoch {self.epoch} [{seats}] x{self.ranks_per_machine}"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.machines) * self.ranks_per_machine

    def position_of(self, rank: int) -> int:
        """Position (index of the machine) that holds a rank."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"rank {rank} is not in 0..{self.world_size - 1} ({self})")
        return rank // self.ranks_per_machine

    def machine_of(self, rank: int) -> str:
        """Machine that holds a rank."""
        return self.machines[self.position_of(rank)]

    @property
    def positions(self) -> dict[str, int]:
        """Position by machine; made when it is first asked for."""
        if self._positions is None:
            found = {machine: position for position, machine in enumerate(self.machines)}
            object.__setattr__(self, "_positions", found)
            return found
        return self._positions

    def ranks_of(self, machine: str) -> range:
        """Ranks on a machine; empty when it is not in the layout."""
        position = self.positions.get(machine)
        if position is None:
            return range(0)
        first = position * self.ranks_per_machine
        return range(first, first + self.ranks_per_machine)

    def replaced(self, epoch: int, changes: dict[str, str]) -> Layout:
        """The layout after ``changes`` (leaver to joiner), each leaver's seat taken by its joiner."""
        positions = self.positions
        unknown = sorted(machine for machine in changes if machine not in positions)
        if unknown:
            raise ConfigError(f"cannot replace {', '.join(unknown)}: not in {self}")
        if epoch <= self.epoch:
            raise ConfigError(f"epoch {epoch} does not follow epoch {self.epoch}")
        machines = list(self.machines)
        for leaver, joiner in changes.items():
            machines[positions[leaver]] = joiner
        stayers = [joiner for joiner in changes.values() if joiner in positions and joiner not in changes]
        if stayers or len(set(changes.values())) != len(changes):
            return Layout(epoch, tuple(machines), self.ranks_per_machine)  # which says what is wrong
        # All names are known to be different: they are not compared again.
        layout = object.__new__(Layout)
        values = (epoch, tuple(machines), self.ranks_per_machine, None)
        for name, value in zip(Layout.__slots__, values, strict=True):
            object.__setattr__(layout, name, value)
        return layout


def guardian_of(rank: int, world_size: int, ranks_per_machine: int) -> int:
    """The rank that keeps a copy of ``rank``'s private state: same slot, next position.

    With one machine the guardian is the rank itself: nothing can be kept elsewhere.
    """
    return (rank + ranks_per_machine) % world_size


def ward_of(rank: int, world_size: int, ranks_per_machine: int) -> int:
    """The rank whose private state ``rank`` keeps: the inverse of :func:`guardian_of`."""
    return (rank - ranks_per_machine) % world_size
