"""The rank processes of one machine: started, watched, ended.

What lives here: what a machine program knows of each of its ranks, and how their ends are told.
What never lives here: the bus and what its events mean (``agent``).

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
    Event,
    RankExited,
    RankFinished,
    RankMode,
    RankStarted,
    StepSample,
    SwitchAdopted,
)
from trainmover.machine.children import Child, Exit, may_come_forward
from trainmover.machine.environment import complete
from trainmover.machine.rank_socket import RankLine
from trainmover.machine.vitals import RankState, Reading

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
        line: its connection; None until it has connected.
        started: it said that it is up.
        finished: it said that it has done all its steps.
        asked: its end was asked for.
        words: what it said of its own end.
        step: last committed step index that it told of.
    """

    slot: int
    mode: RankMode
    generation: int
    child: Child
    line: RankLine | None = None
    started: bool = False
    finished: bool = False
    asked: bool = False
    words: str = ""
    step: int = 0

    def note(self, event: Event) -> None:
        """Remember what one of its own events says of it."""
        match event:
            case RankStarted():
                self.started = True
            case RankFinished():
                self.finished = True
            case RankExited():
                self.words = event.error
            case StepSample():
                self.step = max(self.step, event.step)
            case SwitchAdopted():
                self.mode = "live"
            case _:
                pass

    def state(self, reading: Reading | None) -> RankState:
        """Its state for a heartbeat."""
        if self.child.exit is not None or reading is None or reading.state == "exited":
            return "exited"
        if reading.state == "stopped":
            return "stopped"
        return "running" if self.started else "starting"

    def error(self, ended: Exit) -> str:
        """Why it ended, as far as it or its log says."""
        if self.words:
            return self.words[-ERROR_CHARACTERS:]
        if ended.code == 0 or ended.signal in QUIET_SIGNALS:
            return ""
        return self.child.last_words()[-ERROR_CHARACTERS:]

    def exited(self, machine: str, incarnation: str, ended: Exit) -> RankExited:
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
        )


class Ranks:
    """All ranks of this machine; at most one set of one generation at a time.

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

    def start(
        self,
        environments: Sequence[Mapping[str, str]],
        command: Sequence[str],
        *,
        mode: RankMode,
        generation: int,
        cwd: str,
        logs: Path,
    ) -> None:
        """Start one rank per environment; the ones before must have been ended.

        Raises:
            OSError: a process cannot be started (a missing folder, no memory).
        """
        if self._ranks:
            raise RuntimeError(f"{self._machine} has ranks already")
        for slot, own in enumerate(environments):
            child = Child.start(
                f"{self._machine} slot {slot}",
                command,
                env=complete(own),
                cwd=cwd,
                log=logs / f"{self._machine}-{slot}.log",
                priority="idle" if mode == "sandbox" and may_come_forward() else "normal",
            )
            rank = Rank(slot, mode, generation, child)
            self._ranks.append(rank)
            watch = asyncio.ensure_future(self._watch(rank))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    def send(self, event: Event, mode: RankMode | None = None) -> None:
        """Give an event to all ranks that are connected (of one mode)."""
        for rank in self._ranks:
            if rank.line is not None and mode in (None, rank.mode):
                rank.line.send(event)

    def come_forward(self) -> None:
        """They are needed, now or soon: standbys that warm up at idle priority go on at normal one."""
        for rank in self._ranks:
            if rank.mode == "sandbox" and rank.child.exit is None:
                rank.child.come_forward()

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
        for rank in self._ranks:
            rank.asked = True
        await asyncio.gather(*(rank.child.end(patience) for rank in self._ranks))
        await asyncio.gather(*self._watches)
        self._ranks.clear()

    async def _watch(self, rank: Rank) -> None:
        ended = await rank.child.exited()
        if rank.line is not None:
            # Its last events may still be in the socket. A worker that the rank forked can hold the
            # socket open after it, so this wait has a short limit.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rank.line.closed.wait(), LAST_WORDS_SECONDS)
        if not rank.asked and not (rank.finished and ended.code == 0):
            self._gone(rank, ended)
