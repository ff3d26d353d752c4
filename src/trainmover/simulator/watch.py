"""The watch: what must hold at every event, whatever goes wrong.

What lives here: the invariants, checked on what services are fed and say, on what ranks do, and on the
time that passes.  What never lives here: what goes wrong, and what a run must have come to at its end
(``run``).

- *One holder per rank and epoch*: no two lives ever enter the same place of the same epoch, and no
  step is committed in an epoch after one was committed in a later epoch.
- *Epochs only grow*: of plans, commits, and for every rank; one epoch means one layout, is committed
  or aborted and not both.
- *What is fenced is not used*: once a service was fed that a life is over, it never plans with it,
  launches it, warms it or assigns it.
- *A vacant seat has nobody*: seats are vacated only by a ``shrink``, filled only by joiners, and never are
  all of them vacant; who stays keeps its seat.
- *A state comes from whoever has it*: a joiner that gets the mirror of a rank's state gets that of the step
  at which training stands.
- *A standby is used once*: it has one open assignment at most, and no seat then (a service that was
  born again may repeat an assignment that has been carried out).
- *The bus's silence is not a machine's*: who has been well for some seconds is not declared dead for being
  silent, whatever becomes of the bus and the services meanwhile (see ``cluster``).
- *The same words for the same cause*: an id never means two things; a life is declared dead once.
- *A core does not raise.*

One thing is excused.  What is said while the log stalls is heard, and if its sender dies before the log takes
events again, those who heard it store it; but until they have, and if they die too, it is in no log.  A
service that had heard (or said) such a thing, and is born again from that log, has another history than it
lived: it is *forgetful*, and may name an epoch again or end one twice.
Nobody may act on that: what is demanded of ranks, of what is fenced and of the end of a run is demanded
all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.services.core import Output, Say
from trainmover.simulator.assembly import Assembly
from trainmover.simulator.ranks import SimulatedRank

Life = tuple[str, str]


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass
class Knowledge:
    """What one service was fed in its present life, as far as the watch needs it."""

    gone: set[Life] = field(default_factory=set)
    lives: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    heard: list[str] = field(default_factory=list)

    def note(self, event: say.Event) -> None:
        """It was fed this, or said it."""
        match event:
            case say.MachineFailed() | say.MachineLeft():
                self.gone.add((event.machine, event.incarnation))
            case say.MachineLaunch():
                if event.generation >= self.generation:
                    if event.generation > self.generation:
                        self.generation = event.generation
                        self.lives.clear()
                    self.lives[event.machine] = event.incarnation
            case say.StandbyAssigned():
                if event.generation >= self.generation:
                    self.lives[event.joiner] = event.joiner_incarnation
            case say.SwitchCommitted():
                # A name that has no seat now may be another life's when it gets one.
                self.lives = {name: life for name, life in self.lives.items() if name in event.machines}
            case _:
                pass

    def over(self, machines: Iterable[str]) -> list[str]:
        """Machines that it knows to be over, of these."""
        return [name for name in machines if (name, self.lives.get(name, "")) in self.gone]


class Watch:
    """See the module.

    Attributes:
        incidents: open ones, and when they were opened.
        layout: the last committed one.
        members: its lives, by machine.
        held: incidents that hold the job, and why.
        over: ``job.completed`` or ``job.failed``, once it was said.
        forgetful: services that were born again from a log without all that they had heard.
        heard: ids of all that a service was ever fed.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.incidents: dict[str, float] = {}
        self.members: dict[str, str] = {}
        self.layout: tuple[str, ...] = ()
        self.held: dict[str, str] = {}
        self.over: say.JobCompleted | say.JobFailed | None = None
        self.raised = 0
        self.last_step = 0.0
        self.commits = 0
        self.forgetful: set[str] = set()
        self.heard: dict[str, set[str]] = {}
        self.switches: dict[str, int] = {}
        self._knows: dict[str, Knowledge] = {}
        self._said: dict[str, say.Event] = {}
        self._plans: dict[int, say.PlanReady] = {}
        self._prepares: dict[int, say.SwitchPrepare] = {}
        self._ends: dict[int, str] = {}
        self._committed = 0
        self._generation = 0
        self._failed: set[Life] = set()
        self._gone: set[Life] = set()
        self._lives: dict[str, str] = {}
        self._assigned: dict[str, tuple[Life, bool]] = {}
        self._served: dict[str, Life] = {}
        self._vacated: set[str] = set()
        self._holders: dict[tuple[int, int], Life] = {}
        self._repairs: set[str] = set()
        self._losses: dict[str, Life] = {}
        self._step_epoch = 0

    # -- services ----------------------------------------------------------------------------------

    def was_heard(self, event: str) -> bool:
        """A service was fed the event with this id."""
        return any(event in heard for heard in self.heard.values())

    def reborn(self, service: str, stored: Callable[[str], bool]) -> None:
        """A service begins again with what is stored."""
        knows = self._knows.get(service)
        if knows is not None and not all(map(stored, knows.heard)):
            self.forgetful.add(service)
        self._knows[service] = Knowledge()

    def fed(self, service: str, envelope: Envelope, outputs: list[Output]) -> None:
        """A core was fed an input, and answered."""
        knows = self._knows.setdefault(service, Knowledge())
        knows.note(envelope.event)
        knows.heard.append(envelope.id)
        self.heard.setdefault(service, set()).add(envelope.id)
        for output in outputs:
            if isinstance(output, Say):
                knows.note(output.event)
                self._check_fence(service, knows, output.event)

    def _check_fence(self, service: str, knows: Knowledge, event: say.Event) -> None:
        used: list[str] = []
        match event:
            case say.PlanReady() | say.SwitchPrepare() | say.SwitchCommitted():
                if event.generation >= knows.generation:
                    used = knows.over(event.machines)
            case say.MachineLaunch() | say.StandbyWarm():
                used = [event.machine] if (event.machine, event.incarnation) in knows.gone else []
            case say.StandbyAssigned():
                used = [event.joiner] if (event.joiner, event.joiner_incarnation) in knows.gone else []
            case _:
                pass
        if used:
            raise Violation(f"{service} uses {', '.join(used)} in {event.type}, which it knows to be over")

    # -- what is said --------------------------------------------------------------------------------

    def said(self, envelope: Envelope) -> None:
        """Somebody publishes an event."""
        try:
            self._note(envelope)
        except Violation:
            if envelope.source not in self.forgetful:
                raise

    def _note(self, envelope: Envelope) -> None:
        event = envelope.event
        before = self._said.get(envelope.id)
        if before is not None:
            if before != event and not isinstance(event, say.JournalEntry | say.JournalCopy):
                raise Violation(f"{envelope.id} is said twice with two meanings: {before!r}; now {event!r}")
            return
        self._said[envelope.id] = event
        match event:
            case say.PlanReady():
                self._planned(event)
            case say.SwitchPrepare():
                self._prepared(event)
            case say.SwitchCommitted():
                self._was_committed(event)
            case say.SwitchAborted():
                self._ended(event.epoch, "aborted")
            case say.MachineLaunch():
                self._launched(event)
            case say.MachineFailed():
                self._machine_failed(event, envelope.incident)
            case say.MachineLeft():
                self._gone.add((event.machine, event.incarnation))
            case say.StandbyAssigned():
                self._was_assigned(event)
            case say.LinkRepair() if event.epoch >= self._committed:  # else a later epoch has new links
                self._open(envelope.incident)
                self._repairs.add(envelope.incident or "")
            case say.MoveRefused():
                self._close([event.incident])
            case say.JobHeld():
                self.held[event.incident] = event.reason
                self._assigned.pop(event.incident, None)
            case say.JobCompleted() | say.JobFailed():
                self._job_over(event)
            case say.RankExited():
                self.raised += bool(event.error)
            case _:
                pass

    def _planned(self, plan: say.PlanReady) -> None:
        if plan.epoch in self._plans:
            raise Violation(f"epoch {plan.epoch} is planned twice")
        if self._plans and plan.epoch < max(self._plans):
            raise Violation(f"epoch {plan.epoch} is planned after epoch {max(self._plans)}")
        self._plans[plan.epoch] = plan
        taken = [name for name in plan.machines if name]
        if len(set(taken)) != len(taken):
            raise Violation(f"epoch {plan.epoch} has a machine on two seats: {plan.machines}")
        if not taken:
            raise Violation(f"epoch {plan.epoch} has nobody on any seat")
        if plan.base_epoch == self._committed and plan.base_epoch > 0 and plan.generation == self._generation:
            self._check_seats(plan)

    def _check_seats(self, plan: say.PlanReady) -> None:
        """What a plan changes of the layout that it follows."""
        for seat, (before, after) in enumerate(zip(self.layout, plan.machines, strict=True)):
            if before == after:
                continue
            if not after and (plan.kind != "shrink" or before not in plan.leavers):
                raise Violation(f"epoch {plan.epoch} ({plan.kind}) vacates seat {seat} of {before}")
            if after and after not in plan.joiners:
                raise Violation(f"epoch {plan.epoch} ({plan.kind}) moves {after} to seat {seat}")

    def _prepared(self, prepare: say.SwitchPrepare) -> None:
        before = self._prepares.setdefault(prepare.epoch, prepare)
        if before.machines != prepare.machines:
            raise Violation(f"epoch {prepare.epoch} is prepared with two layouts")
        plan = self._plans.get(prepare.epoch)
        if plan is None or plan.machines != prepare.machines:
            raise Violation(f"epoch {prepare.epoch} is prepared without such a plan")

    def _was_committed(self, event: say.SwitchCommitted) -> None:
        self._ended(event.epoch, "committed")
        if event.epoch <= self._committed:
            raise Violation(f"epoch {event.epoch} is committed after epoch {self._committed}")
        self._committed = event.epoch
        self.commits += 1
        self.switches[event.kind] = self.switches.get(event.kind, 0) + 1
        prepare = self._prepares.get(event.epoch)
        if prepare is None or prepare.machines != event.machines:
            raise Violation(f"epoch {event.epoch} is committed with another layout than it was prepared")
        self.layout = event.machines
        self.members = {name: self._lives.get(name, "") for name in event.machines if name}
        self._close(event.incidents)
        if event.kind == "shrink":
            self._vacated.update(event.incidents)
        # A new epoch has new links: no repair of an older one is open.
        self._close(self._repairs)
        self._repairs.clear()
        # Whoever was lost and has no seat any more was replaced, perhaps by a move that was on its way.
        self._close([i for i, (name, life) in self._losses.items() if self.members.get(name) != life])
        for incident, (life, _) in list(self._assigned.items()):
            # What was assigned to a seat that has been vacated meanwhile is void.
            if self.members.get(life[0]) == life[1] or event.kind == "shrink":
                del self._assigned[incident]

    def _ended(self, epoch: int, how: str) -> None:
        before = self._ends.setdefault(epoch, how)
        if before != how:
            raise Violation(f"epoch {epoch} is {how}, and was {before} before")

    def _launched(self, event: say.MachineLaunch) -> None:
        if event.generation > self._generation:
            self._generation = event.generation
            self._close(list(self.incidents))
            self._assigned.clear()
            self._vacated.clear()
            self._lives.clear()
            self.members.clear()
        if event.generation == self._generation:
            self._lives[event.machine] = event.incarnation

    def _machine_failed(self, event: say.MachineFailed, incident: str | None) -> None:
        life = (event.machine, event.incarnation)
        if life in self._failed:
            raise Violation(f"{event.machine} ({event.incarnation}) is declared dead twice")
        self._failed.add(life)
        self._gone.add(life)
        if self.members.get(event.machine) == event.incarnation and incident is not None:
            self._losses[incident] = life
            self._open(incident)

    def _was_assigned(self, event: say.StandbyAssigned) -> None:
        life = (event.joiner, event.joiner_incarnation)
        if event.generation < self._generation or (event.kind != "grow" and event.incident in self._vacated):
            return  # void: whoever assigned it had not heard that the seat was vacated
        if any(back and other in self._gone for other, back in self._assigned.values()):
            # A replica comes back whole or not at all: with one of its joiners lost the others are free.
            self._assigned = {i: item for i, item in self._assigned.items() if not item[1]}
        for incident, (other, _) in self._assigned.items():
            if other == life and incident != event.incident and life not in self._gone:
                raise Violation(f"{event.joiner} is assigned to {incident} and to {event.incident}")
        again = self._served.get(event.incident) == life
        if self.members.get(event.joiner) == event.joiner_incarnation and not again:
            raise Violation(f"{event.joiner} is assigned to {event.incident}, and has a seat")
        self._assigned[event.incident] = (life, event.kind == "grow")
        self._served[event.incident] = life
        self._lives[event.joiner] = event.joiner_incarnation
        if not again and event.kind != "grow":
            self._open(event.incident)
        self.held.pop(event.incident, None)

    def _job_over(self, event: say.JobCompleted | say.JobFailed) -> None:
        self.over = self.over or event
        if isinstance(event, say.JobCompleted) and not event.identical:
            raise Violation("the job completed with states that differ")

    def trusted(self, life: Life) -> bool:
        """Nobody said that this life is over."""
        return life not in self._gone

    def dead_joiners(self, joiners: Iterable[str]) -> list[str]:
        """Those of them whose life is over."""
        return [name for name in joiners if (name, self._lives.get(name, "")) in self._gone]

    def _open(self, incident: str | None) -> None:
        if incident is not None:
            self.incidents.setdefault(incident, self.now)

    def _close(self, incidents: Iterable[str]) -> None:
        for incident in incidents:
            self.incidents.pop(incident, None)
            self.held.pop(incident, None)
            self._assigned.pop(incident, None)

    # -- ranks ---------------------------------------------------------------------------------------

    def entered(self, rank: SimulatedRank, before: int) -> None:
        """A rank enters an epoch; ``before`` is the one that it was in."""
        if rank.epoch <= before:
            raise Violation(f"rank {rank} enters epoch {rank.epoch} after epoch {before}")
        prepare = self._prepares.get(rank.epoch)
        if prepare is not None and prepare.machines[rank.place // prepare.ranks_per_machine] != rank.life[0]:
            raise Violation(
                f"rank {rank} enters epoch {rank.epoch} in place {rank.place}, which is not its own"
            )
        life = self._holders.setdefault((rank.epoch, rank.place), rank.life)
        if life != rank.life:
            raise Violation(f"{life} and {rank.life} both hold rank {rank.place} of epoch {rank.epoch}")

    def taken(self, joiner: SimulatedRank, keeper: SimulatedRank | None, committed: int) -> None:
        """A joiner gets its state, as of so many committed steps, from the one that keeps its mirror."""
        step = None if keeper is None else keeper.keeps.get(joiner.place)
        if step != committed:
            raise Violation(
                f"rank {joiner.place} joins epoch {joiner.epoch} with its state after {committed} steps from "
                f"{keeper}, which has that {'of no step' if step is None else f'after {step}'}"
            )

    def stepped(self, assembly: Assembly) -> None:
        """An assembly commits a step."""
        if assembly.epoch < self._step_epoch:
            raise Violation(
                f"a step is committed in epoch {assembly.epoch}, after one in epoch {self._step_epoch}"
            )
        self._step_epoch = assembly.epoch
        self.last_step = self.now
