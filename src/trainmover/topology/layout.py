"""A layout: which machine sits on which ranks, in which epoch.

What lives here: the layout and the questions that only it can answer.  Pure data, no I/O, no
torch.  World size and ranks never change in a replacement; only who sits on a position does, so
a layout is just the machines by position and the number of ranks on each.

A position may be *vacant*: nobody sits there.  Its ranks are *absent*, the world keeps its size, and what
neighbours do for each other is done by the next position that is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from trainmover.errors import ConfigError

VACANT = ""
"""In the place of a machine's name: nobody sits there."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Machines by position; position p holds the ranks ``p*K`` to ``p*K + K - 1``.

    Attributes:
        epoch: grows by at least one with every change of membership.
        machines: machine ids by position, all different; ``VACANT`` where nobody sits.
        ranks_per_machine: K, at least 1.
    """

    epoch: int
    machines: tuple[str, ...]
    ranks_per_machine: int
    _positions: dict[str, int] | None = field(default=None, init=False, repr=False, compare=False)
    _vacant: frozenset[int] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.ranks_per_machine < 1:
            raise ConfigError(f"ranks_per_machine is {self.ranks_per_machine}; it must be 1 or more")
        taken = [machine for machine in self.machines if machine]
        if len(set(taken)) != len(taken):
            raise ConfigError(f"a machine sits on two positions: {', '.join(self.machines)}")

    def __str__(self) -> str:
        seats = " ".join(f"{i}:{m or '-'}" for i, m in enumerate(self.machines))
        return f"epoch {self.epoch} [{seats}] x{self.ranks_per_machine}"

    @property
    def world_size(self) -> int:
        """Number of ranks, absent ones among them."""
        return len(self.machines) * self.ranks_per_machine

    @property
    def vacant(self) -> frozenset[int]:
        """Positions where nobody sits; found when it is first asked for."""
        if self._vacant is None:
            found: frozenset[int] = frozenset()
            if VACANT in self.machines:  # mostly not, and of many thousand machines only this is quick
                found = frozenset(seat for seat, machine in enumerate(self.machines) if not machine)
            object.__setattr__(self, "_vacant", found)
            return found
        return self._vacant

    @property
    def present(self) -> list[int]:
        """Ranks on positions that are taken."""
        vacant = self.vacant
        return [rank for rank in range(self.world_size) if rank // self.ranks_per_machine not in vacant]

    def guardian(self, rank: int) -> int:
        """See :func:`guardian_of`."""
        return guardian_of(rank, self.world_size, self.ranks_per_machine, self.vacant)

    def ward(self, rank: int) -> int:
        """See :func:`ward_of`."""
        return ward_of(rank, self.world_size, self.ranks_per_machine, self.vacant)

    def position_of(self, rank: int) -> int:
        """Position (index of the machine) that holds a rank."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"rank {rank} is not in 0..{self.world_size - 1} ({self})")
        return rank // self.ranks_per_machine

    def machine_of(self, rank: int) -> str:
        """Machine that holds a rank; ``VACANT`` for an absent one."""
        return self.machines[self.position_of(rank)]

    @property
    def positions(self) -> dict[str, int]:
        """Position by machine; made when it is first asked for."""
        if self._positions is None:
            found = {machine: position for position, machine in enumerate(self.machines) if machine}
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
        values = (epoch, tuple(machines), self.ranks_per_machine, None, self._vacant)
        for name, value in zip(Layout.__slots__, values, strict=True):
            object.__setattr__(layout, name, value)
        return layout

    def reseated(self, epoch: int, seats: Mapping[int, str]) -> Layout:
        """The layout after some positions get another machine, or are vacated (``VACANT``).

        Raises:
            ConfigError: a position is not there, a machine would sit twice, or the epoch does not follow.
        """
        if wrong := sorted(seat for seat in seats if not 0 <= seat < len(self.machines)):
            raise ConfigError(f"there is no position {wrong[0]} in {self}")
        if epoch <= self.epoch:
            raise ConfigError(f"epoch {epoch} does not follow epoch {self.epoch}")
        machines = list(self.machines)
        for seat, machine in seats.items():
            machines[seat] = machine
        return Layout(epoch, tuple(machines), self.ranks_per_machine)


def guardian_of(rank: int, world_size: int, ranks_per_machine: int, vacant: Collection[int] = ()) -> int:
    """The rank that keeps a copy of ``rank``'s private state: same slot, next position that is taken.

    With one machine the guardian is the rank itself: nothing can be kept elsewhere.

    Args:
        rank: a rank, also an absent one.
        world_size: number of ranks.
        ranks_per_machine: K.
        vacant: positions where nobody sits.
    """
    return _next_taken(rank, world_size, ranks_per_machine, vacant)


def ward_of(rank: int, world_size: int, ranks_per_machine: int, vacant: Collection[int] = ()) -> int:
    """The rank whose private state ``rank`` keeps: among ranks that are present the inverse of guardian."""
    return _next_taken(rank, world_size, -ranks_per_machine, vacant)


def _next_taken(rank: int, world_size: int, step: int, vacant: Collection[int]) -> int:
    found = (rank + step) % world_size
    while vacant and found // abs(step) in vacant and found != rank:
        found = (found + step) % world_size
    return found
