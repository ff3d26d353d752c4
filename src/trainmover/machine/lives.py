"""How a life of a machine program begins and ends: what it is told, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from trainmover.machine.apart import Apart

BEAT_SECONDS: Final = 0.25

Ending = Literal["completed", "job failed", "fenced", "released", "stopped"]

EXITS: Final[dict[Ending, int]] = {"completed": 0, "released": 0, "stopped": 0, "job failed": 1, "fenced": 3}
"""Exit code of the program by how its life ended."""


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """What a machine program is told by whoever starts it.

    Attributes:
        name: unique in the job.
        slots: most ranks that may run here.
        host: address under which other machines reach this one's ranks.
        secret: the job's secret, hex.
        beat_seconds: seconds between heartbeats.
        link_tls: folder with the certificate for links; empty: links are not encrypted.
        apart: whom it has to reach before it joins.
    """

    name: str
    slots: int = 1
    host: str = "127.0.0.1"
    secret: str = ""
    beat_seconds: float = BEAT_SECONDS
    link_tls: str = ""
    apart: Apart = field(default_factory=lambda: Apart("", "", (), 1))
