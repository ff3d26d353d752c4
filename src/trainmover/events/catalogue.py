"""The catalogue: every event of TrainMover, what it says and who says it.

What lives here: one frozen pydantic model per event, and the table that finds a model by its
type name.  What never lives here: envelopes, codecs, transport, decisions.

An event is a fact in the past tense (``machine.failed``) or a request that its owner may refuse
(``move.requested``).  Its type name is ``<area>.<event>``; the area is also the part of the NATS
subject that permissions are given for.  A *layout* travels as ``machines`` (machine ids by
position) and ``ranks_per_machine`` (K): position p holds the ranks p*K to p*K+K-1, slot s of a
machine being rank p*K+s.

Compatibility: ``version`` grows only when a change would break a subscriber; adding a field with
a default does not.
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

SwitchKind = Literal["start", "failure", "move", "repair"]
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


# -- job ---------------------------------------------------------------------------------------


class JobSubmitted(Event):
    """The job's description, said once by whoever starts it (``trainmover run``)."""

    type: ClassVar[str] = "job.submitted"

    script: Text
    args: tuple[str, ...] = ()
    cwd: Text
    python: Text
    machines: Annotated[int, Field(ge=1, le=MAX_MACHINES)]
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)] = 1
    standbys: Annotated[int, Field(ge=0, le=4096)] = 0
    seed: int = 0
    run_dir: Text
    on_exhausted: Literal["hold", "fail"] = "hold"
    warmup_steps: Annotated[int, Field(ge=1, le=16)] = 2
    faults: tuple[str, ...] = ()
    standby_memory: Literal["resident", "sequential"] = "resident"
    """``resident``: a spare keeps the tensors of all roles; ``sequential``: those of one."""
    recordings: Text = ""
    """Folder or fsspec URL of the recordings; empty: in the run's folder."""
    recording_limit_bytes: Count = 2 * 1024**3
    """Most that one rank keeps of its recording, in bytes."""


class JobHeld(Event):
    """No standby is left: training waits at its boundary until a machine joins (standby)."""

    type: ClassVar[str] = "job.held"

    incident: Name
    reason: Text


class JobCompleted(Event):
    """Every rank finished all its steps (switcher)."""

    type: ClassVar[str] = "job.completed"

    steps: Count
    digest: Text
    """SHA-256 (hex) over parameters and optimizer state of rank 0."""
    identical: bool
    """True when all data-parallel replicas ended with the same digest."""


class JobFailed(Event):
    """The job cannot go on; machines end their ranks (any service)."""

    type: ClassVar[str] = "job.failed"

    reason: Text


# -- machine -----------------------------------------------------------------------------------


class MachineJoined(Event):
    """A machine program is ready for work (machine). ``incarnation`` names this process life."""

    type: ClassVar[str] = "machine.joined"

    machine: MachineName
    incarnation: Name
    host: Annotated[str, Field(min_length=1, max_length=255)]
    slots: Annotated[int, Field(ge=1, le=64)]
    pid: Count


class MachineLeft(Event):
    """A machine ended in good order (machine): it was released, fenced or told to stop."""

    type: ClassVar[str] = "machine.left"

    machine: MachineName
    incarnation: Name
    reason: Text


class MachineLaunch(Event):
    """Request: start fresh ranks here, ending any that run (planner).

    ``generation`` counts starts from nothing: a failure before the first committed step has
    nothing to keep, so everything starts again.
    """

    type: ClassVar[str] = "machine.launch"

    machine: MachineName
    incarnation: Name
    position: Count
    world_size: Annotated[int, Field(ge=1)]
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)]
    generation: Count
    record: bool
    """True when this machine's ranks record their collective results for standbys."""


class MachineSuspected(Event):
    """Something speaks against a machine, not enough to act on (health)."""

    type: ClassVar[str] = "machine.suspected"

    machine: MachineName
    incarnation: Name
    reason: Text


class MachineFailed(Event):
    """A machine is declared dead: from now on it is fenced, whether it runs or not (health)."""

    type: ClassVar[str] = "machine.failed"

    machine: MachineName
    incarnation: Name
    reason: Text
    evidence: tuple[str, ...] = ()


class MachineProbed(Event):
    """Answer to a probe by the health service's shell: ``absent`` means that nobody listens."""

    type: ClassVar[str] = "machine.probed"

    machine: MachineName
    incarnation: Name
    answer: Literal["alive", "absent", "silent"]


# -- leases: what the shell of health makes of heartbeats ----------------------------------------


class LeaseExpired(Event):
    """A machine's heartbeats stopped for longer than its adaptive limit (health's shell)."""

    type: ClassVar[str] = "lease.expired"

    machine: MachineName
    incarnation: Name
    silent_seconds: Seconds
    limit_seconds: Seconds


class LeaseReturned(Event):
    """A machine whose lease had expired beats again (health's shell)."""

    type: ClassVar[str] = "lease.returned"

    machine: MachineName
    incarnation: Name
    silent_seconds: Seconds


class LeaseStalled(Event):
    """A machine beats, but one of its rank processes is stopped by the system (health's shell)."""

    type: ClassVar[str] = "lease.stalled"

    machine: MachineName
    incarnation: Name
    slot: Count
    state: Text


# -- ranks and links ---------------------------------------------------------------------------


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


