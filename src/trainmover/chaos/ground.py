"""The ground of a run: where its programs are, with networks and clocks that can be troubled.

What lives here: what a local driver asks (``machine.hosts``), answered for a chaos run.  What never lives
here: when anything is troubled (``hands``).
"""

from __future__ import annotations

from pathlib import Path

from trainmover import clock
from trainmover.chaos.network import Network
from trainmover.machine.hosts import Hosts, Place


class Ground(Hosts):
    """Every program has a clock of its own; with a network, every machine has one, too.

    Args:
        clocks: folder for the files that say how wrong a clock is.
        network: None: all are on this computer's loopback.
    """

    def __init__(self, clocks: Path, network: Network | None) -> None:
        self._clocks = clocks
        self.network = network
        clocks.mkdir(parents=True, exist_ok=True)
        if network is not None:
            self.bus_address = network.address

    def machine(self, name: str) -> Place:
        """See :class:`Hosts`."""
        if self.network is None:
            return Place(environment=self._clock(name))
        address, prefix = self.network.machine(name)
        return Place(address, prefix, self._clock(name))

    def service(self, name: str) -> Place:
        """See :class:`Hosts`."""
        return Place(environment=self._clock(name))

    def set_clock(self, name: str, seconds: float) -> None:
        """Let a program's clock, and those of its ranks, be wrong by so much from now on."""
        whole = self._clocks / f".{name}"
        whole.write_text(f"{seconds:g}", encoding="ascii")
        whole.replace(self._clocks / name)

    def _clock(self, name: str) -> dict[str, str]:
        return {clock.VARIABLE: str(self._clocks / name)}
