"""One incident as its events tell it: what happened, to whom, and when each stage was reached.

What lives here: the record of one incident and how events add to it.  Pure: no clock, no I/O; all
times are those of the events.  The live view, ``trainmover status`` and the report read the same
records.

The stages, in the order of a good ending::

    opened -> detected -> assigned -> planned -> preparing -> prepared -> adopted -> committed -> resumed

An aborted switch takes the stages after ``detected`` back, for the incident starts again there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from trainmover.events.catalogue import SwitchAdopted, SwitchPrepared

Stage = Literal[
    "opened",
    "detected",
    "assigned",
    "planned",
    "preparing",
    "prepared",
    "adopted",
    "committed",
    "resumed",
]
STAGES: tuple[Stage, ...] = (
    "opened",
    "detected",
    "assigned",
    "planned",
    "preparing",
    "prepared",
    "adopted",
    "committed",
    "resumed",
)

IncidentState = Literal["open", "closed", "refused", "unfinished"]
"""``closed``: training went on, or all of it was done; ``unfinished``: the job ended first."""

DOING: dict[Stage, str] = {
    "opened": "checking what is wrong",
    "detected": "choosing a standby",
    "assigned": "planning the new layout",
    "planned": "asking all ranks to prepare",
    "preparing": "connecting beside training",
    "prepared": "switching and copying state",
    "adopted": "committing the new epoch",
    "committed": "running the first step",
    "resumed": "over",
}
"""What is happening once a stage is the latest one."""

PHASES: dict[Stage, str] = {
    "detected": "detect",
    "assigned": "assign",
    "planned": "plan",
    "preparing": "ask",
    "prepared": "prepare",
    "adopted": "switch and copy",
    "committed": "commit",
    "resumed": "first step",
}
"""What the time up to a stage was spent on."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What an incident's time was spent on, from one stage to the next; unix seconds."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(slots=True)
class IncidentView:
    """Everything known of one incident.

    Attributes:
        id: the incident's name on the bus.
        kind: an unexpected failure, a planned move, or a vacant seat that is filled again.
        machine: the machine that goes.
        joiner: the machine that comes; None until one is assigned.
        cause: why, in the words of whoever opened it.
        times: unix seconds at which each stage was reached.
        epoch: the epoch that ends it; of the latest attempt.
        step: committed steps at the switch; None until it is adopted.
        attempts: switches tried, aborted ones included.
        restart: True when there was nothing to keep and everything was started again.
        held: why the job waits for a machine; empty when it does not.
        evidence: first sign of the trouble (a broken link, an exit, a silent machine), unix seconds.
        prepared: seconds each rank took to prepare, by rank.
        adopted: what each rank said when it adopted the epoch, by rank.
        ranks: how many ranks have to say so.
        position: the place in the layout that changes hands, where it is known.
        generation: the start from nothing in which its machine was lost, or asked to go.
        since: the later one by which everything was started again; 0: none.
        paused: no spare was found, and training went on without the machine's replica.
        lost_in: the epoch that held when its machine was lost; None where none was.
    """

    id: str
    kind: Literal["failure", "move", "grow"]
    machine: str
    joiner: str | None = None
    cause: str = ""
    state: IncidentState = "open"
    times: dict[Stage, float] = field(default_factory=dict)
    epoch: int | None = None
    step: int | None = None
    attempts: int = 0
    restart: bool = False
    held: str = ""
    evidence: float | None = None
    prepared: dict[int, float] = field(default_factory=dict)
    adopted: dict[int, SwitchAdopted] = field(default_factory=dict)
    ranks: int = 0
    position: int | None = None
    generation: int = 0
    since: int = 0
    paused: bool = False
    lost_in: int | None = None

    @property
    def outcome(self) -> str:
        """What came of it: its kind, or ``shrink`` where the machine was not replaced."""
        return "shrink" if self.paused else self.kind

    @property
    def stage(self) -> Stage:
        """The latest stage that was reached."""
        reached: Stage = "opened"
        for stage in STAGES:
            if stage in self.times:
                reached = stage
        return reached

    @property
    def doing(self) -> str:
        """What is happening in it now, for a person."""
        if self.state == "refused":
            return f"refused: {self.held}"
        if self.state == "unfinished":
            return "the job ended first"
        if self.held:
            return f"held: {self.held}"
        if self.restart and self.stage != "resumed":
            return "its state is on no machine: starting everything again"
        if self.stage == "preparing" and self.ranks:
            return f"{DOING['preparing']}: {len(self.prepared)} of {self.ranks} ranks"
        if self.stage == "prepared" and self.ranks:
            return f"{DOING['prepared']}: {len(self.adopted)} of {self.ranks} ranks"
        return DOING[self.stage]

    def reach(self, stage: Stage, time: float) -> None:
        """Note the first time a stage is reached."""
        self.times.setdefault(stage, time)

    def between(self, first: Stage, last: Stage) -> float | None:
        """Seconds from one stage to another; None while either is missing."""
        if first not in self.times or last not in self.times:
            return None
        return max(0.0, self.times[last] - self.times[first])

    def prepare(self, epoch: int, ranks: int, time: float) -> None:
        """A switch to ``epoch`` is being prepared by ``ranks`` ranks."""
        if epoch != self.epoch:
            self.take_back("preparing")
            self.epoch = epoch
        if "preparing" not in self.times:
            self.attempts += 1
        self.ranks = ranks
        self.reach("preparing", time)

    def note_prepared(self, event: SwitchPrepared, time: float) -> None:
        """One rank has its links."""
        self.prepared[event.rank] = event.seconds
        if self.ranks and len(self.prepared) >= self.ranks:
            self.reach("prepared", time)

    def note_adopted(self, event: SwitchAdopted, time: float) -> None:
        """One rank works in the new epoch."""
        self.adopted[event.rank] = event
        self.step = event.step
        if self.ranks and len(self.adopted) >= self.ranks:
            self.reach("prepared", time)
            self.reach("adopted", time)

    def take_back(self, stage: Stage) -> None:
        """Forget a stage and all that follow it: the attempt was given up."""
        for later in STAGES[STAGES.index(stage) :]:
            self.times.pop(later, None)
        self.prepared.clear()
        self.adopted.clear()
        self.step = None


def phases_of(incident: IncidentView) -> list[Phase]:
    """The phases of an incident so far, in their order; they follow one another without a gap."""
    reached = [(stage, incident.times[stage]) for stage in STAGES if stage in incident.times]
    return [Phase(PHASES[stage], start, max(start, end)) for (_, start), (stage, end) in pairwise(reached)]
