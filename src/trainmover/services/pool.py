"""The pool of spares: who is there, who is warmed in what, and when one more is asked for.

What lives here: each spare walked along its table (``spares``), and the choice of one for a role.  What
never lives here: which seat needs one (``standby``), the order of the roles (``warming``), how many are asked
for (``replenish``).

Because a trigger is a question about facts, it does not matter in which order they came.  Only spares about
which something changed are asked again (:meth:`Pool._due`), so that the start of a large job takes steps in
proportion to its machines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from trainmover.events.catalogue import (
    Event,
    MachineJoined,
    MachineRole,
    RankExited,
    RecordingFailed,
    RecordingReady,
    StandbyParked,
    TrainingStarted,
)
from trainmover.services.gaps import Book
from trainmover.services.regrowth import Regrowth
from trainmover.services.replenish import Replenishing
from trainmover.services.roster import Life, Roster
from trainmover.services.spares import PARKED, SPARES, WAITING, Line, Spare, SpareMachine
from trainmover.services.tables import first_trigger
from trainmover.services.warming import Warming


class Pool:
    """All spares; see the module.

    Args:
        roster: what is known of the cluster.
        book: the gaps, whose roles come first.
        regrowth: who is to bring a paused replica back.
        say: answers with an event.

    Attributes:
        spares: every machine's life that there was.
        warming: who is warm in what.
        replenishing: how many more are asked for.
    """

    def __init__(self, roster: Roster, book: Book, regrowth: Regrowth, say: Callable[[Event], None]) -> None:
        self.spares: dict[Life, SpareMachine] = {}
        self.warming = Warming(roster)
        self.replenishing = Replenishing(roster)
        self._roster = roster
        self._book = book
        self._regrowth = regrowth
        self._say = say
        self._line = Line()
        self._situation: tuple[object, ...] = ()

    # -- facts -----------------------------------------------------------------------------------

    def joined(self, event: MachineJoined) -> None:
        """A machine is there; it may answer a request."""
        life = (event.machine, event.incarnation)
        if life not in self.spares:
            self.spares[life] = self._line.add(life)
            self.replenishing.joined()

    def parked(self, event: StandbyParked) -> None:
        """A slot of a spare is warm in a role."""
        self.warming.note(event)
        self._line.stir(event.machine)

    def recorded(self, event: RecordingReady | RecordingFailed) -> None:
        """There may be another role to be warm in, or one less."""
        self.stir_idle()

    def ended(self, event: RankExited) -> None:
        """A rank ended; of a spare, that tells of its role."""
        self.warming.note_end(event)
        self.stir_idle()

    def started(self, event: TrainingStarted) -> None:
        """The members do steps: machines are of use here."""
        self.replenishing.of_use()

    def stir_idle(self) -> None:
        """Something changed that idle spares ask about: a recording, a gap."""
        self._line.stir(*(joined.machine for joined in self._roster.idle()))

    # -- one round -------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Take every transition whose trigger holds; False when there was none."""
        moved = [self._advance(spare) for spare in self._due()]
        return any(moved)

    def assign(self, spare: SpareMachine) -> None:
        """A spare is to take a seat."""
        self._line.enter(spare, "assigned")

    def replenish(self) -> bool:
        """Ask for one more spare, when one was used up; a seat that waits for one comes first."""
        if not self.replenishing.wanted:
            return False
        assigned = self._book.assigned_seats()
        request = self.replenishing.request(
            sum(1 for spare in self.idle() if spare.state in WAITING),
            urgent=any(seat not in assigned for seat, _ in self._roster.lost()),
            switching=bool(assigned) or self._regrowth.under_way,
        )
        if request is not None:
            self._say(request)
        return request is not None

    def _due(self) -> list[SpareMachine]:
        """Spares whose triggers may have another answer than when they were last walked.

        A trigger asks about the machine itself (the roster names those that changed), about what
        all have in common, for idle machines about recordings and open gaps, or, when the spare is
        assigned, about its gap.
        """
        roster = self._roster
        situation = (roster.generation, roster.settled, roster.replaceable, roster.full, roster.slots)
        self._line.stir(*roster.take_touched())
        if situation != self._situation:
            self._situation = situation
            self._line.stir_all()
        return self._line.take_due()

    def _advance(self, spare: SpareMachine) -> bool:
        roster, life = self._roster, spare.life
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
                "all roles parked": lambda: self.warming.complete(spare, self._book.wanted_roles()),
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
                    self._say(self.warming.order(spare, role, self._book.wanted_roles()))
            case Spare.PARKED:
                self._note_use(spare)
            case Spare.LOST:
                parked = spare.was_parked or self.warming.of_use(spare)
                self.replenishing.lost(of_use=parked or (before is Spare.MEMBER and roster.started))
            case Spare.MEMBER if before is Spare.ASSIGNED:
                self.replenishing.promoted()
            case _:
                pass
        return True

    def _next_role(self, spare: SpareMachine) -> MachineRole | None:
        """The role to warm a spare in now, if it is one that can be warmed."""
        roster = self._roster
        usable = roster.replaceable and roster.full and roster.is_idle(*spare.life)
        if not usable or spare.state not in WAITING:
            return None
        return self.warming.next_role(spare, self._book.wanted_roles(), self.idle())

    def _note_use(self, spare: SpareMachine) -> None:
        if self.warming.of_use(spare):
            spare.was_parked = True
            self.replenishing.of_use()

    # -- questions -------------------------------------------------------------------------------

    def idle(self) -> Iterable[SpareMachine]:
        """Living spares that fit, in order of joining."""
        lives = [(joined.machine, joined.incarnation) for joined in self._roster.idle()]
        return [self.spares[life] for life in lives if life in self.spares]

    def waits(self, wanted: str | None) -> bool:
        """A spare is there without a seat, or the wanted one is: it is parked in a role, or may yet be."""
        return any(s.state in WAITING and wanted in (None, s.life[0]) for s in self.idle())

    def choose(
        self, role: MachineRole, wanted: str | None = None, taken: Collection[Life] = ()
    ) -> SpareMachine | None:
        """The spare to take a seat of a role now: the wanted one, or the best of those that are not taken."""
        fits = [
            spare
            for spare in self.idle()
            if spare.state in PARKED and wanted in (None, spare.life[0]) and spare.life not in taken
        ]
        return self.warming.choose(role, fits)
