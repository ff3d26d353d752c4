"""Standby: which spare is warm, and which takes whose seat.

What lives here: the life of a gap (a seat that needs another machine, because its machine failed or is asked
to move) and its pairing with a spare; and, once all ranks are described, the roles of the machines
(``roles``).  What never lives here: the life of a spare (``pool``), who failed (health), the layout and its
links (planner), epochs (switcher).

Both lives are tables.  Every round of settling walks gaps and spares along their tables for as
long as a trigger holds, then pairs gaps with parked spares: failures before moves, the older first.
A spare is warm in one role after another (``warming``), and takes a seat of any role that is parked
on it, also while it is still being warmed in others.

A gap is about a *seat*, not a machine.  When a joiner dies in the middle of its switch, the gap is
open again and gets another spare, whether or not that switch was committed at the last moment: who
has to leave is always whoever sits there now.

When no spare is parked and none is on its way, a failure holds the job (``job.held``; or fails it,
when the job says so) and a move is refused.  A move may wait :data:`PATIENCE` seconds for a spare that
is being warmed.  A failure whose state is on no other machine (nor on its way to a joiner), or in a
role that no spare can be warm in, holds the job with that reason (``reasons``).  With
``--on-exhausted shrink`` the seat's data-parallel replica pauses instead (``standby.exhausted``), where it
can (``replicas``); when there are spares for all its seats, it comes back (``regrowth``).  After a
promotion or a loss a fresh spare is asked for (``replenish``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from trainmover.events.catalogue import (
    CheckpointSaved,
    Event,
    JobCompleted,
    JobFailed,
    JobHeld,
    JobSubmitted,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    MirrorFailed,
    MirrorWhole,
    MoveRefused,
    MoveRequested,
    RankDescribed,
    RankExited,
    RecordingFailed,
    RecordingReady,
    RolesFound,
    StandbyAssigned,
    StandbyExhausted,
    StandbyParked,
    StandbyReplenish,
    StandbyWarm,
    SwitchCommitted,
    TimerFired,
    TrainingStarted,
)
from trainmover.services.core import CancelTimer, Decider, Reaction, SetTimer, incident_id, noted
from trainmover.services.crew import nothing_to_keep
from trainmover.services.gaps import GAPS, Book, Gap, Incident
from trainmover.services.pool import Pool
from trainmover.services.reasons import held, why_no_move, why_uncovered, why_unsourced
from trainmover.services.regrowth import Regrowth
from trainmover.services.replicas import why_no_pause
from trainmover.services.roles import find_roles
from trainmover.services.roster import Life
from trainmover.services.spares import SpareMachine
from trainmover.services.tables import first_trigger

PATIENCE = 60.0
"""Seconds that a move waits for a spare that is being warmed."""

DOUBT = 10.0
"""Seconds that a lost state is waited for while a switch is on its way that may have brought it across."""


class StandbyCore(Decider):
    """Fills gaps from the pool of spares; see the module."""

    name: ClassVar[str] = "standby"
    SAYS: ClassVar[tuple[type[Event], ...]] = (
        RolesFound,
        StandbyWarm,
        StandbyAssigned,
        StandbyExhausted,
        StandbyReplenish,
        MoveRefused,
        JobHeld,
        JobFailed,
    )
    pool_class: ClassVar[type[Pool]] = Pool

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self.patience = patience
        self._book = Book(self.roster)
        self.gaps = self._book.gaps
        self._regrowth = Regrowth(self.roster)
        self._pool = self.pool_class(self.roster, self._book, self._regrowth, self.say)
        self.spares = self._pool.spares
        self._warming, self._replenishing = self._pool.warming, self._pool.replenishing

    # -- inputs ------------------------------------------------------------------------------------

    def _joined(self, event: MachineJoined) -> None:
        self._pool.joined(event)

    def _launched(self, event: MachineLaunch) -> None:
        if self.roster.roles:  # it is late, and may tell who records
            self._pool.stir_idle()

    def _slot_parked(self, event: StandbyParked) -> None:
        self._pool.parked(event)

    def _recorded(self, event: RecordingReady | RecordingFailed) -> None:
        self._pool.recorded(event)

    def _rank_ended(self, event: RankExited) -> None:
        self._pool.ended(event)

    def _started(self, event: TrainingStarted) -> None:
        self._pool.started(event)

    def _move(self, event: MoveRequested) -> None:
        incident = incident_id("move", self.heard.id)
        reason = self._why_not(event)
        seat = self.roster.seat_of(event.machine)
        if reason or seat is None:
            self.say(MoveRefused(machine=event.machine, incident=incident, reason=reason), incident)
            return
        self._open(Incident(incident, seat, self.roster.generation, event))
        self.do(SetTimer(f"move:{incident}", self.now + self.patience))

    def _why_not(self, event: MoveRequested) -> str:
        """Why a move cannot be, as far as that is known at once; empty when it may be."""
        roster, to = self.roster, event.to
        if roster.seated(event.machine) and self._book.at(roster.seat_of(event.machine)) is not None:
            return f"{event.machine} is being replaced already"
        if why := why_no_move(roster, self._warming, event.machine):
            return why
        if to is not None and not self._pool.waits(to):
            return f"{to} is not a living spare machine"
        return ""

    def _fired(self, event: TimerFired) -> None:
        what, _, which = event.name.partition(":")
        gap = self.gaps.get(which)
        if gap is not None and what == "lost":
            gap.given_up = True
        elif gap is not None and gap.state is Gap.OPEN:
            gap.late = True

    HEARS: ClassVar[Mapping[type[Event], Reaction]] = {
        JobSubmitted: noted,
        JobCompleted: noted,
        JobFailed: noted,
        CheckpointSaved: noted,
        MirrorWhole: noted,
        MirrorFailed: noted,
        MachineJoined: _joined,
        MachineLeft: noted,
        MachineFailed: noted,
        MachineLaunch: _launched,
        RankDescribed: noted,
        RankExited: _rank_ended,
        RecordingReady: _recorded,
        RecordingFailed: _recorded,
        TrainingStarted: _started,
        SwitchCommitted: noted,
        StandbyParked: _slot_parked,
        MoveRequested: _move,
        TimerFired: _fired,
    }

    # -- settling ----------------------------------------------------------------------------------

    def advance(self) -> bool:
        """One round: roles, gaps, then spares, then a new gap or a request for a spare.

        Gaps before spares: a spare that is needed now is not sent to warm its next role.
        """
        if self._find_roles():
            return True
        moved = [self._advance_gap(gap) for gap in self._book.in_order()]
        moved.append(self._pool.advance())
        shrunk = self._regrowth.under_way or self.roster.vacant
        return any(moved) or self._open_gap() or bool(shrunk and self._grow()) or self._pool.replenish()

    def _find_roles(self) -> bool:
        """Say the roles of the machines, once in a generation."""
        roster = self.roster
        if roster.roles or not roster.all_described:
            return False
        self.say(find_roles(roster.described, roster.size, roster.slots, roster.generation))
        return True

    def _advance_gap(self, gap: Incident) -> bool:
        roster = self.roster
        choice = self._choice(gap) if gap.state in (Gap.OPEN, Gap.HELD) else None
        occupied = not roster.dead(self._book.occupant(gap))
        lost = not occupied and not nothing_to_keep(roster) and bool(why_unsourced(roster, gap.seat))
        if lost and self._book.switching and not gap.doubted:
            gap.doubted = True
            self.do(SetTimer(f"lost:{gap.id}", self.now + DOUBT))
        trigger = first_trigger(
            GAPS,
            gap.state,
            {
                "moot": lambda: (
                    gap.generation != roster.generation
                    or gap.seat in roster.vacant
                    or (gap.asked is None and gap.joiner is None and occupied)
                ),
                "state lost": lambda: (
                    lost and not gap.told_lost and (gap.given_up or not self._book.switching)
                ),
                "spare parked": lambda: choice is not None,
                "refused": lambda: self._book.is_move(gap) and (gap.late or not self._on_the_way(gap)),
                "replica pauses": lambda: not gap.exhausted and self._may_pause(gap),
                "no spare": lambda: not self._book.is_move(gap) and not self._on_the_way(gap),
                "seat taken": lambda: gap.joiner is not None and roster.is_member(*gap.joiner),
                "joiner lost": lambda: gap.joiner in roster.gone,
                # Heard after the job was held for want of a spare: now no spare would do.
                "not recorded": lambda: (
                    not (gap.told_uncovered or gap.told_lost or gap.exhausted)
                    and bool(why_uncovered(roster, self._warming, gap.seat))
                ),
            },
        )
        if trigger is None:
            return False
        gap.state = GAPS[gap.state][trigger]
        self._pool.stir_idle()
        if not gap.live:
            self._book.close(gap)
        match trigger:
            case "spare parked":
                assert choice is not None, "an assignment has a spare"
                gap.exhausted = gap.told_lost = gap.told_uncovered = False
                self._assign(gap, choice)
            case "refused":
                self._refuse(gap)
            case "replica pauses":
                gap.exhausted = True
                self.say(
                    StandbyExhausted(
                        incident=gap.id,
                        machine=self._book.occupant(gap),
                        position=gap.seat,
                        generation=gap.generation,
                    ),
                    gap.id,
                )
            case "no spare" | "state lost" | "not recorded":
                gap.joiner = None
                gap.told_lost = lost
                gap.told_uncovered = bool(why_uncovered(roster, self._warming, gap.seat))
                self._hold(gap)
            case "joiner lost":
                gap.joiner = None
            case "moot" if gap.seat in roster.vacant and self._book.is_move(gap):
                self._refuse(gap)
            case _:
                pass
        return True

    # -- gaps --------------------------------------------------------------------------------------

    def _open_gap(self) -> bool:
        """A dead member without a gap gets one, once there is something to keep."""
        roster = self.roster
        if not roster.replaceable or nothing_to_keep(roster):
            return False
        for seat, machine in roster.lost():
            if self._book.at(seat) is None:
                incident = incident_id(machine, roster.life(machine))
                self._open(Incident(incident, seat, roster.generation, None))
                return True
        return False

    def _open(self, gap: Incident) -> None:
        self._book.open(gap)
        self._pool.stir_idle()

    def _choice(self, gap: Incident) -> SpareMachine | None:
        """The spare that takes this seat now, if there is somebody to send it the state."""
        wanted, role = self._book.wanted(gap), self.roster.role_of(gap.seat)
        if role is None:
            return None
        spare = self._pool.choose(role, wanted)
        return None if spare is None or why_unsourced(self.roster, gap.seat) else spare

    def _on_the_way(self, gap: Incident) -> bool:
        """A spare that may yet be parked in the role: it is here, or for a move, asked for."""
        wanted = self._book.wanted(gap)
        if why_uncovered(self.roster, self._warming, gap.seat):
            return False
        return self._pool.waits(wanted) or (
            self._book.is_move(gap) and wanted is None and self._replenishing.unanswered > 0
        )

    def _may_pause(self, gap: Incident) -> bool:
        """No spare can take a dead machine's seat, and the job goes on without its replica."""
        job = self.roster.job
        if job is None or job.on_exhausted != "shrink" or self._book.is_move(gap) or self._on_the_way(gap):
            return False
        return not why_no_pause(self.roster, [gap.seat])

    def _grow(self) -> bool:
        """Bring a paused replica back, when there are spares for all its seats; gaps come first."""
        roster, role_of = self.roster, self.roster.role_of
        if self._regrowth.tidy():
            self._pool.stir_idle()
            return True
        if not roster.vacant or not roster.settled or any(gap.state is Gap.OPEN for gap in self._book.live):
            return False

        def choose(seat: int, taken: Collection[Life]) -> SpareMachine | None:
            role = role_of(seat)
            if role is None or roster.unsourced(seat, roster.vacant) is not None:
                return None
            return self._pool.choose(role, taken=taken)

        found = self._regrowth.find(choose)
        for seat, spare in found.items():
            incident = incident_id("grow", roster.generation, roster.vacated_in(seat), seat)
            role = role_of(seat)
            self._pool.assign(spare)
            self.say(
                StandbyAssigned(
                    incident=incident,
                    kind="grow",
                    leaver="",
                    joiner=spare.life[0],
                    joiner_incarnation=spare.life[1],
                    generation=roster.generation,
                    role=role.name if role is not None else "",
                    position=seat,
                ),
                incident,
            )
        return bool(found)

    def _assign(self, gap: Incident, spare: SpareMachine) -> None:
        kind = "move" if self._book.is_move(gap) else "failure"
        gap.joiner = spare.life
        self._pool.assign(spare)
        if gap.asked is not None:
            self.do(CancelTimer(f"move:{gap.id}"))
        self.say(
            StandbyAssigned(
                incident=gap.id,
                kind=kind,  # type: ignore[arg-type]  # a literal by the line above
                leaver=self._book.occupant(gap),
                joiner=spare.life[0],
                joiner_incarnation=spare.life[1],
                generation=gap.generation,
                role=role.name if (role := self.roster.role_of(gap.seat)) is not None else "",
            ),
            gap.id,
        )

    def _refuse(self, gap: Incident) -> None:
        wanted = self._book.wanted(gap) or "a spare"
        machine = self._book.occupant(gap)
        reason = f"{wanted} was not warm in {self.patience:g} s" if gap.late else ""
        if gap.seat in self.roster.vacant:
            machine = gap.asked.machine if gap.asked is not None else machine
            reason = f"its replica pauses, so nobody trains at position {gap.seat}"
        reason = (
            reason or why_no_move(self.roster, self._warming, machine) or "no spare is warm or being warmed"
        )
        self.do(CancelTimer(f"move:{gap.id}"))
        self.say(MoveRefused(machine=machine, incident=gap.id, reason=reason), gap.id)

    def _hold(self, gap: Incident) -> None:
        self.say(held(self.roster, self._warming, gap.id, gap.seat, self._book.occupant(gap)), gap.id)
