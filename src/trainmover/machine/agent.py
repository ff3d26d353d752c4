"""The machine program: it joins a job, runs what the job wants here, and ends when it must.

What lives here: what each event on the bus means for this machine, and what this machine says.
What never lives here: processes (``ranks``), what they are told (``relay``), the socket
(``rank_socket``), sending (``outbox``), figures (``vitals``).

The rules of the file:

- It obeys what names this machine *and this life of it* (its incarnation).  Layouts name machines
  only, so switch events count from the moment this life has heard itself join.
- Between bus and ranks it is a relay: what ranks say goes out as it is, and the few bus events that
  ranks need go in.
- A spare has a set of ranks for each role that it is warm in.  When it takes a seat, one of them is
  promoted and the others end.
- A machine that is declared dead kills its ranks before anything else, however it learns of it:
  at once, or out of the log after having been frozen for a minute.
- When the bus is away, ranks go on; what there is to say waits in the bus port.

Each life ends with an exit code for whoever started it; see :data:`~trainmover.machine.lives.EXITS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from trainmover.events import catalogue as say
from trainmover.events.bus import Bus
from trainmover.events.envelope import Envelope
from trainmover.machine import environment
from trainmover.machine.children import Exit
from trainmover.machine.lives import Ending, MachineConfig
from trainmover.machine.outbox import Outbox
from trainmover.machine.rank_socket import RankLine, RankSocket
from trainmover.machine.ranks import Rank, Ranks
from trainmover.machine.relay import Relay
from trainmover.machine.says import RANK_SAYS
from trainmover.machine.vitals import GpuVitals, ProcessVitals
from trainmover.machine.warmups import WarmUps

RELEASE_PATIENCE: Final = 5.0
LEAVE_PATIENCE: Final = 25.0
"""How long ranks that are released may still write their part of a checkpoint."""
FINISH_PATIENCE: Final = 300.0
"""How long ranks may take to end by themselves once the job is completed."""

__all__ = ["Agent", "Ending", "MachineConfig"]

AREAS: Final = ("job", "machine", "move", "roles", "standby", "switch")

log = logging.getLogger("trainmover.machine")


class Agent:
    """One life of one machine in one job; :meth:`run` lives it.

    Attributes:
        unreached: machines that it did not reach, and was replaced for that.
    """

    def __init__(self, bus: Bus, config: MachineConfig) -> None:
        self.config = config
        self.incarnation = secrets.token_hex(4)
        self.unreached: tuple[str, ...] = ()
        self._bus = bus
        self._ranks = Ranks(config.name, self._rank_gone)
        self._socket = RankSocket(self._rank_said, self._rank_connected, self._rank_broke)
        self._job: say.JobSubmitted | None = None
        self._waiting: list[Envelope] = []
        self._in = self._joined = False
        self._relay = Relay(config.name, self._ranks)
        self._warmups = WarmUps(self._ranks, self._relay, self._warm)
        self._outbox = Outbox(bus, config.name, self.incarnation)
        self._stop = asyncio.Event()
        self._ending: Ending | None = None
        self._lost_a_rank = False
        self._paused = False
        self._acts: dict[type[say.Event], Callable[[Any], Awaitable[Ending | None]]] = {
            say.JobSubmitted: self._on_submitted,
            say.MachineJoined: self._on_joined,
            say.MachineLaunch: self._on_launch,
            say.RolesFound: self._on_roles,
            say.StandbyWarm: self._on_warm,
            say.StandbyAssigned: self._on_assigned,
            say.MachineFailed: self._on_failed,
            say.MoveRequested: self._on_move,
            say.SwitchPrepare: self._on_prepare,
            say.SwitchAborted: self._on_aborted,
            say.SwitchCommitted: self._on_committed,
            say.JobCompleted: self._on_completed,
            say.JobFailed: self._on_job_failed,
        }

    def stop(self) -> None:
        """Leave in good order (an operator's SIGTERM)."""
        self._stop.set()

    @property
    def joins_again(self) -> bool:
        """Nothing is wrong with this machine: it could only not be heard, or its replica pauses."""
        return self.unheard or (self._ending == "released" and self._paused)

    @property
    def unheard(self) -> bool:
        """The life ended because the machine could not be heard, and nothing of it is known to be broken."""
        return self._ending == "fenced" and not self._lost_a_rank

    async def run(self) -> Ending:
        """Join, serve, leave.

        Returns:
            How this life ended; :data:`~trainmover.machine.lives.EXITS` has the exit codes.

        Raises:
            BusError: the bus could not be reached at the start.
        """
        sender = asyncio.ensure_future(self._outbox.send())
        beats: asyncio.Future[None] | None = None
        ending: Ending = "stopped"
        try:
            await self._socket.start()
            await self._bus.answer_probes(self.config.name)
            feed = await self._bus.feed(AREAS, history=True)
            beats = asyncio.ensure_future(self._join_and_beat())
            obeying = asyncio.ensure_future(self._obey(feed))
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({obeying, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if obeying.done():
                ending = obeying.result()
            else:
                obeying.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await obeying
                await self._ranks.end(RELEASE_PATIENCE)
            await feed.close()
        finally:
            self._warmups.forget()
            await self._ranks.end(0.0)
            if beats is not None:
                beats.cancel()
            await self._leave(ending, sender)
            await self._socket.close()
        self._ending = ending
        return ending

    # -- what the bus says

    async def _obey(self, feed: Any) -> Ending:
        async for envelope in feed:
            ending = await self._act(envelope)
            if ending is not None:
                return ending
        return "stopped"

    async def _act(self, envelope: Envelope) -> Ending | None:
        self.config.apart.note(envelope.event)
        act = self._acts.get(type(envelope.event))
        return await act(envelope.event) if act is not None else None

    async def _on_submitted(self, event: say.JobSubmitted) -> Ending | None:
        if self._job is None:
            self._job = event
            waiting, self._waiting = self._waiting, []
            for envelope in waiting:
                ending = await self._act(envelope)
                if ending is not None:
                    return ending
        return None

    async def _on_joined(self, event: say.MachineJoined) -> None:
        self._joined = self._joined or self._is_me(event)

    async def _on_launch(self, event: say.MachineLaunch) -> None:
        there = {(rank.generation, rank.mode == "live") for rank in self._ranks}
        if not self._is_me(event) or max(there, default=(-1, False)) >= (event.generation, True):
            return
        job = self._described(event)
        if job is not None:
            log.info("launching generation %d at position %d", event.generation, event.position)
            environments = environment.live(self._seat(), job, event)
            await self._end_ranks()
            await self._start_ranks(job, "live", event.generation, environments)

    async def _on_roles(self, event: say.RolesFound) -> None:
        self._relay.roles(event)

    async def _on_warm(self, event: say.StandbyWarm) -> None:
        newest = max((rank.generation for rank in self._ranks), default=-1)
        there = any(
            rank.role == event.role or rank.mode == "live"
            for rank in self._ranks
            if newest == event.generation
        )
        if not self._is_me(event) or newest > event.generation or there:
            return
        job = self._described(event)
        if job is None:
            return
        log.info("warming up as a standby in the role %s, generation %d", event.role, event.generation)
        if newest < event.generation:
            await self._end_ranks()
        await self._warm(event)

    async def _warm(self, event: say.StandbyWarm) -> None:
        assert self._job is not None, "who warms up knows the job"
        environments = environment.sandbox(self._seat(), self._job, event)
        self._warmups.begun(event, self._job.warm_limit_seconds)
        await self._start_ranks(
            self._job, "sandbox", event.generation, environments, event.role, event.urgent
        )

    async def _on_assigned(self, event: say.StandbyAssigned) -> None:
        if (event.joiner, event.joiner_incarnation) == (self.config.name, self.incarnation):
            self._ranks.come_forward(event.role)
            self._relay.assigned(event)

    async def _on_failed(self, event: say.MachineFailed) -> Ending | None:
        if self._is_me(event):
            self._ranks.kill()
            self.unreached = event.unreached
            log.warning("declared dead (%s): ranks are killed, this machine leaves", event.reason)
            return "fenced"
        # A standby that still warms up is wanted sooner than it was.
        self._ranks.come_forward()
        self._ranks.send(event)
        return None

    async def _on_move(self, event: say.MoveRequested) -> None:
        self._ranks.come_forward()

    async def _on_prepare(self, event: say.SwitchPrepare) -> None:
        if not self._joined or self.config.name not in (*event.machines, *event.leavers):
            return
        if self.config.name in event.machines:
            self._ranks.come_forward(self._relay.role)
        self._relay.prepare(event)

    async def _on_aborted(self, event: say.SwitchAborted) -> None:
        self._relay.over(event)

    async def _on_committed(self, event: say.SwitchCommitted) -> Ending | None:
        if not self._joined:
            return None
        self._relay.over(event)
        if self.config.name in event.joiners and self._relay.role:
            await self._ranks.end_others(self._relay.role)
        # Who came back under a leaver's name, and has no rank that trains, is a spare and stays.
        if self.config.name not in event.leavers or not any(rank.mode == "live" for rank in self._ranks):
            return None
        self._paused = event.kind == "shrink"
        log.info("released: epoch %d goes on without this machine", event.epoch)
        if self._job is not None and self._job.checkpoint_every:
            await self._ranks.settle(LEAVE_PATIENCE)  # they may still write their part of a checkpoint
        await self._ranks.end(RELEASE_PATIENCE)
        return "released"

    async def _on_completed(self, event: say.JobCompleted) -> Ending:
        self._ranks.send(event)
        if any(rank.mode == "live" for rank in self._ranks):
            await self._ranks.settle(FINISH_PATIENCE)
        await self._ranks.end(RELEASE_PATIENCE)
        return "completed"

    async def _on_job_failed(self, event: say.JobFailed) -> Ending:
        log.error("the job failed: %s", event.reason)
        self._ranks.send(event)
        await self._ranks.end(RELEASE_PATIENCE)
        return "job failed"

    # -- what the ranks say

    def _rank_connected(self, line: RankLine) -> None:
        rank = self._ranks.of(line.pid)
        if rank is not None:
            rank.line = line
            self._relay.connected(rank)

    def _rank_said(self, line: RankLine, event: say.Event) -> None:
        rank = self._ranks.of(line.pid)
        named = getattr(event, "machine", self.config.name)
        others = named != self.config.name and not isinstance(event, say.MoveRequested)
        if rank is None or others or type(event) not in RANK_SAYS:
            log.warning("process %s said %s, which is not its to say; dropped", line.pid, event.type)
            return
        rank.note(event)
        if not isinstance(event, say.RankExited):
            self._outbox.say(event, source=f"machine/{self.config.name}/{rank.slot}")
        if isinstance(event, say.RankStarted):
            self._relay.started(rank)

    def _rank_broke(self, complaint: str) -> None:
        log.error("%s; its connection is closed", complaint)

    def _rank_gone(self, rank: Rank, ended: Exit) -> None:
        error = rank.error(ended)
        again = self._warmups.again(rank)
        self._lost_a_rank |= not again
        log.warning("rank in slot %d ended: %s%s", rank.slot, ended, f"\n{error}" if error else "")
        self._outbox.say(rank.exited(self.config.name, self.incarnation, ended, again=again))

    # -- what this machine does

    async def _end_ranks(self) -> None:
        self._warmups.forget()
        await self._ranks.end(0.0)
        self._relay.forget()

    async def _start_ranks(
        self,
        job: say.JobSubmitted,
        mode: say.RankMode,
        generation: int,
        environments: list[dict[str, str]],
        role: str = "",
        urgent: bool = False,
    ) -> None:
        logs = Path(job.run_dir) / "logs"
        command = [job.python, job.script, *job.args]
        try:
            self._ranks.start(
                environments,
                command,
                mode=mode,
                generation=generation,
                cwd=job.cwd,
                logs=logs,
                role=role,
                urgent=urgent,
            )
        except OSError as error:
            await self._ranks.end(0.0)
            failed = say.RankExited(
                machine=self.config.name,
                incarnation=self.incarnation,
                slot=0,
                mode=mode,
                generation=generation,
                pid=0,
                code=1,
                signal=None,
                error=f"{self.config.name} cannot start its ranks: {error}",
                role=role,
            )
            log.error("%s", failed.error)
            self._outbox.say(failed)

    def _seat(self) -> environment.Seat:
        return environment.Seat(
            job=self._bus.job,
            machine=self.config.name,
            incarnation=self.incarnation,
            host=self.config.host,
            socket=self._socket.path,
            secret=self.config.secret,
            port=environment.free_port(self.config.host),
            pid=os.getpid(),
            link_tls=self.config.link_tls,
        )

    def _described(self, event: say.Event) -> say.JobSubmitted | None:
        """The job's description; while it is not known, the event is kept until it is."""
        if self._job is None:
            self._waiting.append(self._outbox.envelope(event))
        return self._job

    def _is_me(self, event: Any) -> bool:
        return bool(event.machine == self.config.name and event.incarnation == self.incarnation)

    # -- what this machine says

    async def _join_and_beat(self) -> None:
        await self.config.apart.over()
        self._join()
        await self._beat()

    def _join(self) -> None:
        self._in = True
        log.info("machine %s joins job %s (life %s)", self.config.name, self._bus.job, self.incarnation)
        self._outbox.say(
            say.MachineJoined(
                machine=self.config.name,
                incarnation=self.incarnation,
                host=self.config.host,
                slots=self.config.slots,
                pid=os.getpid(),
            )
        )

    async def _leave(self, ending: Ending, sender: asyncio.Future[None]) -> None:
        if self._in:
            self._outbox.say(
                say.MachineLeft(machine=self.config.name, incarnation=self.incarnation, reason=ending)
            )
        await self._outbox.flush()
        sender.cancel()
        log.info("left: %s", ending)

    async def _beat(self) -> None:
        processes, gpus = ProcessVitals(), GpuVitals()
        due, sequence = time.monotonic(), 0
        while True:
            readings = processes.read([rank.child.pid for rank in self._ranks])
            beat = say.Heartbeat(
                machine=self.config.name,
                incarnation=self.incarnation,
                sequence=sequence,
                ranks=self._ranks.states(readings),
                step=max((rank.step for rank in self._ranks), default=0),
                cpu_percent=sum(reading.cpu_percent for reading in readings.values()),
                rss_bytes=sum(reading.rss_bytes for reading in readings.values()),
                gpus=gpus.latest(),
            )
            self._outbox.say(beat)
            sequence += 1
            # After a pause (a frozen machine, a busy one) the beats that were missed stay missed.
            due = max(due + self.config.beat_seconds, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
