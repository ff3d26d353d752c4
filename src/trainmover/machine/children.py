"""Child processes: started on a leash, watched without polling, ended with everything they began.

What lives here: one class used by the machine program for its ranks and by the driver for the
machines, the services and the server.  What never lives here: what a child is for.

A child's end is seen the moment it happens, through a pidfd on the event loop.  The zombie is
reaped only after its process group has been dealt with, so that a group id can never be one that
the system has given to somebody else in the meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from trainmover import logs

LEASH = Path(__file__).with_name("_leash.py")
TAIL_BYTES = 16_384
TAIL_LINES = 30

Priority = Literal["normal", "low", "idle"]
"""How much a process stands back: ``low`` is nice 10, ``idle`` runs only when nobody else wants to."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: with a code, or by a signal; exactly one of the two is given."""

    code: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class Child:
    """A running child process.

    Attributes:
        name: what to call it in messages.
        pid: its process id; also its group id when it was started with ``own_group``.
        log: where its output goes; None: inherited.
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        *,
        log: Path | None,
        log_start: int,
        own_group: bool,
    ) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        self._log_start = log_start
        self._process = process
        self._own_group = own_group
        self._exit: Exit | None = None
        self._watch = asyncio.ensure_future(self._wait())

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path | None = None,
        log: Path | None = None,
        own_group: bool = False,
        priority: Priority = "normal",
    ) -> Child:
        """Start a command; must be called from the main thread, on whose life the leash hangs.

        Args:
            name: what to call it in messages.
            command: program and arguments.
            env: its whole environment.
            cwd: its working directory.
            log: file to which its output is appended; None: it writes where this process does.
            own_group: give it its own session and process group.
            priority: of a process that shall stand back; see :func:`may_come_forward`.
        """
        leashed = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), priority, *command]
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(log.open("ab")) if log is not None else None
            log_start = log.stat().st_size if log is not None else 0
            process = subprocess.Popen(
                leashed,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if out is not None else None,
                env=dict(env),
                cwd=cwd,
                start_new_session=own_group,
            )
        return cls(name, process, log=log, log_start=log_start, own_group=own_group)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        return self._exit

    async def exited(self) -> Exit:
        """Wait for its end (without a limit: callers that end it use :meth:`end`)."""
        return await asyncio.shield(self._watch)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child, or to its whole group when it has its own."""
        if self._exit is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._own_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the child and all that it started, at once."""
        if self._own_group:
            self.send(signal.SIGKILL)
            return
        if self._exit is None:
            offspring = _offspring(self.pid)
            self.send(signal.SIGKILL)
            for process in offspring:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    async def end(self, patience: float) -> Exit:
        """SIGTERM, then after ``patience`` seconds SIGKILL; returns how it ended.

        A stopped process is continued, or it could not follow the SIGTERM.
        """
        if self._exit is None and patience > 0:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.exited(), patience)
        self.kill()
        return await self.exited()

    def come_forward(self) -> None:
        """Normal priority from now on: the process is needed."""
        for process in (self.pid, *(other.pid for other in _offspring(self.pid))):
            come_forward(process)

    def stand_back(self) -> None:
        """Idle priority from now on, where that can be taken back: something else comes first."""
        if may_come_forward():
            for process in (self.pid, *(other.pid for other in _offspring(self.pid))):
                stand_back(process)

    def last_words(self) -> str:
        """The last lines of its log since it was started; empty without a log."""
        if self.log is None:
            return ""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(logs.readable(line) for line in text.strip().splitlines()[-TAIL_LINES:])

    async def _wait(self) -> Exit:
        await until_dead(self.pid)
        if self._own_group:
            # The child is a zombie still, so the group id is surely ours: no straggler survives.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        self._exit = Exit(None, -status) if status < 0 else Exit(status, None)
        return self._exit


def come_forward(pid: int) -> None:
    """Give a process normal priority: on Linux each of its threads has one of its own."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                if hasattr(os, "SCHED_IDLE"):
                    os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def stand_back(pid: int) -> None:
    """Give each thread of a process idle priority; only where the system has such a thing."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task") if hasattr(os, "SCHED_IDLE") else ():
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def may_come_forward() -> bool:
    """True when a low priority can be taken back: root, or a generous RLIMIT_NICE."""
    if os.geteuid() == 0:
        return True
    limit = getattr(resource, "RLIMIT_NICE", None)
    # The limit is counted as 20 minus the lowest niceness that may be set (setrlimit(2)).
    return limit is not None and (resource.getrlimit(limit)[0] >= 20 or resource.getrlimit(limit)[0] < 0)


def _offspring(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


async def until_dead(pid: int) -> None:
    """Return once this child of ours has ended; it is not reaped, so its ids are still its own."""
    if not hasattr(os, "pidfd_open"):
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    loop = asyncio.get_running_loop()
    dead = asyncio.Event()
    handle = os.pidfd_open(pid)
    try:
        loop.add_reader(handle, dead.set)
        await dead.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
