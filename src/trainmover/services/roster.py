"""The roster: what several cores know of the cluster, folded from the log in one way.

What lives here: on top of who sits where (``seating``): how the job stands, which roles there are and how
far they are recorded, and whose state is on which machine.  What never lives here: decisions.

Facts may come late, twice or out of order, so each is kept in a form in which that does no harm: a
set that only grows (``gone``), a number that only grows (``generation``, ``epoch``), or a dict
whose entries are set once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal

from trainmover.events.catalogue import (
    CheckpointSaved,
    Event,
    JobCompleted,
    JobFailed,
    JobHeld,
    MachineLaunch,
    MachineRole,
    MirrorFailed,
    MirrorWhole,
    RankDescribed,
    RecordingFailed,
    RecordingReady,
    RolesFound,
    TrainingStarted,
)
from trainmover.services.described import Described
from trainmover.services.roles import seats_in
from trainmover.services.seating import Life, Seating
from trainmover.topology import VACANT

__all__ = ["Life", "Recorded", "Roster"]

Recorded = Literal["whole", "awaited", "failed", "lost"]
"""How far the recording of a role is: there, on its way, impossible, or lost with its machine."""


class Roster(Seating):
    """The cluster as the log tells it.

    Attributes:
        over: the job completed or failed; nothing is decided any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self._started: set[int] = set()
        self._state_lost: set[int] = set()
        self._checkpoint = 0
        self._recorders: dict[int, Life] = {}
        self._recordings: dict[tuple[int, str], dict[int, str]] = {}
        self._unrecorded: dict[tuple[int, str], str] = {}
        self._described: dict[int, Described] = {}
        self._roles: dict[int, RolesFound] = {}
        self._role_of: dict[int, MachineRole] | None = None
        self._mirrored: dict[int, set[int]] = {}
        self._unmirrored: dict[int, dict[int, str]] = {}

    # -- facts -----------------------------------------------------------------------------------

    def _note_over(self, event: JobCompleted | JobFailed) -> None:
        self.over = True

    def _note_held(self, event: JobHeld) -> None:
        if event.lost:
            self._state_lost.add(event.generation)

    def _note_started(self, event: TrainingStarted) -> None:
        self._started.add(event.generation)

    def _note_checkpoint(self, event: CheckpointSaved) -> None:
        self._checkpoint = max(self._checkpoint, event.step)

    def _note_launch(self, event: MachineLaunch) -> None:
        super()._note_launch(event)
        if event.record and event.generation == self.generation:
            self._recorders[event.position] = (event.machine, event.incarnation)

    def _enter(self, generation: int) -> None:
        if generation > self.generation:
            self._recorders.clear()
            self._role_of = None
            for older in [number for number in self._described if number < generation]:
                del self._described[older]
        super()._enter(generation)

    def _note_described(self, event: RankDescribed) -> None:
        if event.generation >= self.generation:
            self._described.setdefault(event.generation, Described()).note(event)

    def _note_roles(self, event: RolesFound) -> None:
        if event.generation >= self.generation and event.generation not in self._roles:
            self._roles[event.generation] = event
            self._role_of = None
            self.role_of(0)  # the index is made now, and not in the middle of an incident

    def _note_recording(self, event: RecordingReady) -> None:
        self._recordings.setdefault((event.generation, event.machine), {})[event.slot] = event.path

    def _note_unrecorded(self, event: RecordingFailed) -> None:
        self._unrecorded.setdefault((event.generation, event.machine), event.reason)

    def _note_mirror(self, event: MirrorWhole) -> None:
        self._mirrored.setdefault(event.generation, set()).add(event.rank)

    def _note_unmirrored(self, event: MirrorFailed) -> None:
        self._mirrored.setdefault(event.generation, set()).discard(event.rank)
        self._unmirrored.setdefault(event.generation, {})[event.rank] = event.reason

    NOTES: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        **Seating.NOTES,
        JobCompleted: _note_over,
        JobFailed: _note_over,
        JobHeld: _note_held,
        TrainingStarted: _note_started,
        CheckpointSaved: _note_checkpoint,
        MachineLaunch: _note_launch,
        RankDescribed: _note_described,
        RolesFound: _note_roles,
        RecordingReady: _note_recording,
        RecordingFailed: _note_unrecorded,
        MirrorWhole: _note_mirror,
        MirrorFailed: _note_unmirrored,
    }

    # -- how the job stands ------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """A step of this generation was committed."""
        return self.generation in self._started

    @property
    def checkpointed(self) -> bool:
        """There is a checkpoint that the job can go back to."""
        if self.job is None or self.job.state == "none":
            return False
        return self._checkpoint > 0 or self.job.resume

    @property
    def state_lost(self) -> bool:
        """A part of this generation's state is on no machine any more."""
        return self.generation in self._state_lost

    @property
    def replaceable(self) -> bool:
        """There is something to keep, and it is known what a spare must be able to do.

        Before that a failure starts everything again: with a step or two lost and no spare that
        could ever get warm, there is nothing better to do.  So it is until state that is to be mirrored is.
        """
        return self.started and self.generation in self._roles and not self.mirrors_awaited

    # -- roles ----------------------------------------------------------------------------------

    @property
    def described(self) -> Described:
        """What the ranks of this generation are."""
        return self._described.setdefault(self.generation, Described())

    @property
    def all_described(self) -> bool:
        """Every rank of this generation said what it is."""
        return self.described.whole(self.size * self.slots)

    @property
    def roles(self) -> tuple[MachineRole, ...]:
        """The machine roles of this generation; none before they are found."""
        found = self._roles.get(self.generation)
        return found.roles if found is not None else ()

    def role_of(self, seat: int) -> MachineRole | None:
        """The role of a seat; None before roles are found, and for one that is not listed."""
        if self._role_of is None:
            self._role_of = {seat: role for role in self.roles for seat in seats_in(role)}
        return self._role_of.get(seat)

    def recording(self, role: MachineRole) -> tuple[str, ...] | None:
        """Files (by slot) of the recording to make spares warm in a role with, if it is whole."""
        machine, _ = self._recorders.get(role.representative, ("", ""))
        files = self._recordings.get((self.generation, machine), {})
        return tuple(files[slot] for slot in sorted(files)) if len(files) >= self.slots else None

    def recorded(self, role: MachineRole) -> Recorded:
        """How far a role's recording is."""
        if self.recording(role) is not None:
            return "whole"
        recorder = self._recorders.get(role.representative)
        if self.why_not_recorded(role):
            return "failed"
        return "lost" if recorder in self.gone else "awaited"

    def why_not_recorded(self, role: MachineRole) -> str:
        """Why a role could not be recorded; empty where nobody said that."""
        machine, _ = self._recorders.get(role.representative, ("", ""))
        return self._unrecorded.get((self.generation, machine), "")

    # -- state that no other machine has -------------------------------------------------------------

    @property
    def unreplicated(self) -> int:
        """Number of ranks whose state no rank on another machine has."""
        found = self._roles.get(self.generation)
        return 0 if found is None else sum(row.count for row in found.unreplicated)

    @property
    def mirrors_awaited(self) -> bool:
        """Ranks that are to mirror their state have not all said that they do, or that they cannot."""
        if self.job is None or self.job.state != "mirror" or self.size < 2 or not self.unreplicated:
            return False
        whole, failed = self._mirrored.get(self.generation, set()), self._unmirrored.get(self.generation, {})
        return len(whole) + len(failed.keys() - whole) < self.unreplicated

    def mirrored(self, rank: int) -> bool:
        """A rank's state is in its guardian's memory, too, as long as both live."""
        return rank in self._mirrored.get(self.generation, set())

    def why_not_mirrored(self, rank: int) -> str:
        """Why a rank cannot mirror its state; empty where it did not say that."""
        return self._unmirrored.get(self.generation, {}).get(rank, "")

    def mirror_of(self, rank: int, away: Collection[int] = ()) -> int | None:
        """The rank that keeps the mirror of a rank's state; None where there is none, or it is gone.

        Args:
            rank: whose state.
            away: seats that do not count.
        """
        seat, slot = divmod(rank, self.slots)
        guardian = self.next_taken(seat)
        machine = self.seats.get(guardian, VACANT)
        if not self.mirrored(rank) or guardian == seat or guardian in away or machine in self._lost:
            return None
        return guardian * self.slots + slot

    def unsourced(self, seat: int, away: Collection[int] = (), *, mirrors: bool = True) -> int | None:
        """The first rank of a seat whose state no living machine on another seat has; None when each has one.

        Only for a generation whose ranks are all described.

        Args:
            seat: which one.
            away: seats that do not count.
            mirrors: a mirror is as good as a replica.
        """

        def may(rank: int) -> bool:
            other = rank // self.slots
            machine = self.seats.get(other, VACANT)
            return other != seat and other not in away and machine != VACANT and machine not in self._lost

        for rank in range(seat * self.slots, (seat + 1) * self.slots):
            if self.described.sources(rank, may, rank, 1):
                continue
            if not mirrors or self.mirror_of(rank, away) is None:
                return rank
        return None
