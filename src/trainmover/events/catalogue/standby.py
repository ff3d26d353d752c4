"""Events about spare machines: moves, recordings, roles, and who is warm in which."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainmover.events.catalogue.base import (
    Count,
    Endpoint,
    Event,
    MachineName,
    MachineRole,
    Name,
    Role,
    Seat,
    SeatRow,
    Seconds,
    Text,
)


class MoveRequested(Event):
    """Request: replace this machine while it still works (an operator, or a rule)."""

    type: ClassVar[str] = "move.requested"

    machine: MachineName
    to: MachineName | None = None
    reason: Text = ""


class MoveRefused(Event):
    """A requested move will not happen (standby)."""

    type: ClassVar[str] = "move.refused"

    machine: MachineName
    incident: Name
    reason: Text


class RecordingReady(Event):
    """The collective results of one rank's first committed steps are on disk (rank)."""

    type: ClassVar[str] = "recording.ready"

    machine: MachineName
    slot: Count
    generation: Count
    path: Text
    steps: Count
    bytes: Count


class RecordingFailed(Event):
    """A rank that was to record cannot: its role is not recorded, and no spare can be warm in it (rank)."""

    type: ClassVar[str] = "recording.failed"

    machine: MachineName
    slot: Count
    generation: Count
    reason: Text


class RolesFound(Event):
    """Every rank is described: these are the roles of the machines (standby)."""

    type: ClassVar[str] = "roles.found"

    generation: Count
    roles: Annotated[tuple[MachineRole, ...], Field(min_length=1, max_length=1024)]
    unlisted: Count = 0
    """Further roles, those with the fewest seats, that are left out because there are too many."""
    unreplicated: tuple[SeatRow, ...] = ()
    """Ranks (not seats) whose state no rank on another machine has; what becomes of it is ``job.state``."""


class SandboxPeers(Event):
    """The sandbox ranks of one role here, for each other (machine, to its ranks; never on the bus)."""

    type: ClassVar[str] = "sandbox.peers"
    journalled: ClassVar[bool] = False
    local: ClassVar[bool] = True

    role: Role
    endpoints: tuple[Endpoint, ...]
    """By slot."""


class StandbyWarm(Event):
    """Request: warm this spare machine in one role with these recordings, one per slot (standby)."""

    type: ClassVar[str] = "standby.warm"

    machine: MachineName
    incarnation: Name
    generation: Count
    recordings: tuple[str, ...]
    world_size: Annotated[int, Field(ge=1)]
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)]
    positions: tuple[Count, ...]
    """Position whose role each recording has (its first rank is position * K)."""
    role: Role = ""
    memory: Literal["resident", "released"] = "resident"
    """``released``: once parked, the ranks give back the memory of what they will receive anyway."""
    urgent: bool = False
    """A seat of this role is empty or to be moved: warming up shall not stand back for training."""


class StandbyParked(Event):
    """One slot of a spare machine is warm and waits at the boundary (rank)."""

    type: ClassVar[str] = "standby.parked"

    machine: MachineName
    incarnation: Name
    slot: Count
    generation: Count
    shadow_steps: Count
    seconds: dict[str, Seconds]
    """What each part of the warm-up took: start, build, shadow."""
    role: Role = ""


class StandbyAssigned(Event):
    """This spare takes that machine's place (standby)."""

    type: ClassVar[str] = "standby.assigned"

    incident: Name
    kind: Literal["failure", "move", "grow"]
    leaver: Seat
    """Empty for ``grow``: nobody sits there."""
    joiner: MachineName
    joiner_incarnation: Name
    generation: Count = 0
    """Generation in which this holds; what belongs to an earlier one is void."""
    role: Role = ""
    position: Count | None = None
    """The seat, where nobody sits on it."""


class StandbyExhausted(Event):
    """No spare can take this seat: the data-parallel replica that it belongs to is to pause (standby)."""

    type: ClassVar[str] = "standby.exhausted"

    incident: Name
    machine: MachineName
    position: Count
    generation: Count


class StandbyReplenish(Event):
    """Request: one more spare machine is wanted (standby)."""

    type: ClassVar[str] = "standby.replenish"

    ordinal: Count
    reason: Text
