"""Standby: which spare is warm, and which takes whose seat.

What lives here: the life of a spare machine, the life of a gap (a seat that needs another machine,
because its machine failed or is asked to move), and the pairing of the two; and, once all ranks are
described, the roles of the machines (``roles``).  What never lives here: who failed (health), the
layout and its links (planner), epochs (switcher).

Both lives are tables.  Every round of settling walks spares and gaps along their tables for as
long as a trigger holds, then pairs gaps with parked spares: failures before moves, the older first.
A spare is warm in one role after another (``warming``), and takes a seat of any role that is parked
on it, also while it is still being warmed in others.

Because a trigger is a question about facts, it does not matter in which order they came.  Only what
can have a new answer is asked again: spares about which something changed (:meth:`StandbyCore._due`)
and gaps that are open, so that the start of a large job takes steps in proportion to its machines.

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

from collections.abc import Collection, Iterable, Mapping
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
    MachineRole,
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
from trainmover.services.gaps import (
    GAPS,
    PARKED,
    SPARES,
    WAITING,
    Book,
    Gap,
    Incident,
    Line,
    Spare,
    SpareMachine,
)
from trainmover.services.reasons import held, why_no_move, why_uncovered, why_unsourced
from trainmover.services.regrowth import Regrowth
from trainmover.services.replenish import Replenishing
from trainmover.services.replicas import why_no_pause
from trainmover.services.roles import find_roles
from trainmover.services.roster import Life
from trainmover.services.tables import first_trigger
from trainmover.services.warming import Warming

PATIENCE = 60.0
"""Seconds that a move waits for a spare that is being warmed."""

DOUBT = 10.0
"""Seconds that a lost state is waited for while a switch is on its way that may have brought it across."""


class StandbyCore(Decider):
    """Keeps the pool of spares and fills gaps from it; see the module."""

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

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self.patience = patience
        self.spares: dict[Life, SpareMachine] = {}
        self._book = Book(self.roster)
        self.gaps = self._book.gaps
        self._line = Line()
        self._situation: tuple[object, ...] = ()
        self._warming = Warming(self.roster)
        self._replenishing = Replenishing(self.roster)
        self._regrowth = Regrowth(self.roster)

    # -- inputs ------------------------------------------------------------------------------------

    def _joined(self, event: MachineJoined) -> None:
        life = (event.machine, event.incarnation)
        if life not in self.spares:
            self.spares[life] = self._line.add(life)
            self._replenishing.joined()

    def _launched(self, event: MachineLaunch) -> None:
        if self.roster.roles:  # it is late, and may tell who records
            self._stir_idle()

    def _slot_parked(self, event: StandbyParked) -> None:
        self._warming.note(event)
        self._line.stir(event.machine)

    def _what_can_be_warmed(self, event: RecordingReady | RecordingFailed | RankExited) -> None:
        if isinstance(event, RankExited):
            self._warming.note_end(event)
        self._stir_idle()

    def _started(self, event: TrainingStarted) -> None:
        self._replenishing.of_use()

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
        if to is not None and not any(s.life[0] == to and s.state in WAITING for s in self._pool()):
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
        RankExited: _what_can_be_warmed,
        RecordingReady: _what_can_be_warmed,
        RecordingFailed: _what_can_be_warmed,
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
        moved += [self._advance_spare(spare) for spare in self._due()]
        shrunk = self._regrowth.under_way or self.roster.vacant
        return any(moved) or self._open_gap() or bool(shrunk and self._grow()) or self._replenish()

    def _find_roles(self) -> bool:
        """Say the roles of the machines, once in a generation."""
        roster = self.roster
        if roster.roles or not roster.all_described:
            return False
        self.say(find_roles(roster.described, roster.size, roster.slots, roster.generation))
        return True

    def _due(self) -> list[SpareMachine]:
        """Spares whose triggers may have another answer than when they were last walked.

        A trigger asks about the machine itself (the roster names those that changed), about what
        all have in common, for idle machines about recordings and open gaps, or, when the spare is
        assigned, about its gap.
        """
        roster = self.roster
        situation = (roster.generation, roster.settled, roster.replaceable, roster.full, roster.slots)
        self._line.stir(*roster.take_touched())
        if situation != self._situation:
            self._situation = situation
            self._line.stir_all()
        return self._line.take_due()

    def _stir_idle(self) -> None:
        self._line.stir(*(joined.machine for joined in self.roster.idle()))

    def _advance_spare(self, spare: SpareMachine) -> bool:
        roster, life = self.roster, spare.life
        role = self._next_role(spare)
        trigger = first_trigger(
            SPARES,
            spare.state,
            {
                "gone": lambda: life in roster.gone,
                "seated": lambda: roster.is_member(*life),
                "unseated": lambda: roster.settled and not roster.is_member(*life),
                "stale": lambda: spare.generation != roster.generation,
                "recording is ready": lambda: role is not None,
                "next role": lambda: role is not None,
                "all roles parked": lambda: self._warming.complete(spare, self._book.wanted_roles()),
                "not needed": lambda: (
                    all(gap.joiner != life for gap in self._book.live) and not self._regrowth.has(life)
                ),
            },
        )
        if trigger is None:
            return False
        before = spare.state
        self._line.enter(spare, trigger)
        match spare.state:
            case Spare.JOINED:
                spare.warmed = []
            case Spare.WARMING:
                self._note_use(spare)
                if role is not None:
                    self.say(self._warming.order(spare, role, self._book.wanted_roles()))
            case Spare.PARKED:
                self._note_use(spare)
            case Spare.LOST:
                parked = spare.was_parked or self._warming.of_use(spare)
                self._replenishing.lost(of_use=parked or (before is Spare.MEMBER and roster.started))
            case Spare.MEMBER if before is Spare.ASSIGNED:
                self._replenishing.promoted()
            case _:
                pass
        return True

    def _next_role(self, spare: SpareMachine) -> MachineRole | None:
        """The role to warm a spare in now, if it is one that can be warmed."""
        roster = self.roster
        usable = roster.replaceable and roster.full and roster.is_idle(*spare.life)
        if not usable or spare.state not in WAITING:
            return None
        return self._warming.next_role(spare, self._book.wanted_roles(), self._pool())

    def _note_use(self, spare: SpareMachine) -> None:
        if self._warming.of_use(spare):
            spare.was_parked = True
            self._replenishing.of_use()

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
                "state lost": lambda: lost and (gap.given_up or not self._book.switching),
                "spare parked": lambda: choice is not None,
                "refused": lambda: self._book.is_move(gap) and (gap.late or not self._on_the_way(gap)),
                "replica pauses": lambda: not gap.exhausted and self._may_pause(gap),
                "no spare": lambda: not self._book.is_move(gap) and not self._on_the_way(gap),
                "seat taken": lambda: gap.joiner is not None and roster.is_member(*gap.joiner),
                "joiner lost": lambda: gap.joiner in roster.gone,
            },
        )
        if trigger is None:
            return False
        gap.state = GAPS[gap.state][trigger]
        self._stir_idle()
        if not gap.live:
            self._book.close(gap)
        match trigger:
            case "spare parked":
                assert choice is not None, "an assignment has a spare"
                gap.exhausted = False
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
            case "no spare" | "state lost":
                gap.joiner = None
                self._hold(gap)
            case "joiner lost":
                gap.joiner = None
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
        self._stir_idle()

    def _pool(self) -> Iterable[SpareMachine]:
        """Living spares that fit, in order of joining."""
        lives = [(joined.machine, joined.incarnation) for joined in self.roster.idle()]
        return [self.spares[life] for life in lives if life in self.spares]

    def _choice(self, gap: Incident) -> SpareMachine | None:
        """The spare that takes this seat now, if there is somebody to send it the state."""
        wanted, role = self._book.wanted(gap), self.roster.role_of(gap.seat)
        if role is None:
            return None
        fits = [s for s in self._pool() if s.state in PARKED and wanted in (None, s.life[0])]
        spare = self._warming.choose(role, fits)
        return None if spare is None or why_unsourced(self.roster, gap.seat) else spare

    def _on_the_way(self, gap: Incident) -> bool:
        """A spare that may yet be parked in the role: it is here, or for a move, asked for."""
        wanted = self._book.wanted(gap)
        if why_uncovered(self.roster, self._warming, gap.seat):
            return False
        here = any(s.state in WAITING and wanted in (None, s.life[0]) for s in self._pool())
        return here or (self._book.is_move(gap) and wanted is None and self._replenishing.unanswered > 0)

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
            self._stir_idle()
            return True
        if not roster.vacant or not roster.settled or any(gap.state is Gap.OPEN for gap in self._book.live):
            return False

        def choose(seat: int, taken: Collection[Life]) -> SpareMachine | None:
            role = role_of(seat)
            fits = [spare for spare in self._pool() if spare.state in PARKED and spare.life not in taken]
            if role is None or roster.unsourced(seat, roster.vacant) is not None:
                return None
            return self._warming.choose(role, fits)

        found = self._regrowth.find(choose)
        for seat, spare in found.items():
            incident = incident_id("grow", roster.generation, roster.vacated_in(seat), seat)
            role = role_of(seat)
            self._line.enter(spare, "assigned")
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
        self._line.enter(spare, "assigned")
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
        reason = (
            reason or why_no_move(self.roster, self._warming, machine) or "no spare is warm or being warmed"
        )
        self.do(CancelTimer(f"move:{gap.id}"))
        self.say(MoveRefused(machine=machine, incident=gap.id, reason=reason), gap.id)

    def _hold(self, gap: Incident) -> None:
        self.say(held(self.roster, self._warming, gap.id, gap.seat, self._book.occupant(gap)), gap.id)

    def _replenish(self) -> bool:
        """Ask for one more spare, when one was used up; a seat that waits for one comes first."""
        if not self._replenishing.wanted:
            return False
        assigned = {gap.seat for gap in self._book.live if gap.state is Gap.ASSIGNED}
        request = self._replenishing.request(
            sum(1 for spare in self._pool() if spare.state in WAITING),
            urgent=any(seat not in assigned for seat, _ in self.roster.lost()),
            switching=bool(assigned) or self._regrowth.under_way,
        )
        if request is not None:
            self.say(request)
        return request is not None
