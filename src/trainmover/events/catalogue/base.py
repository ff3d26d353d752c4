"""What events are made of: names, numbers, and the small models that several events carry.

What lives here: the base class, the types of fields, and what describes ranks, groups, links and seats.
What never lives here: events.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_NAME = 128
MAX_TEXT = 8192
MAX_MACHINES = 65536

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[A-Za-z0-9_.:\-]+$")]
MachineName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_\-]+$")]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Machines = Annotated[tuple[MachineName, ...], Field(max_length=MAX_MACHINES)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Seat = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_\-]*$")]
"""The machine on a position of a layout; empty where nobody sits."""
Seats = Annotated[tuple[Seat, ...], Field(max_length=MAX_MACHINES)]
"""The machines of a layout, by position."""

SwitchKind = Literal["start", "failure", "move", "repair", "shrink", "grow"]
RankMode = Literal["live", "sandbox"]
Role = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_.:\-]*$")]
"""Name of a machine role; empty where there is none (a live rank's process)."""


class Event(BaseModel):
    """Base of all events: frozen, strict, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: ClassVar[str]
    version: ClassVar[int] = 1
    journalled: ClassVar[bool] = True
    """True: kept in the JetStream log. False: core NATS only (may be lost, never replayed)."""
    local: ClassVar[bool] = False
    """True: between a machine program and its ranks only, never on the bus."""
    deprecated: ClassVar[str] = ""
    """Why this version of the event goes with the next release, and what to use; see events/README.md."""


class Endpoint(BaseModel):
    """Where a rank's process listens for links. ``life`` names the process, not the rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    host: Annotated[str, Field(min_length=1, max_length=255)]
    port: Annotated[int, Field(ge=1, le=65535)]
    life: Name


class LinkName(BaseModel):
    """One link: two ranks (low < high) in one group and channel."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    group: Name
    channel: Name
    low: Count
    high: Count


class GridDim(BaseModel):
    """One dimension of a grid of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    size: Annotated[int, Field(ge=1, lt=2**53)]


class GroupGrid(BaseModel):
    """Process groups of ranks in a grid, as a few numbers instead of lists.

    The ranks from ``first`` on have coordinates in named dimensions, outermost first, the last one
    varying fastest.  An axis is one dimension, or several that follow one another; ranks that differ
    only along an axis are a group, named after the axis and its lowest rank (``data:17``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dims: Annotated[tuple[GridDim, ...], Field(max_length=16)]
    axes: Annotated[tuple[tuple[Name, ...], ...], Field(max_length=256)] = ()
    """Dimensions of each axis along which there are groups; empty: each dimension."""
    first: Count = 0


class GroupRow(BaseModel):
    """One process group: its name on the wire, and its global ranks by group rank.

    Ranks at equal distances are three numbers (``first``, ``stride``, ``count``); others are listed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    first: Count = 0
    stride: Annotated[int, Field(ge=1, lt=2**53)] = 1
    count: Count = 0
    ranks: tuple[Count, ...] = ()


class SeatRow(BaseModel):
    """Seats (positions of a layout) at equal distances."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    first: Count
    stride: Annotated[int, Field(ge=1, lt=2**53)] = 1
    count: Annotated[int, Field(ge=1, lt=2**53)] = 1


class MachineRole(BaseModel):
    """Seats whose machines do the same: any of them can be taken by a spare that is warm in this role."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    seats: Annotated[tuple[SeatRow, ...], Field(min_length=1)]
    representative: Count
    """Seat whose ranks' recording spares of this role are warmed with."""


class JoinerRank(BaseModel):
    """What a rank of a joiner has to know of its place."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rank: Count
    groups: tuple[GroupRow, ...]
    """The process groups that it is in, in the order in which they were made."""
    sources: tuple[Count, ...]
    """Ranks that have the same state and stay; they send it."""
    keeper: Count | None = None
    """The rank that sends what belongs to this rank alone, where its seat was vacant."""
    mirrored: Count | None = None
    """No other rank has this state: the rank that keeps a mirror of it, and sends that."""
