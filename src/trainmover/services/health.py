"""Health: who is alive, and what evidence counts.

What lives here: the life of a machine as health sees it, and the rules by which evidence becomes
``machine.failed``, ``link.repair`` or ``job.failed``.  What never lives here: heartbeats (see
``leases``; a core hears only what became of them), sockets, replacements.

Evidence is of two kinds.  *Proof* fails a machine at once: a rank's process exited or is stopped by
the system, nobody listens under its name any more.  *Suspicion* makes health ask: a broken link
accuses the machine at its other end, a lease expired, and the answer to a probe decides; two
suspicions together are proof.  A lapsed machine that answers was only busy.  An accused machine that
answers gets :data:`GRACE` seconds for a ``rank.exited`` to arrive; if none does, both ends of the
link live, so it is the link that is made again (``link.repair``), not a machine that is replaced.
Where that link is dialled in vain for long, or breaks however often it is repaired, it will not do: of two
machines that are well and do not reach each other one is replaced (``apart`` chooses), if it can be.

Two rules guard against acting on old news.  Only a link of the current layout accuses anybody:
its epoch is not older than the last committed one, and both its machines have a seat.  And a life
(machine and incarnation) is declared dead once, finally: what comes back is fenced out, or joins
as a new life.

A script that raises is not a machine that fails.  Before the first committed step it fails the job
at once; later it does when :data:`SCRIPT_ERRORS` machines in a row went down with an error text
and no step was committed in between (or every machine of a smaller job).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trainmover.events.catalogue import (
    MAX_TEXT,
    CheckpointSaved,
    Event,
    JobCompleted,
    JobFailed,
    JobSubmitted,
    LeaseExpired,
    LeaseReturned,
    LeaseStalled,
    LinkBroken,
    LinkReached,
    LinkRepair,
    LinkUnreached,
    MachineFailed,
    MachineJoined,
    MachineLaunch,
    MachineLeft,
    MachineProbed,
    MachineSuspected,
    MirrorFailed,
    MirrorWhole,
    RankDescribed,
    RankExited,
    RolesFound,
    StandbyAssigned,
    SwitchAborted,
    SwitchCommitted,
    SwitchPrepare,
    TimerFired,
    TrainingResumed,
    TrainingStarted,
)
from trainmover.services.apart import NOBODY_GOES, Apart, said_of
from trainmover.services.core import CancelTimer, Decider, Probe, Reaction, SetTimer, incident_id, noted
from trainmover.services.reasons import UNANSWERED, how_it_ended, no_beat, script_error
from trainmover.services.roster import Life
from trainmover.services.standing import TABLE, Health
from trainmover.services.tables import after

__all__ = ["TABLE", "Health", "HealthCore"]

GRACE = 1.5
"""Seconds between an accused machine's answer and the repair of the link."""

ASK_AGAIN = 1.0
"""Seconds between probes of a machine that was silent."""

SCRIPT_ERRORS = 3
"""Machines in a row that may go down with an error of the script before the job fails."""

MAX_EVIDENCE = 16
"""Lines of evidence kept for one machine."""


