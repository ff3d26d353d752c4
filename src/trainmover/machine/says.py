"""What a machine may say on the bus, and what of that a rank may say through it.

What lives here: two tables.  The machine program drops what a rank says beyond its own
(``agent``), and the bus's permissions for machines are made from both (``access.roles``).
"""

from __future__ import annotations

from typing import Final

from trainmover.events import catalogue as say

RANK_SAYS: Final[frozenset[type[say.Event]]] = frozenset(
    {
        say.RankStarted,
        say.RankDescribed,
        say.RankExited,
        say.RankFinished,
        say.LinkBroken,
        say.LinkReached,
        say.LinkUnreached,
        say.MoveRequested,
        say.RecordingReady,
        say.RecordingFailed,
        say.StandbyParked,
        say.SwitchPrepared,
        say.SwitchAdopted,
        say.TrainingStarted,
        say.TrainingResumed,
        say.StepSample,
        say.CheckpointSaved,
        say.CheckpointFailed,
        say.CheckpointLoaded,
        say.MirrorWhole,
        say.MirrorFailed,
    }
)
"""A training process reports; it decides nothing about others, so no request or verdict is here."""

MACHINE_SAYS: Final[frozenset[type[say.Event]]] = RANK_SAYS | {
    say.MachineJoined,
    say.MachineLeft,
    say.Heartbeat,
    say.DeadLetter,
}
"""What travels on a machine's connection."""
