"""How incidents end: by a switch that names them, or because everything was started again.

What lives here: the few facts that decide it (which switch names whom, which one came about, in which
epochs steps were committed, which starts came to their first steps), and :func:`settle`, which draws the
conclusion.  What never lives here: what else an event changes in a view (``changes``).

Where a log has stalled, the events of those seconds stand in it in any order: the news that a machine was
lost may come after all that was done about it.  So the facts are kept by epoch and by generation, whichever
of them comes first, and an incident is settled as soon as they are complete:

* A switch that names it, or that takes its lost machine out of the layout, and in whose epoch (or a later one
  of the same generation) a step was committed, is its end: no step was lost.
* A launch of a later generation than that in which its machine was lost says that everything is started
  again, and the first steps of such a generation are its end.  A move, or a seat that was to be filled, is
  void then.
* Where a switch came about and the job completed without a step in it, that is its end.  What is still open
  when the job ends stays unfinished.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmover.events import catalogue as say
from trainmover.monitor.incidents import IncidentView

VOID = "everything was started again before it was carried out"


@dataclass(slots=True)
class EpochFacts:
    """One epoch; times are unix seconds.

    Attributes:
        incidents: those that its switch is to end.
        machines: who sits where in it, by position.
        leavers: who had a seat before it, and has none in it.
        start: it is the first of its generation.
        generation: the start from nothing that it belongs to; 0 while that is not known.
        step: committed steps when it was adopted.
        committed: when that was said.
        trained: when its first step was told of.
        first: how many steps were committed with that one.
    """

    incidents: set[str] = field(default_factory=set)
    machines: tuple[str, ...] = ()
    leavers: tuple[str, ...] = ()
    start: bool = False
    generation: int = 0
    step: int | None = None
    committed: float | None = None
    trained: float | None = None
    first: int = 0


@dataclass(slots=True)
class Endings:
    """All that decides how incidents end.

    Attributes:
        generation: the latest that was launched; 0 before the first.
        launched: when its first launch was said, unix seconds.
        crew: its machines by position.
        started: generations that have committed their first steps.
        epochs: every epoch of a switch.
        over: when the job ended, unix seconds; None while it runs.
        completed: it ended with all steps done.
    """

    generation: int = 0
    launched: float = 0.0
    crew: dict[int, str] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    epochs: dict[int, EpochFacts] = field(default_factory=dict)
    over: float | None = None
    completed: bool = False

    def launch(self, event: say.MachineLaunch, time: float) -> bool:
        """A machine is launched; False when that is old news, as a later generation was."""
        if event.generation < self.generation:
            return False
        if event.generation > self.generation:
            self.generation, self.launched, self.crew = event.generation, time, {}
        self.crew[event.position] = event.machine
        return True

    def switch(self, event: say.PlanReady | say.SwitchPrepare | say.SwitchCommitted) -> EpochFacts:
        """A switch, with the incidents that it names."""
        epoch = self.epochs.setdefault(event.epoch, EpochFacts())
        epoch.incidents.update(event.incidents)
        epoch.machines, epoch.leavers = event.machines, event.leavers
        epoch.start = event.kind == "start"
        epoch.generation = event.generation or epoch.generation
        return epoch

    def adopt(self, event: say.SwitchAdopted) -> None:
        """A rank works in an epoch."""
        self.epochs.setdefault(event.epoch, EpochFacts()).step = event.step

    def commit(self, event: say.SwitchCommitted, time: float) -> None:
        """An epoch came about."""
        epoch = self.switch(event)
        epoch.committed = time
        if epoch.step is None:
            epoch.step = event.step

    def train(self, event: say.TrainingResumed | say.TrainingStarted, time: float) -> None:
        """A step was committed in an epoch."""
        epoch = self.epochs.setdefault(event.epoch, EpochFacts())
        if epoch.trained is None:
            epoch.trained, epoch.first = time, event.step
        if isinstance(event, say.TrainingStarted):
            epoch.generation = event.generation
            self.started.add(event.generation)

    def named(self, incident: str) -> bool:
        """A switch is to end this incident."""
        return any(incident in epoch.incidents for epoch in self.epochs.values())

    def claim(self, incident: IncidentView, generation: int) -> None:
        """Something is done about an incident in this generation, so its machine was lost in it, or later."""
        if generation <= incident.generation:
            return
        incident.generation = generation
        if incident.restart and incident.since <= generation:
            incident.restart, incident.state, incident.epoch = False, "open", None
            incident.take_back("assigned")

    def settle(self, incident: IncidentView, machine_lost: bool) -> None:
        """Whatever the facts say of an incident that is open, or of who came and when in one that has ended.

        Args:
            incident: it.
            machine_lost: the machine that goes has failed, which a move may have been asked for before.
        """
        if incident.state == "refused":
            return
        if incident.state == "closed":
            self._complete(incident)
            return
        incident.state = "open"
        if not self._has_ended(incident, machine_lost) and self.over is not None:
            incident.state = "unfinished"

    def end(self, time: float, *, completed: bool) -> None:
        """The job is over."""
        self.over, self.completed = time, completed

    def _has_ended(self, incident: IncidentView, machine_lost: bool) -> bool:
        if self._switched(incident):
            return True
        if incident.generation >= self.generation:
            return False
        if incident.kind != "failure" and not machine_lost:
            incident.state, incident.held = "refused", VOID
            return True
        incident.kind = "failure"
        return self._started_again(incident)

    def _complete(self, incident: IncidentView) -> None:
        """Who took the place, and where training stood, where that is heard after the end."""
        position = incident.position
        if incident.restart:
            if incident.since == self.generation and position is not None:
                incident.joiner = self.crew.get(position)
            return
        epoch = self.epochs.get(incident.epoch or 0)
        if epoch is None:
            return
        incident.step = epoch.step
        if position is not None and epoch.machines:
            incident.joiner = epoch.machines[position] or None

    def _switched(self, incident: IncidentView) -> bool:
        """Close an incident whose switch came about; False where none did."""
        for number, epoch in self.epochs.items():
            if incident.id not in epoch.incidents and not self._takes_out(number, epoch, incident):
                continue
            trained = epoch.trained
            if trained is None and epoch.committed is not None:
                trained = self._trained_after(number, epoch)
                if trained is None and self.completed:
                    trained = self.over
            if trained is None:
                continue
            incident.epoch, incident.restart, incident.held = number, False, ""
            if epoch.committed is not None:
                incident.reach("committed", epoch.committed)
            incident.reach("resumed", trained)
            incident.state = "closed"
            self._complete(incident)
            return True
        return False

    def _takes_out(self, number: int, epoch: EpochFacts, incident: IncidentView) -> bool:
        """The lost machine has no seat in this epoch any more, whatever its switch was made for."""
        lost_in = incident.lost_in
        return lost_in is not None and number >= lost_in and incident.machine in epoch.leavers

    def _trained_after(self, number: int, epoch: EpochFacts) -> float | None:
        """When the first later epoch of the same generation had a step: this one broke before it had one."""
        later = [
            (other, facts.trained)
            for other, facts in self.epochs.items()
            if other > number and facts.generation == epoch.generation and facts.trained is not None
        ]
        return min(later)[1] if later else None

    def _started_again(self, incident: IncidentView) -> bool:
        if incident.since != self.generation:
            incident.take_back("assigned")  # what was planned for it is void
            incident.since, incident.restart, incident.joiner = self.generation, True, None
            incident.paused, incident.held = False, ""
            incident.reach("assigned", self.launched)
        if incident.position is not None:
            incident.joiner = self.crew.get(incident.position)
        starts = [
            (facts.generation, number, facts.trained, max(0, facts.first - 1))
            for number, facts in self.epochs.items()
            if facts.start and facts.generation >= incident.since and facts.trained is not None
        ]
        if not starts:
            return False
        _, incident.epoch, time, incident.step = min(starts, key=lambda start: start[:2])
        incident.reach("resumed", time)
        incident.state = "closed"
        return True
