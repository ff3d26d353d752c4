"""The catalogue: every event of TrainMover, what it says and who says it.

What lives here: one frozen pydantic model per event, by area (``job``, ``machine``, ``rank``,
``standby``, ``switch``, ``training``, ``checkpoint``, ``log``), what they are made of (``base``), and
the table that finds a model by its type name.  What never lives here: envelopes, codecs, transport,
decisions.

An event is a fact in the past tense (``machine.failed``) or a request that its owner may refuse
(``move.requested``).  Its type name is ``<area>.<event>``; the area is also the part of the NATS
subject that permissions are given for.  A *layout* travels as ``machines`` (machine ids by
position) and ``ranks_per_machine`` (K): position p holds the ranks p*K to p*K+K-1, slot s of a
machine being rank p*K+s.

Compatibility: ``version`` grows only when a change would break a subscriber; adding a field with
a default does not.
"""

from __future__ import annotations

from trainmover.events.catalogue.base import (
    MAX_MACHINES,
    MAX_NAME,
    MAX_TEXT,
    Count,
    Endpoint,
    Event,
    GridDim,
    GroupGrid,
    GroupRow,
    JoinerRank,
    LinkName,
    MachineName,
    MachineRole,
    Machines,
    Name,
    RankMode,
    Role,
    Seat,
    SeatRow,
    Seats,
    Seconds,
    SwitchKind,
    Text,
)
from trainmover.events.catalogue.checkpoint import (
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    MirrorFailed,
    MirrorWhole,
)
from trainmover.events.catalogue.job import JobCompleted, JobFailed, JobHeld, JobSubmitted
from trainmover.events.catalogue.log import DeadLetter, JournalCopy, JournalEntry, TimerFired
from trainmover.events.catalogue.machine import (
    LeaseExpired,
    LeaseReturned,
    LeaseStalled,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    MachineProbed,
    MachineSuspected,
)
from trainmover.events.catalogue.rank import (
    LinkBroken,
    LinkReached,
    LinkRepair,
    LinkUnreached,
    RankDescribed,
    RankExited,
    RankFinished,
    RankStarted,
)
from trainmover.events.catalogue.standby import (
    MoveRefused,
    MoveRequested,
    RecordingFailed,
    RecordingReady,
    RolesFound,
    SandboxPeers,
    StandbyAssigned,
    StandbyExhausted,
    StandbyParked,
    StandbyReplenish,
    StandbyWarm,
)
from trainmover.events.catalogue.switch import (
    PlanReady,
    SwitchAborted,
    SwitchAdopted,
    SwitchCommitted,
    SwitchPrepare,
    SwitchPrepared,
)
from trainmover.events.catalogue.training import Heartbeat, StepSample, TrainingResumed, TrainingStarted

__all__ = [
    "AREAS",
    "EVENTS",
    "MAX_MACHINES",
    "MAX_NAME",
    "MAX_TEXT",
    "CheckpointFailed",
    "CheckpointLoaded",
    "CheckpointSaved",
    "Count",
    "DeadLetter",
    "Endpoint",
    "Event",
    "GridDim",
    "GroupGrid",
    "GroupRow",
    "Heartbeat",
    "JobCompleted",
    "JobFailed",
    "JobHeld",
    "JobSubmitted",
    "JoinerRank",
    "JournalCopy",
    "JournalEntry",
    "LeaseExpired",
    "LeaseReturned",
    "LeaseStalled",
    "LinkBroken",
    "LinkName",
    "LinkReached",
    "LinkRepair",
    "LinkUnreached",
    "MachineFailed",
    "MachineJoined",
    "MachineLaunch",
    "MachineLeft",
    "MachineName",
    "MachineProbed",
    "MachineRole",
    "MachineSuspected",
    "Machines",
    "MirrorFailed",
    "MirrorWhole",
    "MoveRefused",
    "MoveRequested",
    "Name",
    "PlanReady",
    "RankDescribed",
    "RankExited",
    "RankFinished",
    "RankMode",
    "RankStarted",
    "RecordingFailed",
    "RecordingReady",
    "Role",
    "RolesFound",
    "SandboxPeers",
    "Seat",
    "SeatRow",
    "Seats",
    "Seconds",
    "StandbyAssigned",
    "StandbyExhausted",
    "StandbyParked",
    "StandbyReplenish",
    "StandbyWarm",
    "StepSample",
    "SwitchAborted",
    "SwitchAdopted",
    "SwitchCommitted",
    "SwitchKind",
    "SwitchPrepare",
    "SwitchPrepared",
    "Text",
    "TimerFired",
    "TrainingResumed",
    "TrainingStarted",
]

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
        LinkUnreached,
        LinkReached,
        LinkRepair,
        MoveRequested,
        MoveRefused,
        RecordingReady,
        RecordingFailed,
        RolesFound,
        SandboxPeers,
        StandbyWarm,
        StandbyParked,
        StandbyAssigned,
        StandbyExhausted,
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
        CheckpointSaved,
        CheckpointFailed,
        CheckpointLoaded,
        MirrorWhole,
        MirrorFailed,
        Heartbeat,
        TimerFired,
        JournalCopy,
        JournalEntry,
        DeadLetter,
    )
}
"""Every model by its type name."""

AREAS: tuple[str, ...] = tuple(
    sorted({name.split(".")[0] for name, model in EVENTS.items() if model.journalled})
)
"""The areas (second-last part of a subject) that the log keeps."""
