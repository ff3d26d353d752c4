"""Events about a change of the layout, from the plan to the commit."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from trainmover.events.catalogue.base import (
    Count,
    Endpoint,
    Event,
    JoinerRank,
    LinkName,
    MachineName,
    Machines,
    Name,
    Seats,
    Seconds,
    SwitchKind,
    Text,
)


class PlanReady(Event):
    """A new layout and what it changes (planner)."""

    type: ClassVar[str] = "plan.ready"

    epoch: Annotated[int, Field(ge=1)]
    base_epoch: Count
    kind: SwitchKind
    generation: Count
    incidents: tuple[Name, ...]
    machines: Seats
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)]
    leavers: Machines
    joiners: Machines
    endpoints: tuple[Endpoint, ...]
    """By rank, or of ``endpoint_ranks``."""
    endpoint_ranks: tuple[Count, ...] = ()
    """Ranks that ``endpoints`` belong to, ascending; empty: they are all there, or none is new. A rank
    without an endpoint here keeps that of the base epoch."""
    links_added: tuple[LinkName, ...]
    links_dropped: tuple[LinkName, ...]
    links_total: Count
    joiner_ranks: tuple[JoinerRank, ...] = ()


class SwitchPrepare(Event):
    """Request to every rank: make the links of this epoch beside training (switcher)."""

    type: ClassVar[str] = "switch.prepare"

    epoch: Annotated[int, Field(ge=1)]
    kind: SwitchKind
    generation: Count
    incidents: tuple[Name, ...]
    machines: Seats
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)]
    leavers: Machines
    joiners: Machines
    endpoints: tuple[Endpoint, ...]
    """By rank, or of ``endpoint_ranks``."""
    endpoint_ranks: tuple[Count, ...] = ()
    """See ``plan.ready``."""
    limit_seconds: Seconds
    joiner_ranks: tuple[JoinerRank, ...] = ()


class SwitchPrepared(Event):
    """This rank has all its links for the epoch (rank)."""

    type: ClassVar[str] = "switch.prepared"

    epoch: Annotated[int, Field(ge=1)]
    rank: Count
    machine: MachineName
    seconds: Seconds
    links_made: Count
    links_kept: Count


class SwitchAdopted(Event):
    """This rank works in the new epoch; its state was checked against its replicas (rank)."""

    type: ClassVar[str] = "switch.adopted"

    epoch: Annotated[int, Field(ge=1)]
    rank: Count
    machine: MachineName
    step: Count
    """Committed steps: training goes on with this step index."""
    switch_seconds: Seconds
    copy_seconds: Seconds
    verify_seconds: Seconds
    bytes_received: Count
    bytes_sent: Count
    source: Text = ""


class SwitchCommitted(Event):
    """Every rank adopted the epoch; the leavers may go (switcher)."""

    type: ClassVar[str] = "switch.committed"

    epoch: Annotated[int, Field(ge=1)]
    kind: SwitchKind
    incidents: tuple[Name, ...]
    machines: Seats
    leavers: Machines
    joiners: Machines
    step: Count
    generation: Count = 0


class SwitchAborted(Event):
    """The epoch will not come; what was prepared for it is dropped (switcher)."""

    type: ClassVar[str] = "switch.aborted"

    epoch: Annotated[int, Field(ge=1)]
    incidents: tuple[Name, ...]
    reason: Text
