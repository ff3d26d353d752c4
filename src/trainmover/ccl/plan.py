"""What an epoch needs of a rank: its links, and where the processes at their other ends are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainmover.topology.links import Link


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a rank's process listens, and which process that is.

    Attributes:
        host, port: its address on the network.
        life: name of the process, which no other process has.
        beside: it runs on the asking process's machine, so that there is a way without a network.
    """

    host: str
    port: int
    life: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What one epoch needs of this rank: its links and where the ranks at their other ends are."""

    epoch: int
    rank: int
    peers: Mapping[int, Peer]
    links: frozenset[Link]
    limit: float = 60.0

    def life_of(self, link: Link) -> str:
        """The process at the other end of one of this rank's links."""
        return self.peers[link.other(self.rank)].life
