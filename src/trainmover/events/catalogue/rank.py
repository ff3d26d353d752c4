"""Events about rank processes and the links between them."""

from __future__ import annotations

from typing import ClassVar

from trainmover.events.catalogue.base import (
    Count,
    Endpoint,
    Event,
    GroupRow,
    MachineName,
    Name,
    RankMode,
    Role,
    Seconds,
    Text,
)


class RankStarted(Event):
    """A rank's process is up and listens for links (rank, by its machine)."""

    type: ClassVar[str] = "rank.started"

    machine: MachineName
    incarnation: Name
    slot: Count
    mode: RankMode
    generation: Count
    pid: Count
    endpoint: Endpoint
    role: Role = ""


class RankDescribed(Event):
    """What a rank is, as its first committed steps show (rank).

    Ranks of equal ``signature`` can take each other's place; those of equal ``state`` have the same
    parameters, buffers and optimizer state.
    """

    type: ClassVar[str] = "rank.described"

    machine: MachineName
    incarnation: Name
    slot: Count
    rank: Count
    generation: Count
    signature: Name
    """SHA-256 (hex) of what it calls, and of the names, dtypes and shapes of its state."""
    state: Name
    """SHA-256 (hex) of its state after each of these steps."""
    groups: tuple[GroupRow, ...]
    """The process groups that it is in, in the order in which they were made."""
    stage: tuple[Count, Count] | None = None
    """Own group rank and size of the first group in which it exchanges messages: its place in a pipeline."""
    bytes: Count = 0
    """What it keeps of its calls' results until it is known who records."""
    shares: bool = False
    """It asks in each step for its shares of the batch, and can take those of a replica that pauses."""


class RankExited(Event):
    """A rank's process ended before it was done (machine)."""

    type: ClassVar[str] = "rank.exited"

    machine: MachineName
    incarnation: Name
    slot: Count
    mode: RankMode
    generation: Count
    pid: Count
    code: int | None
    signal: int | None
    error: Text = ""
    role: Role = ""
    hopeless: bool = False
    """It ended because a state is on no machine any more, as ``error`` says: no rank can go on."""
    again: bool = False
    """A sandbox rank that is started anew; the machine goes on."""


class RankFinished(Event):
    """A rank has done all its steps (rank)."""

    type: ClassVar[str] = "rank.finished"

    machine: MachineName
    slot: Count
    rank: Count
    step: Count
    digest: Text
    peak_rss_bytes: Count = 0


class LinkBroken(Event):
    """A rank lost a link; its group is broken for this epoch (rank)."""

    type: ClassVar[str] = "link.broken"

    epoch: Count
    rank: Count
    machine: MachineName
    peer: Count
    peer_machine: MachineName
    reason: Text


class LinkUnreached(Event):
    """A rank has dialled the other end of a link for long, and nothing answers at its address (rank).

    The link is needed in this epoch, which may be one that is on its way.
    """

    type: ClassVar[str] = "link.unreached"

    epoch: Count
    rank: Count
    machine: MachineName
    peer: Count
    peer_machine: MachineName
    seconds: Seconds
    """For how long."""
    reason: Text


class LinkReached(Event):
    """What ``link.unreached`` said is over: the peer has answered (rank)."""

    type: ClassVar[str] = "link.reached"

    epoch: Count
    rank: Count
    machine: MachineName
    peer: Count
    peer_machine: MachineName


class LinkRepair(Event):
    """Both ends of a broken link are alive: make the links again in a new epoch (health)."""

    type: ClassVar[str] = "link.repair"

    epoch: Count
    reason: Text
