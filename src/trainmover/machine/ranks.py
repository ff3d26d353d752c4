"""The rank processes of one machine: started, watched, ended.

What lives here: what a machine program knows of each of its ranks, and how their ends are told.
What never lives here: the bus and what its events mean (``agent``).

A machine has one *set* of ranks, one in each slot; a spare has one set for each role that it is warm
in, until it takes a seat.

An end that was asked for is nobody's news.  Any other is reported once, with the words of the rank
itself (a rank that raises says ``rank.exited`` on its socket before it goes) or else the last lines
of its log, because the operator reads that text first.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmover.events.catalogue import (
    Endpoint,
    Event,
    RankExited,
    RankFinished,
    RankMode,
    RankStarted,
    StandbyParked,
    StepSample,
    SwitchAdopted,
)
from trainmover.machine.children import Child, Exit, may_come_forward
from trainmover.machine.environment import complete
from trainmover.machine.rank_socket import RankLine
from trainmover.machine.vitals import RankState, Reading

BY_WEIGHT: Sequence[RankState] = ("running", "starting", "stopped", "exited")
"""States of a rank process, the worst last."""

ERROR_CHARACTERS = 4000
LAST_WORDS_SECONDS = 0.2
QUIET_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Ends that come from outside: the log has nothing to say about them."""


@dataclass(slots=True)
class Rank:
    """One rank process.

    Attributes:
        slot: its place on this machine.
        mode: sandbox until it has adopted its first epoch.
        generation: the start from nothing that it belongs to.
        child: the process.
        role: what it is warm in; empty for a rank that was launched.
        endpoint: where it listens, once it said so.
        line: its connection; None until it has connected.
        prepared: the last epoch that it was asked to prepare.
        finished: it said that it has done all its steps.
        asked: its end was asked for.
        words: what it said of its own end.
        hopeless: it said that no rank can go on.
        parked: it said that it is warm.
        late: it was ended because it was not warm in time.
        step: last committed step index that it told of.
    """

    slot: int
    mode: RankMode
    generation: int
    child: Child
    role: str = ""
    endpoint: Endpoint | None = None
    line: RankLine | None = None
    prepared: int = 0
    finished: bool = False
    asked: bool = False
    words: str = ""
    hopeless: bool = False
    parked: bool = False
    late: bool = False
    step: int = 0

    def note(self, event: Event) -> None:
        """Remember what one of its own events says of it."""
        match event:
            case RankStarted():
                self.endpoint = event.endpoint
            case StandbyParked():
                self.parked = True
            case RankFinished():
                self.finished = True
            case RankExited():
                self.words, self.hopeless = event.error, event.hopeless
            case StepSample():
                self.step = max(self.step, event.step)
            case SwitchAdopted():
                self.mode = "live"
            case _:
                pass

    def send(self, event: Event) -> None:
        """Give it an event, if it is connected."""
        if self.line is not None:
            self.line.send(event)

    def state(self, reading: Reading | None) -> RankState:
        """Its state for a heartbeat."""
        if self.child.exit is not None or reading is None or reading.state == "exited":
            return "exited"
        if reading.state == "stopped":
            return "stopped"
        return "running" if self.endpoint is not None else "starting"

    def error(self, ended: Exit) -> str:
        """Why it ended, as far as it or its log says."""
        if self.words:
            return self.words[-ERROR_CHARACTERS:]
        if ended.code == 0 or ended.signal in QUIET_SIGNALS:
            return ""
        return self.child.last_words()[-ERROR_CHARACTERS:]

    def exited(self, machine: str, incarnation: str, ended: Exit, *, again: bool = False) -> RankExited:
        """The event that tells of its end."""
        return RankExited(
            machine=machine,
            incarnation=incarnation,
            slot=self.slot,
            mode=self.mode,
            generation=self.generation,
            pid=self.child.pid,
            code=ended.code,
            signal=ended.signal,
            error=self.error(ended),
            role=self.role,
            hopeless=self.hopeless,
            again=again,
        )