class LinkRepair(Event):
    """Both ends of a broken link are alive: make the links again in a new epoch (health)."""

    type: ClassVar[str] = "link.repair"

    epoch: Count
    reason: Text


# -- moves, standbys, recordings -----------------------------------------------------------------


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


class RolesFound(Event):
    """Every rank is described: these are the roles of the machines (standby)."""

    type: ClassVar[str] = "roles.found"

    generation: Count
    roles: Annotated[tuple[MachineRole, ...], Field(min_length=1)]


class SandboxPeers(Event):
    """The sandbox ranks of one role here, for each other (machine, to its ranks; never on the bus)."""

    type: ClassVar[str] = "sandbox.peers"
    journalled: ClassVar[bool] = False

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
    kind: Literal["failure", "move"]
    leaver: MachineName
    joiner: MachineName
    joiner_incarnation: Name
    generation: Count = 0
    """Generation in which this holds; what belongs to an earlier one is void."""
    role: Role = ""


class StandbyReplenish(Event):
    """Request: one more spare machine is wanted (standby)."""

    type: ClassVar[str] = "standby.replenish"

    ordinal: Count
    reason: Text


# -- plans and switches ------------------------------------------------------------------------


class PlanReady(Event):
    """A new layout and what it changes (planner)."""

    type: ClassVar[str] = "plan.ready"

    epoch: Annotated[int, Field(ge=1)]
    base_epoch: Count
    kind: SwitchKind
    generation: Count
    incidents: tuple[Name, ...]
    machines: Machines
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
    machines: Machines
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
    machines: Machines
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


# -- training ----------------------------------------------------------------------------------


class TrainingStarted(Event):
    """The first step of this generation is committed on every rank: from here on nothing is lost (rank 0)."""

    type: ClassVar[str] = "training.started"

    generation: Count
    epoch: Count
    step: Count
    groups: dict[Name, tuple[Count, ...]]
    """Process groups by name, as global ranks."""
    grids: Annotated[tuple[GroupGrid, ...], Field(max_length=16)] = ()
    """Process groups that lie regularly; they are not listed in ``groups``."""


class TrainingResumed(Event):
    """The first step after a switch is committed (rank 0)."""

    type: ClassVar[str] = "training.resumed"

    epoch: Annotated[int, Field(ge=1)]
    step: Count


class StepSample(Event):
    """One committed step as one machine saw it (machine's lowest rank); core NATS only."""

    type: ClassVar[str] = "sample.step"
    journalled: ClassVar[bool] = False

    machine: MachineName
    rank: Count
    epoch: Count
    step: Count
    seconds: Seconds
    metrics: dict[str, float]
    peak_rss_bytes: Count


class Heartbeat(Event):
    """A machine is alive, and what it sees; core NATS only."""

    type: ClassVar[str] = "sample.beat"
    journalled: ClassVar[bool] = False

    machine: MachineName
    incarnation: Name
    sequence: Count
    ranks: tuple[str, ...]
    """State of each rank process by slot: starting, running, stopped, exited."""
    step: Count
    cpu_percent: Seconds
    rss_bytes: Count
    gpus: tuple[dict[str, float], ...] = ()


# -- the log's own -----------------------------------------------------------------------------


class TimerFired(Event):
    """A deadline that a core had asked for is reached (a service's shell)."""

    type: ClassVar[str] = "timer.fired"

    service: Name
    name: Name
    due: Seconds


class JournalEntry(Event):
    """A service's shell fed one input to its core; these outputs came of it (shell)."""

    type: ClassVar[str] = "journal.entry"

    service: Name
    number: Count
    input: Name
    now: Seconds
    outputs: tuple[Name, ...]
    quiet: Annotated[dict[Name, Seconds], Field(max_length=1024)] = {}
    """Inputs fed before this one that caused nothing, oldest first, each with its ``now``."""


class DeadLetter(Event):
    """Something on the bus could not be decoded (whoever read it)."""

    type: ClassVar[str] = "dead.letter"

    subject: Text
    reason: Text
    body: Annotated[bytes, Field(max_length=4096)] = b""


EVENTS: dict[str, type[Event]] = {
    model.type: model
    for model in (
        JobSubmitted,
        JobHeld,
        JobCompleted,
        JobFailed,
        MachineJoined,
        MachineLeft,
        MachineLaunch,
        MachineSuspected,
        MachineFailed,
        MachineProbed,
        LeaseExpired,
        LeaseReturned,
        LeaseStalled,
        RankStarted,
        RankDescribed,
        RankExited,
        RankFinished,
        LinkBroken,
        LinkRepair,
        MoveRequested,
        MoveRefused,
        RecordingReady,
        RolesFound,
        SandboxPeers,
        StandbyWarm,
        StandbyParked,
        StandbyAssigned,
        StandbyReplenish,
        PlanReady,
        SwitchPrepare,
        SwitchPrepared,
        SwitchAdopted,
        SwitchCommitted,
        SwitchAborted,
        TrainingStarted,
        TrainingResumed,
        StepSample,
        Heartbeat,
        TimerFired,
        JournalEntry,
        DeadLetter,
    )
}
"""Every model by its type name."""

AREAS: tuple[str, ...] = tuple(
    sorted({name.split(".")[0] for name, model in EVENTS.items() if model.journalled})
)
"""The areas (second-last part of a subject) that the log keeps."""