class HealthCore(Decider):
    """Turns evidence into verdicts; see the module."""

    name: ClassVar[str] = "health"
    SAYS: ClassVar[tuple[type[Event], ...]] = (MachineSuspected, MachineFailed, LinkRepair, JobFailed)

    def __init__(self, grace: float = GRACE, ask_again: float = ASK_AGAIN) -> None:
        super().__init__()
        self.grace = grace
        self.ask_again = ask_again
        self._states: dict[Life, Health] = {}
        self._lives: dict[str, list[Life]] = {}
        self._came: dict[Life, float] = {}
        self._evidence: dict[Life, list[str]] = {}
        self._accused: dict[int, set[Life]] = {}
        self._waiting: set[int] = set()
        self._repaired: set[int] = set()
        self._prepared: dict[int, SwitchPrepare] = {}
        self._apart = Apart(self.roster)
        self._script_errors = 0
        self._losses: set[tuple[int, Life]] = set()

    def state(self, machine: str) -> Health:
        """How a machine's latest life is."""
        return self._states.get((machine, self.roster.life(machine) or ""), Health.WELL)

    # -- one transition --------------------------------------------------------------------------

    def _take(self, life: Life, trigger: str, why: str = "", unreached: tuple[str, ...] = ()) -> bool:
        """Move one life along the table and say what its new state calls for.

        The reason is evidence even where the trigger changes nothing.  ``unreached``: see ``machine.failed``.
        """
        before = self._states.get(life, Health.WELL)
        state = after(TABLE, before, trigger)
        if why and TABLE[before]:
            self._note(life, why)
        if state is None:
            return False
        self._enter(life, state)
        match state:
            case Health.ASKED | Health.LAPSED:
                self.do(Probe(*life))
            case Health.WELL:
                self._settled(life[0])
            case Health.SUSPECTED:
                if before is not Health.SUSPECTED:
                    self.say(
                        MachineSuspected(machine=life[0], incarnation=life[1], reason=why), _incident(life)
                    )
                self.do(SetTimer(f"ask:{life[0]}", self.now + self.ask_again))
            case Health.FAILED:
                self._losses.add((self.roster.generation, life))
                evidence = tuple(self._evidence.get(life, ()))
                if before is Health.LAPSED:
                    why = "; ".join(evidence[-2:])
                failed = MachineFailed(
                    machine=life[0], incarnation=life[1], reason=why, evidence=evidence, unreached=unreached
                )
                self.say(failed, _incident(life))
            case Health.LEFT:
                pass
        return True

    def _note(self, life: Life, why: str) -> None:
        lines = self._evidence.setdefault(life, [])
        if why not in lines and len(lines) < MAX_EVIDENCE:
            lines.append(why)

    def _enter(self, life: Life, state: Health) -> None:
        if life not in self._states:
            self._lives.setdefault(life[0], []).append(life)
        self._states[life] = state

    # -- machines ----------------------------------------------------------------------------------

    def _joined(self, event: MachineJoined) -> None:
        life = (event.machine, event.incarnation)
        if life in self._states:
            return
        # Of a life that is over nothing more can be learned: its clock may have been ahead of this one's.
        others = [other for other in self._lives.get(event.machine, ()) if TABLE[self._states[other]]]
        self._enter(life, Health.WELL)
        self._came[life] = self.heard.time
        # Whoever came later is there; which was heard of first is chance.
        latest = max((life, *others), key=lambda one: self._came.get(one, 0.0))
        for other in (*others, life):
            if other != latest:
                self._take(other, "replaced", f"{event.machine} joined again as {latest[1]}")

    def _left(self, event: MachineLeft) -> None:
        life = (event.machine, event.incarnation)
        if self.roster.is_member(*life) and not event.reason.startswith("released"):
            self._take(life, "deserted", f"left while it was a member: {event.reason}"[:MAX_TEXT])
        else:
            self._take(life, "left")

    def _expired(self, event: LeaseExpired) -> None:
        self._take((event.machine, event.incarnation), "lease expired", no_beat(event))

    def _returned(self, event: LeaseReturned) -> None:
        self._take((event.machine, event.incarnation), "lease returned")

    def _stalled(self, event: LeaseStalled) -> None:
        why = f"rank process of slot {event.slot} is {event.state}"[:MAX_TEXT]
        self._take((event.machine, event.incarnation), "lease stalled", why)

    def _exited(self, event: RankExited) -> None:
        life = (event.machine, event.incarnation)
        if event.generation < self.roster.generation:
            return
        if event.again:
            return
        if event.hopeless:
            self._nobody_can_go_on(event)
            return
        raised = event.mode == "live" and event.code not in (None, 0) and bool(event.error.strip())
        if raised and not self.roster.started and not self._others_lost(life):
            self.say(JobFailed(reason=script_error(event, "before the first step was committed")))
            return
        if not self._take(life, "rank exited", how_it_ended(event)) or not raised:
            return
        self._script_errors += 1
        if self._script_errors >= min(SCRIPT_ERRORS, max(1, self.roster.size)):
            times = f"on {self._script_errors} machines in a row without a committed step between them"
            self.say(JobFailed(reason=script_error(event, times)))

    def _nobody_can_go_on(self, event: RankExited) -> None:
        """A state is on no machine any more; every rank that is left ends of it, and one sentence is enough.

        With checkpoints it is a loss of all machines, from which the job goes back.
        """
        job = self.roster.job
        if job is not None and (job.checkpoint_every or job.resume):
            self._take((event.machine, event.incarnation), "rank exited", how_it_ended(event))
        else:
            self.say(JobFailed(reason=event.error.strip()[:MAX_TEXT]))

    def _others_lost(self, life: Life) -> bool:
        """Another machine failed in this generation: an error may be the echo of that."""
        return any(g == self.roster.generation and other != life for g, other in self._losses)

    # -- links -------------------------------------------------------------------------------------

    def _broken(self, event: LinkBroken) -> None:
        if event.machine == event.peer_machine:
            self._stuck(event)
            return
        layout = self._layout(event.epoch)
        if layout is None or event.machine not in layout or event.peer_machine not in layout:
            return
        if event.epoch in self._repaired:
            return
        if self.roster.dead(event.machine):
            return
        life = self.roster.life(event.peer_machine)
        if life is None:
            return
        accused = (event.peer_machine, life)
        if (own := self.roster.life(event.machine)) is not None:
            self._apart.broke(event.epoch, (event.machine, own), accused)
        self._accused.setdefault(event.epoch, set()).add(accused)
        why = (
            f"{event.machine} lost the link {event.rank}-{event.peer} of epoch {event.epoch}: {event.reason}"
        )
        self._take(accused, "accused", why[:MAX_TEXT])

    def _unreached(self, event: LinkUnreached) -> None:
        """A peer is dialled in vain: if both ends are well, one of them is to be replaced."""
        layout = self._layout(event.epoch)
        names = (event.machine, event.peer_machine)
        if layout is None or any(name not in layout or self.roster.dead(name) for name in names):
            return
        lives = [(name, life) for name in names if (life := self.roster.life(name)) is not None]
        if len(lives) < 2 or lives[0] == lives[1]:
            return
        self._apart.note(event, *lives)
        self._accused.setdefault(event.epoch, set()).update(lives)
        # Who complains is heard, so it is asked nothing.
        self._take(lives[1], "accused", said_of(event)[:MAX_TEXT])

    def _reached(self, event: LinkReached) -> None:
        """They answer after all: of this pair nobody goes, and the epoch on its way is as good as any."""
        self._apart.reached(event.epoch, (event.machine, event.peer_machine))
        left = self._apart.lives(event.epoch)
        accused = self._accused.get(event.epoch, set())
        accused -= {life for life in accused - left if life[0] in (event.machine, event.peer_machine)}

    def _stuck(self, event: LinkBroken) -> None:
        """A rank says of itself that its epoch is over; unless a machine proves lost, a new one is due.

        A call took too long, the script raised, an agreed switch was given up: the rank waits at the
        boundary and no link is to blame.
        """
        life = self.roster.life(event.machine)
        epoch = self.roster.epoch
        if life is None or event.machine not in self.roster.members or self.roster.dead(event.machine):
            return
        if epoch not in self._repaired and event.epoch >= epoch:
            self._accused.setdefault(epoch, set()).add((event.machine, life))
            self._settled(event.machine)

    def _layout(self, epoch: int) -> tuple[str, ...] | None:
        """Machines of an epoch that is the committed one or on its way."""
        if epoch == self.roster.epoch:
            return self.roster.members
        prepared = self._prepared.get(epoch)
        return prepared.machines if prepared is not None and epoch > self.roster.epoch else None

    def _probed(self, event: MachineProbed) -> None:
        self._take((event.machine, event.incarnation), event.answer, UNANSWERED[event.answer])

    def _settled(self, machine: str) -> None:
        """An accused machine is well: give a rank's exit time to arrive, then repair."""
        for epoch, accused in self._accused.items():
            if epoch in self._waiting or (epoch in self._repaired and not self._apart.lives(epoch)):
                continue
            if any(life[0] == machine for life in accused):
                self._waiting.add(epoch)
                self.do(SetTimer(f"grace:{epoch}", self.now + self.grace))

    def _fired(self, event: TimerFired) -> None:
        what, _, which = event.name.partition(":")
        if what == "ask":
            life = (which, self.roster.life(which) or "")
            if self._states.get(life) is Health.SUSPECTED:
                self.do(Probe(*life))
        elif what == "grace":
            self._grace_over(int(which))

    def _grace_over(self, epoch: int) -> None:
        self._waiting.discard(epoch)
        layout = self._layout(epoch)
        accused = self._accused.get(epoch, set())
        if layout is None or not accused or any(self.roster.dead(machine) for machine in layout):
            return
        if not all(self._states.get(life, Health.WELL) is Health.WELL for life in accused):
            return
        names = ", ".join(sorted(machine for machine, _ in accused))
        reason = f"epoch {epoch} is broken, but {names} is well and no rank exited"
        self._apart.repaired_in_vain(epoch)
        if self._apart.lives(epoch):
            if self._replace_one(epoch):
                return
            reason = f"{NOBODY_GOES}: {self._apart.why(epoch)}"
        self._repaired.add(epoch)
        self.say(LinkRepair(epoch=epoch, reason=reason[:MAX_TEXT]), incident_id("repair", epoch))

    def _replace_one(self, epoch: int) -> bool:
        """All are well and some do not reach each other.  False: nobody of these can be replaced."""
        prepared = self._prepared.get(epoch)
        trains = prepared is not None and not self._accused.get(self.roster.epoch)
        kind = prepared.kind if prepared is not None and trains else ""
        chosen = self._apart.choose(epoch, kind)
        for one in chosen:
            machine, names = one.life[0], " and ".join(one.partners)
            for said in one.said:
                self._note(one.life, said[:MAX_TEXT])
            reason = f"{machine} and {names} do not reach each other, though all are well"
            why = f"{reason}; {machine} is replaced: {one.why}"[:MAX_TEXT]
            self._take(one.life, "not reached", why, one.partners)
        return bool(chosen)

    # -- switches ----------------------------------------------------------------------------------

    def _prepare(self, event: SwitchPrepare) -> None:
        if event.epoch > self.roster.epoch:
            self._prepared[event.epoch] = event

    def _aborted(self, event: SwitchAborted) -> None:
        """Who was accused in it is accused of nothing: there will be no such links."""
        self._prepared.pop(event.epoch, None)
        if event.epoch > self.roster.epoch:
            self._acquit(event.epoch)

    def _acquit(self, epoch: int) -> None:
        self._accused.pop(epoch, None)
        if epoch in self._waiting:
            self._waiting.discard(epoch)
            self.do(CancelTimer(f"grace:{epoch}"))

    def _committed(self, event: SwitchCommitted) -> None:
        self._apart.over(self.roster.epoch)
        for epoch in [epoch for epoch in self._accused if epoch < self.roster.epoch]:
            self._acquit(epoch)
        for epoch in [epoch for epoch in self._prepared if epoch <= self.roster.epoch]:
            del self._prepared[epoch]
        for life in self.roster.take_unseated():
            self._take(life, "left")

    def _step(self, event: TrainingStarted | TrainingResumed) -> None:
        self._script_errors = 0
        self._apart.stepped()

    HEARS: ClassVar[Mapping[type[Event], Reaction]] = {
        JobSubmitted: noted,
        JobCompleted: noted,
        JobFailed: noted,
        MachineLaunch: noted,
        StandbyAssigned: noted,
        RankDescribed: noted,
        RolesFound: noted,
        CheckpointSaved: noted,
        MirrorWhole: noted,
        MirrorFailed: noted,
        MachineJoined: _joined,
        MachineLeft: _left,
        MachineProbed: _probed,
        LeaseExpired: _expired,
        LeaseReturned: _returned,
        LeaseStalled: _stalled,
        RankExited: _exited,
        LinkBroken: _broken,
        LinkUnreached: _unreached,
        LinkReached: _reached,
        SwitchPrepare: _prepare,
        SwitchAborted: _aborted,
        SwitchCommitted: _committed,
        TrainingStarted: _step,
        TrainingResumed: _step,
        TimerFired: _fired,
    }


def _incident(life: Life) -> str:
    return incident_id(*life)