class Ranks:
    """All ranks of this machine: one set, or of a spare one for each role; all of one generation.

    Args:
        machine: name of the machine, for logs.
        gone: called when a rank ended without having been asked to and without being done.
    """

    def __init__(self, machine: str, gone: Callable[[Rank, Exit], None]) -> None:
        self._machine = machine
        self._gone = gone
        self._ranks: list[Rank] = []
        self._watches: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def of(self, pid: int | None) -> Rank | None:
        """The rank with this process id."""
        return next((rank for rank in self._ranks if rank.child.pid == pid), None)

    def of_role(self, role: str) -> list[Rank]:
        """The set of ranks that is warm in this role, by slot."""
        return [rank for rank in self._ranks if rank.role == role]

    def states(self, readings: Mapping[int, Reading]) -> tuple[RankState, ...]:
        """State of each slot: of several processes in one slot, the worst."""
        worst: dict[int, RankState] = {}
        for rank in self._ranks:
            state = rank.state(readings.get(rank.child.pid))
            worst[rank.slot] = max(state, worst.get(rank.slot, state), key=BY_WEIGHT.index)
        return tuple(worst[slot] for slot in sorted(worst))

    def start(
        self,
        environments: Sequence[Mapping[str, str]],
        command: Sequence[str],
        *,
        mode: RankMode,
        generation: int,
        cwd: str,
        logs: Path,
        role: str = "",
        urgent: bool = False,
    ) -> None:
        """Start a set, one rank per environment; other sets may only be of other roles.

        Sandbox ranks stand back for training, unless they are ``urgent``.

        Raises:
            OSError: a process cannot be started (a missing folder, no memory).
        """
        if any(rank.role == role or not role for rank in self._ranks):
            raise RuntimeError(f"{self._machine} has ranks already{f' in the role {role}' if role else ''}")
        suffix = f"-{role}" if role else ""
        stand_back = mode == "sandbox" and not urgent and may_come_forward()
        for slot, own in enumerate(environments):
            child = Child.start(
                f"{self._machine} slot {slot}{f' ({role})' if role else ''}",
                command,
                env=complete(own),
                cwd=cwd,
                log=logs / f"{self._machine}-{slot}{suffix}.log",
                priority="idle" if stand_back else "normal",
            )
            rank = Rank(slot, mode, generation, child, role)
            self._ranks.append(rank)
            watch = asyncio.ensure_future(self._watch(rank))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    def send(self, event: Event, mode: RankMode | None = None) -> None:
        """Give an event to all ranks that are connected (of one mode)."""
        for rank in self._ranks:
            if rank.line is not None and mode in (None, rank.mode):
                rank.line.send(event)

    def come_forward(self, role: str = "") -> None:
        """They are needed, now or soon: standbys that warm up at idle priority go on at normal one.

        With a role only those that are warm in it; the others stand back again.
        """
        for rank in self._ranks:
            if rank.mode == "sandbox" and rank.child.exit is None:
                if role in ("", rank.role):
                    rank.child.come_forward()
                else:
                    rank.child.stand_back()

    def kill(self) -> None:
        """SIGKILL all of them at once; :meth:`end` waits for it."""
        for rank in self._ranks:
            rank.asked = True
            rank.child.kill()

    async def settle(self, limit: float) -> None:
        """Wait until all have ended by themselves, at most ``limit`` seconds; nobody is killed."""
        for rank in self._ranks:
            rank.asked = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(rank.child.exited() for rank in self._ranks)), limit)

    async def end(self, patience: float) -> None:
        """SIGTERM, after ``patience`` seconds SIGKILL; with 0 SIGKILL at once.  None is left."""
        if patience <= 0:
            self.kill()
        await self._end(self._ranks, patience)
        await asyncio.gather(*self._watches)

    async def end_others(self, role: str) -> None:
        """SIGKILL the sandbox ranks of all roles but this one: nobody needs them any more."""
        others = [rank for rank in self._ranks if rank.mode == "sandbox" and rank.role != role]
        for rank in others:
            rank.asked = True
            rank.child.kill()
        await self._end(others, 0.0)

    async def end_role(self, role: str) -> None:
        """SIGKILL the ranks of one role."""
        await self._end(self.of_role(role), 0.0)

    async def _end(self, ranks: Sequence[Rank], patience: float) -> None:
        for rank in ranks:
            rank.asked = True
        await asyncio.gather(*(rank.child.end(patience) for rank in ranks))
        gone = set(map(id, ranks))
        self._ranks = [rank for rank in self._ranks if id(rank) not in gone]

    async def _watch(self, rank: Rank) -> None:
        ended = await rank.child.exited()
        if rank.line is not None:
            # Its last events may still be in the socket. A worker that the rank forked can hold the
            # socket open after it, so this wait has a short limit.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rank.line.closed.wait(), LAST_WORDS_SECONDS)
        if not rank.asked and not (rank.finished and ended.code == 0):
            self._gone(rank, ended)
