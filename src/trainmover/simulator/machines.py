"""Machines: a small model of ``machine.agent``, with the real relay between bus and ranks.

What lives here: what a machine program does about each event, and what can befall a machine.  What
never lives here: what ranks do with one another (``training``), the bus.

The rules are the agent's (see its module).  What it awaits (ending ranks that were told to) takes time
here, too, and what it hears meanwhile waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from trainmover.events import catalogue as say
from trainmover.events.bus import ProbeAnswer
from trainmover.events.envelope import Envelope
from trainmover.machine.ranks import Ranks
from trainmover.machine.relay import Relay
from trainmover.simulator.bus import INTEREST_SECONDS, JOB, Exchange
from trainmover.simulator.clock import Process
from trainmover.simulator.pulse import Pulse
from trainmover.simulator.ranks import Doing, RankSet, SimulatedRank
from trainmover.simulator.setup import BEGIN

if TYPE_CHECKING:
    from trainmover.simulator.training import Training

START_AGAIN_SECONDS = 1.0
"""Until whoever starts machines starts one again that ended before it had joined."""


class SimulatedMachine:
    """One life of one machine; see the module.

    Attributes:
        alive: its program runs (or is frozen).
        hanging: it vanished without a word: connections to it do not break, they hang.
        apart: no packet gets from or to other machines.
        ending: why it left, once it did.
        unreached: machines that it did not reach, and was replaced for that.
        well_since: when it last began to run and to reach everybody, if it does.
        on_unheard: told of its name when it was declared dead without having lost a rank, or its replica
            pauses: it joins again.
        was_heard: whether any service was fed the event with an id.
    """

    def __init__(
        self, name: str, incarnation: str, exchange: Exchange, training: Training, slots: int
    ) -> None:
        self.name, self.incarnation, self.slots = name, incarnation, slots
        self.process = Process(f"machine {name} ({incarnation})")
        self.training = training
        self.alive = True
        self.hanging = False
        self.apart = False
        self.ending = ""
        self.unreached: tuple[str, ...] = ()
        self.well_since = exchange.loop.now
        self.ranks = RankSet()
        self.relay = Relay(name, cast("Ranks", self.ranks))
        self.lost_a_rank = False
        self._paused = False
        self.on_unheard: Callable[[str], None] = lambda _: None
        self.was_heard: Callable[[str], bool] = lambda _: True
        self.pulse = Pulse(name, incarnation, self.ranks)
        self.outlet = exchange.outlet(self.process)
        self._exchange = exchange
        self._chance = training.setup.random(f"machine/{name}/{incarnation}")
        self._joined = False
        self._job: say.JobSubmitted | None = None
        self._kept: list[say.Event] = []
        self._said = 0
        self._seen: set[str] = set()
        self._cursor = 0
        self._backlog: deque[Envelope] = deque()
        self._busy = False
        self._gone_at: float | None = None
        self._context = exchange.loop.within(self.process)

    def __str__(self) -> str:
        return f"{self.name} ({self.incarnation})"

    @property
    def life(self) -> tuple[str, str]:
        """Machine and incarnation."""
        return (self.name, self.incarnation)

    @property
    def well(self) -> bool:
        """It runs and reaches everybody."""
        return self.alive and not self.process.frozen and not self.apart and not self.outlet.cut

    def join(self) -> None:
        """Its program starts: it reads the log, joins, and hears from then on."""
        self._exchange.machines[self.name] = self
        self._exchange.crowd.enter(self.name, self)
        self.fill()
        self.tell(
            say.MachineJoined(
                machine=self.name, incarnation=self.incarnation, host="10.0.0.1", slots=self.slots, pid=1
            )
        )

    # -- what it hears (a ``bus.Listener``) ----------------------------------------------------------

    def wants(self, envelope: Envelope) -> bool:
        """What the agent would do nothing about is not brought here."""
        event = envelope.event
        if isinstance(event, say.StandbyAssigned):
            return (event.joiner, event.joiner_incarnation) == self.life
        return isinstance(event, say.MachineFailed) or not hasattr(event, "incarnation") or self._is_me(event)

    def arrive(self, envelope: Envelope) -> None:
        """A live delivery."""
        if self.outlet.cut or self._exchange.out or not self.alive or envelope.id in self._seen:
            return
        if not self.wants(envelope):
            return
        self._seen.add(envelope.id)
        if self.process.frozen or self._busy:
            self._backlog.append(envelope)
        else:
            self._act(envelope.event)

    def fill(self) -> None:
        """Read from the log what was missed."""
        if self.outlet.cut or self._exchange.out or self._exchange.still_since is not None:
            return
        for place, envelope in self._exchange.crowd.since(self.name, self._cursor):
            self._cursor = place + 1
            self.arrive(envelope)

    def go_on(self) -> None:
        """What waited is read."""
        self._busy = False
        while self._backlog and self.alive and not self._busy and not self.process.frozen:
            self._act(self._backlog.popleft().event)

    def _act(self, event: say.Event) -> None:
        match event:
            case say.JobSubmitted():
                if self._job is None:
                    self._job = event
                    kept, self._kept = self._kept, []
                    for item in kept:
                        self._act(item)
            case say.MachineJoined():
                self._joined = True
            case say.MachineLaunch():
                self._launch(event)
            case say.RolesFound():
                self.relay.roles(event)
            case say.StandbyWarm():
                self._warm(event)
            case say.StandbyAssigned():
                self.relay.assigned(event)
            case say.MachineFailed():
                if self._is_me(event):
                    self.unreached = event.unreached
                    self._leave("fenced", 0.0)
                else:
                    for rank in list(self.ranks.all):
                        rank.send(event)
            case say.SwitchPrepare():
                if self._joined and self.name in (*event.machines, *event.leavers):
                    self.relay.prepare(event)
            case say.SwitchAborted():
                self.relay.over(event)
            case say.SwitchCommitted():
                self._committed(event)
            case say.JobCompleted():
                self._leave("completed", self._chance.uniform(0.1, 2.0))
            case say.JobFailed():
                self._leave("job failed", self._chance.uniform(0.05, 1.0))
            case _:
                pass

    def _launch(self, event: say.MachineLaunch) -> None:
        there = {(rank.generation, rank.mode == "live") for rank in self.ranks.all}
        if max(there, default=(-1, False)) >= (event.generation, True):
            return
        if self._job is None:
            self._kept.append(event)
            return
        self._end_ranks()
        self._start_ranks("live", event.generation, "", event.position)

    def _warm(self, event: say.StandbyWarm) -> None:
        newest = max((rank.generation for rank in self.ranks.all), default=-1)
        same = newest == event.generation
        there = same and any(rank.role == event.role or rank.mode == "live" for rank in self.ranks.all)
        if newest > event.generation or there:
            return
        if self._job is None:
            self._kept.append(event)
            return
        if newest < event.generation:
            self._end_ranks()
        self._start_ranks("sandbox", event.generation, event.role, -1)

    def _committed(self, event: say.SwitchCommitted) -> None:
        if not self._joined:
            return
        self.relay.over(event)
        if self.name in event.joiners and self.relay.role:
            for rank in list(self.ranks.all):
                if rank.mode == "sandbox" and rank.role != self.relay.role:
                    self._end_rank(rank)
        if self.name in event.leavers and any(rank.mode == "live" for rank in self.ranks.all):
            self._paused = event.kind == "shrink"
            self._leave("released", self._chance.uniform(0.0, 0.5))

    # -- its ranks -----------------------------------------------------------------------------------

    def _start_ranks(self, mode: say.RankMode, generation: int, role: str, position: int) -> None:
        slots = self._job.ranks_per_machine if self._job is not None else 1
        for slot in range(slots):
            rank = SimulatedRank(self, slot, mode, generation, role)
            rank.place = position * slots + slot if position >= 0 else -1
            rank.launched = mode == "live"
            rank.pid = self.training.next_pid()
            self.ranks.all.append(rank)
            delay = self.training.setup.start_seconds * self._chance.uniform(0.7, 1.5)
            self.later(delay, self._up, rank)

    def _up(self, rank: SimulatedRank) -> None:
        if rank.over:
            return
        life = f"{self.name}-{self.incarnation}-{rank.pid}"
        rank.endpoint = say.Endpoint(host="10.0.0.1", port=20000 + rank.slot, life=life)
        rank.line = rank
        self.relay.connected(cast("Any", rank))
        rank.tell(
            say.RankStarted(
                machine=self.name,
                incarnation=self.incarnation,
                slot=rank.slot,
                mode=rank.mode,
                generation=rank.generation,
                pid=rank.pid,
                endpoint=rank.endpoint,
                role=rank.role,
            )
        )
        self.relay.started(cast("Any", rank))
        if rank.mode == "live":
            self.training.waits(rank)
        else:
            rank.doing = Doing.WARMING
            self.later(self.training.setup.warm_seconds * self._chance.uniform(0.7, 1.5), self._parked, rank)

    def _parked(self, rank: SimulatedRank) -> None:
        if rank.over:
            return
        rank.tell(
            say.StandbyParked(
                machine=self.name,
                incarnation=self.incarnation,
                slot=rank.slot,
                generation=rank.generation,
                shadow_steps=2,
                seconds={},
                role=rank.role,
            )
        )
        self.training.waits(rank)

    def _end_ranks(self) -> None:
        for rank in list(self.ranks.all):
            self._end_rank(rank)
        self.relay.forget()

    def _end_rank(self, rank: SimulatedRank) -> None:
        self.ranks.all.remove(rank)
        rank.doing = Doing.ENDED
        self.training.lost(rank, hanging=False)

    def rank_dies(self, rank: SimulatedRank, *, error: str = "") -> None:
        """A rank process ends without having been asked to."""
        if rank.over:
            return
        rank.doing = Doing.ENDED
        self.lost_a_rank = True
        self.training.lost(rank, hanging=False)
        event = say.RankExited(
            machine=self.name,
            incarnation=self.incarnation,
            slot=rank.slot,
            mode=rank.mode,
            generation=rank.generation,
            pid=rank.pid,
            code=1 if error else None,
            signal=None if error else 9,
            error=error,
            role=rank.role,
        )
        self.later(self._chance.random() * 0.2, self.tell, event)

    # -- what befalls it -----------------------------------------------------------------------------

    def kill(self, *, hanging: bool = False) -> None:
        """It is gone at once; ``hanging``: as by a power loss, no connection is closed.

        One that nobody had heard of yet is started again by who started it, as ``trainmover run`` does.
        """
        if not self.alive:
            return
        away = self.outlet.cut or self._exchange.out
        first = f"{self.name}-{self.incarnation}-1"
        unheard = first in self.outlet.unstored and (away or not self.was_heard(first))
        self._vanish(hanging=hanging)
        if unheard:
            self._exchange.loop.later(START_AGAIN_SECONDS, self.on_unheard, self.name)

    def _vanish(self, *, hanging: bool) -> None:
        self.alive, self.hanging = False, hanging
        self.outlet.alive = False
        if self.outlet in self._exchange.outlets:
            self._exchange.outlets.remove(self.outlet)
        self._exchange.crowd.leave(self.name, self)
        self._gone_at = self._exchange.loop.now
        ranks, self.ranks.all = self.ranks.all, []
        for rank in ranks:
            if not rank.over:
                rank.doing = Doing.ENDED
                self.training.lost(rank, hanging=hanging)

    def freeze(self) -> None:
        """Everything on it stops (SIGSTOP)."""
        self.process.frozen = True

    def thaw(self) -> None:
        """It goes on with what it has missed, the bus port's repeats too."""
        if self.alive and self.process.frozen:
            self._exchange.loop.thaw(self.process)
            self.well_since = self._exchange.loop.now
            self.outlet.back()
            self.fill()
            self.go_on()
            self.training.look_again()

    def cut(self, *, bus: bool = True, peers: bool = True) -> None:
        """It loses its connections."""
        self.outlet.cut = self.outlet.cut or bus
        self.apart = self.apart or peers
        self._gone_at = self._exchange.loop.now if bus else self._gone_at

    def heal(self) -> None:
        """It is reached again."""
        if self.alive:
            self.outlet.cut = self.apart = False
            self._gone_at = None
            self.well_since = self._exchange.loop.now
            self.outlet.back()
            self.later(0.2, self.fill)
            self.training.look_again()

    def presence(self, now: float) -> ProbeAnswer:
        """What a probe finds; see ``bus.Probed``."""
        if self.alive and not self.outlet.cut:
            return "silent" if self.process.frozen else "alive"
        quick = not self.alive and not self.hanging
        since = self._gone_at if self._gone_at is not None else now
        return "absent" if quick or now - since > INTEREST_SECONDS else "silent"

    def _leave(self, why: str, seconds: float) -> None:
        """Its program ends: its ranks first, then it says so."""
        self._busy, self.ending = True, why
        for rank in list(self.ranks.all):
            if rank.mode == "live" and why == "completed":
                rank.doing = Doing.ENDED
            else:
                self._end_rank(rank)
        self.later(seconds, self._left, why)

    def _left(self, why: str) -> None:
        self.tell(say.MachineLeft(machine=self.name, incarnation=self.incarnation, reason=why))
        # A short time in which the bus port brings its last words into the log.
        self.later(3.0 if self.outlet.unstored else 1.0, self._vanish_quietly)

    def _vanish_quietly(self) -> None:
        if self.alive:
            self._vanish(hanging=False)
            if (self.ending == "fenced" and not self.lost_a_rank) or self._paused:
                self.on_unheard(self.name)

    # -- what it says --------------------------------------------------------------------------------

    def tell(self, event: say.Event) -> None:
        """Publish, under an id of its own."""
        if not self.alive:
            return
        self._said += 1
        self.outlet.publish(
            Envelope(
                id=f"{self.name}-{self.incarnation}-{self._said}",
                source=f"machine/{self.name}",
                time=BEGIN + self._exchange.loop.now + self._exchange.clocks.get(self.name, 0.0),
                job=JOB,
                event=event,
            )
        )

    def later(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        """Do something as this machine's program: not while it is frozen, and not once it is gone."""
        loop = self._exchange.loop

        def if_alive() -> None:
            if self.alive:
                act(*arguments)

        loop.call_later(delay, if_alive, context=self._context)

    def _is_me(self, event: Any) -> bool:
        return bool((event.machine, event.incarnation) == self.life)
