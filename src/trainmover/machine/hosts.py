"""Where the programs of a local run are: all on this computer, as it is.

What lives here: the one thing that differs between a plain local run and one in which machines have
networks and clocks of their own (``trainmover.chaos``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """How a program is started.

    Attributes:
        address: under which other machines reach its ranks.
        prefix: what its command line begins with.
        environment: variables that it has besides the others.
    """

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Hosts:
    """One computer for all programs.

    Attributes:
        bus_address: on which the embedded server listens.
    """

    bus_address = "127.0.0.1"

    def machine(self, name: str) -> Place:
        """Where a machine is; asked each time it is started."""
        return Place()

    def service(self, name: str) -> Place:
        """Where a service is."""
        return Place()
