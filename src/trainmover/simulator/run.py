"""A run: faults, then calm, then the end; and what it must have come to.

What lives here: the course of one run and its outcome.  What never lives here: the parts (``cluster``),
what must hold at every event (``watch``).

Faults happen for a while.  Then nothing more does, and within :data:`CALM_SECONDS` the cluster must
have come to rest: training steps, no incident is open, every spare is parked and there are as many as
the job asks for; or the job is held (or has failed, where it says so) for a reason that is true.  Then
the job is let finish.  At the end the log is replayed through fresh cores, which must say the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainmover.events import catalogue as say
from trainmover.events.codec import encode_message
from trainmover.events.envelope import Envelope
from trainmover.services.core import Core
from trainmover.services.planner import Phase, PlannerCore
from trainmover.services.replay import replay
from trainmover.services.replicas import paused
from trainmover.services.spares import Spare
from trainmover.services.standby import StandbyCore
from trainmover.services.switcher import Switch, SwitcherCore
from trainmover.simulator.cluster import Cluster
from trainmover.simulator.setup import Setup

CALM_SECONDS = 400.0
"""Virtual seconds after the last fault in which everything must have come to rest."""

LEAST_SECONDS = 6.0
"""Before this many seconds a fault may not even have been noticed."""

STUCK_SECONDS = 400.0
"""Virtual seconds without a step and without a fault after which a job counts as stuck."""

HELD_SECONDS = 60.0
"""A job that is held for good is looked at for this long after the last fault."""

LAST_EVENTS = 40

Ending = str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run.

    Attributes:
        setup: what was simulated.
        ending: completed, held or failed; forgotten: the job hangs, because something
            that a sender took with it (see ``watch``) is known to some and not to others.
        seconds: virtual seconds that it took.
        events: journalled events that were stored.
        violation: what does not hold; None when everything does.
        story: the last events before the violation, and the faults.
        switches: commits by kind.
        faults: faults that hit something.
        steps: most steps that any rank committed.
        forgetful: a service was born again from a log without all that it had heard (see ``watch``).
        log: the whole log.
    """

    setup: Setup
    ending: Ending
    seconds: float
    events: int
    violation: str | None
    story: tuple[str, ...] = ()
    switches: Mapping[str, int] = field(default_factory=dict)
    faults: int = 0
    steps: int = 0
    forgetful: bool = False
    log: tuple[Envelope, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over every byte of the log: equal for runs of one seed."""
        digest = hashlib.sha256()
        for envelope in self.log:
            headers, body = encode_message(envelope)
            digest.update(repr(sorted(headers.items())).encode())
            digest.update(body)
        return digest.hexdigest()


def simulate(
    setup: Setup,
    cores: Mapping[str, Callable[[], Core]] | None = None,
    beforehand: Callable[[Cluster], None] | None = None,
) -> Outcome:
    """Run one setup to its end.

    Args:
        setup: what is simulated.
        cores: other cores than those of this release, by service.
        beforehand: given the cluster before it begins, to lay ambushes of its own (``Faults.ambush``).
    """
    cluster = Cluster(setup, cores)
    if beforehand is not None:
        beforehand(cluster)
    course = _Course(cluster)
    ending = course.run()
    violation = cluster.violation
    course.end()
    if violation is None:
        violation = cluster.violation or _replayed(cluster)
    return Outcome(
        setup=setup,
        ending=ending,
        seconds=cluster.now,
        events=len(cluster.exchange.log),
        violation=violation,
        story=_story(cluster) if violation is not None else (),
        switches=dict(cluster.watch.switches),
        faults=len(cluster.faults.log),
        steps=cluster.training.steps,
        forgetful=bool(cluster.watch.forgetful),
        log=tuple(cluster.exchange.log),
    )


class _Course:
    """The course of one run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._look_at = 0.0
        self._why = ""

    def run(self) -> Ending:
        """From the start to the end; what does not hold is noted in the cluster."""
        cluster, setup = self._cluster, self._cluster.setup
        cluster.begin()
        if not self._loop.run_until(lambda: cluster.over, setup.fault_seconds):
            while self._loop.now < (until := self._calm_from() + CALM_SECONDS):
                limit = min(until, self._loop.now + 1.0)
                if self._loop.run_until(lambda: cluster.over, limit) or self._at_rest():
                    break
            if not cluster.over:
                if why := self._unrest():
                    if true := self._held():
                        return f"held: {true}"
                    if self._forgotten():
                        return f"forgotten: {why}"
                    cluster.violation = f"no rest {CALM_SECONDS:.0f} s after the last fault: {why}"
                    return "stuck"
                cluster.training.total = min(cluster.training.total, cluster.training.steps + 3)
                if not self._loop.run_until(lambda: cluster.over, self._loop.now + STUCK_SECONDS):
                    if self._forgotten():
                        return "forgotten: the job does not end"
                    cluster.violation = f"the job does not end within {STUCK_SECONDS:.0f} s: {self._unrest()}"
                    return "stuck"
        return self._ending()

    def _calm_from(self) -> float:
        return max(self._cluster.faults.last, self._cluster.setup.fault_seconds)

    def _ending(self) -> Ending:
        cluster = self._cluster
        match cluster.watch.over:
            case say.JobCompleted():
                return "completed"
            case say.JobFailed(reason=reason):
                told = ("start the job with more standbys", "nobody can take the place")
                by_wish = cluster.setup.on_exhausted == "fail" and any(words in reason for words in told)
                seat = re.search(r"\(position (\d+)\): the state of rank", reason)
                if seat is not None and self._has_state(int(seat[1])):
                    cluster.violation = cluster.violation or f"the job failed for what is not true: {reason}"
                if not by_wish and not cluster.watch.raised:
                    cluster.violation = cluster.violation or f"the job failed: {reason}"
                return "failed"
            case _:
                return "violated"

    def _at_rest(self) -> bool:
        calm = self._cluster.now - self._calm_from()
        if calm < LEAST_SECONDS:
            return False
        return not self._unrest() or (calm > HELD_SECONDS and bool(self._held()))

    def _unrest(self) -> str:
        """What has not come to rest; empty when everything has."""
        cluster = self._cluster
        watch = cluster.watch
        if cluster.now - watch.last_step > 3 * cluster.setup.step_seconds + 1.0:
            return f"no step since {watch.last_step:.1f} s"
        if watch.incidents:
            return f"open incidents: {', '.join(watch.incidents)}"
        for host in cluster.hosts.values():
            if not host.up:
                return f"service {host.name} is down"
        return self._busy_cores()

    def _busy_cores(self) -> str:
        cluster, watch = self._cluster, self._cluster.watch
        standby, planner, switcher = (cluster.hosts[name].core for name in ("standby", "planner", "switcher"))
        if isinstance(switcher, SwitcherCore) and switcher.phase is not Switch.IDLE:
            return f"switcher is {switcher.phase}"
        if isinstance(planner, PlannerCore) and planner.phase is not Phase.STEADY:
            # A plan for somebody who died meanwhile is never begun; the next change takes its place.
            plan = planner.plan
            if plan is None or not watch.dead_joiners(plan.joiners):
                return f"planner is {planner.phase}"
        if not isinstance(standby, StandbyCore):
            return ""
        if live := [gap.id for gap in standby.gaps.values() if gap.live]:
            return f"gaps are open: {', '.join(live)}"
        parked = 0
        for machine in cluster.living():
            spare = standby.spares.get(machine.life)
            if machine.name in cluster.watch.members or machine.ending or machine.process.frozen:
                continue
            if spare is None:
                return f"standby does not know {machine}"
            roles = standby.roster.roles
            if roles and all(standby.roster.recorded(role) == "failed" for role in roles):
                return ""  # there is nothing to be warm in
            if spare.state is not Spare.PARKED:
                return f"{machine} is {spare.state}, not parked"
            parked += 1
        for unit in paused(standby.roster):
            needed = [standby.roster.role_of(seat) for seat in unit]
            if parked >= len(unit) and all(r is not None and not standby._warming.why_not(r) for r in needed):
                return f"seats {unit} are vacant though {parked} spares are parked"
        wanted, supply = cluster.setup.standbys, cluster.setup.supply
        hopeless = standby._replenishing.hopeless
        if parked < wanted and supply == 1.0 and not hopeless:
            return f"{parked} of {wanted} standbys are parked"
        return ""

    def _held(self) -> str:
        """Why the job is held for good, if that is true."""
        cluster = self._cluster
        standby = cluster.hosts["standby"].core
        if not isinstance(standby, StandbyCore):
            return ""
        for gap in standby.gaps.values():
            reason = cluster.watch.held.get(gap.id, "")
            if not gap.live or not reason:
                continue
            if "the state of rank" in reason and not self._has_state(gap.seat):
                return reason
            if "not recorded" in reason and cluster.training.describing.unrecorded:
                return reason
        return ""

    def _forgotten(self) -> bool:
        """Services know different things for ever: something was heard by some and is in no log."""
        cluster = self._cluster
        if cluster.watch.forgetful:
            return True
        lost = [e for _, e in cluster.said if not cluster.exchange.has(e.id)]
        for envelope in lost:
            hearers = [host for host in cluster.hosts.values() if envelope.type in host.core.hears]
            heard = [envelope.id in cluster.watch.heard.get(host.name, ()) for host in hearers]
            if any(heard) and not all(heard):
                return True
        return False

    def _has_state(self, seat: int) -> bool:
        """A machine on another seat that may go on has this seat's state."""
        cluster, training = self._cluster, self._cluster.training
        if cluster.setup.state == "mirror":
            return self._is_mirrored(seat)
        for other, name in enumerate(cluster.watch.layout):
            machine = cluster.machines.get(name)
            if (
                other == seat
                or training.describing.stage_of(other) != training.describing.stage_of(seat)
                or machine is None
            ):
                continue
            seated = machine.life == (name, cluster.watch.members.get(name))
            if seated and cluster.watch.trusted(machine.life):
                return all(rank.history for rank in machine.ranks.all)
        return False

    def _is_mirrored(self, seat: int) -> bool:
        """A member keeps the state of every rank of this seat, as of the step where it stands itself."""
        cluster, slots = self._cluster, self._cluster.setup.slots
        keepers = [
            rank
            for life in cluster.watch.members.items()
            if cluster.watch.trusted(life) and (machine := cluster.machines.get(life[0])) is not None
            if machine.life == life
            for rank in machine.ranks.all
        ]
        return all(
            any(rank.keeps.get(place) == rank.committed for rank in keepers)
            for place in range(seat * slots, (seat + 1) * slots)
        )

    def end(self) -> None:
        """Let the services end in good order."""
        cluster = self._cluster
        cluster.exchange.stalled = cluster.exchange.out = False
        cluster.exchange.go_on()
        for outlet in tuple(cluster.exchange.outlets):
            outlet.back()
        tasks = [task for host in cluster.hosts.values() if (task := host.end()) is not None]
        self._loop.run_until(lambda: all(task.done() for task in tasks), self._loop.now + 100.0)
        self._loop.run_until(lambda: False, self._loop.now + 6.0)
        if not all(task.done() for task in tasks):
            cluster.violation = cluster.violation or "a service does not end"
        for failure in self._loop.failures:
            cluster.violation = cluster.violation or f"an error that nobody saw: {failure}"


def _replayed(cluster: Cluster) -> str | None:
    """What a replay says differently.

    A service that was born again without something that it had heard (see ``watch``) has two histories,
    which no replay can follow.
    """
    if cluster.watch.forgetful:
        return None
    result = replay(cluster.exchange.log, cores={name: host.make for name, host in cluster.hosts.items()})
    if result.same:
        return None
    return f"the log replays with {len(result.differences)} differences, first {result.differences[0]}"


def _story(cluster: Cluster) -> tuple[str, ...]:
    """Faults and the last events, by time."""
    lines = [(at, f"*** {what}") for at, what in cluster.faults.log]
    shown = [(at, e) for at, e in cluster.said if not isinstance(e.event, say.JournalEntry)]
    lines += [(at, _line(envelope)) for at, envelope in shown[-LAST_EVENTS:]]
    return tuple(f"{at:10.3f}  {text}" for at, text in sorted(lines, key=lambda line: line[0]))


def _line(envelope: Envelope) -> str:
    event = envelope.event
    words = [envelope.type]
    for name in ("machine", "incarnation", "rank", "slot", "role", "epoch", "kind", "generation", "leaver"):
        value = getattr(event, name, None)
        if value not in (None, ""):
            words.append(f"{name}={value}")
    for name in ("joiner", "machines", "incidents", "peer_machine", "answer", "name", "reason", "to"):
        value = getattr(event, name, None)
        if value:
            words.append(f"{name}={','.join(value) if isinstance(value, tuple) else value}"[:160])
    return f"{' '.join(words)}  [{envelope.source}]"
