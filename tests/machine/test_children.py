"""Child processes: seen to end at once, ended whole, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import until
from trainmover.machine.children import Child, Exit, may_come_forward

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def start(command: list[str], **options) -> Child:
    return Child.start("child", command, env=dict(os.environ), **options)


async def test_an_exit_code_and_the_last_words_are_reported(tmp_path: Path) -> None:
    """A child's code is known, and what it last wrote, not what an earlier one wrote."""
    log = tmp_path / "logs" / "child.log"
    await start([sys.executable, "-c", "print('old')"], log=log).exited()
    child = start([sys.executable, "-c", "print('why'); raise SystemExit(7)"], log=log)
    assert await child.exited() == Exit(7, None)
    assert child.last_words() == "why"
    assert log.read_text() == "old\nwhy\n"


async def test_a_killed_child_is_seen_at_once() -> None:
    """A SIGKILL from outside is reported within a fraction of a second, by its name."""
    child = start(SLEEP)
    before = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    assert str(await asyncio.wait_for(child.exited(), 5)) == "SIGKILL"
    assert time.monotonic() - before < 1.0


async def test_a_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    """A program that cannot be run is an exit code and a sentence, not an exception."""
    child = start(["/no/such/program"], log=tmp_path / "log")
    assert (await child.exited()).code == 1
    assert "cannot run /no/such/program" in child.last_words()


async def test_an_unwilling_child_is_killed_after_the_patience() -> None:
    """A child that ignores SIGTERM is killed when the patience is over."""
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    log = Path(os.devnull)
    child = start([sys.executable, "-c", code], log=log)
    await until(lambda: psutil.Process(child.pid).cmdline()[1:2] == ["-c"])
    ended = await child.end(0.3)
    assert ended.signal in (signal.SIGKILL, signal.SIGTERM)


async def test_a_stopped_child_can_be_ended() -> None:
    """A child frozen by SIGSTOP still ends."""
    child = start(SLEEP, own_group=True)
    child.send(signal.SIGSTOP)
    await until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    await asyncio.wait_for(child.end(5.0), 10)
    assert child.exit is not None


async def test_grandchildren_do_not_outlive_a_group() -> None:
    """When a child with its own group dies by itself, what it had started is killed too."""
    code = "import subprocess; subprocess.Popen(['sleep', '60'])"
    child = start([sys.executable, "-W", "ignore", "-c", code], own_group=True)
    await child.exited()
    await until(lambda: not [pid for pid in psutil.pids() if _group(pid) == child.pid])


async def test_a_leash_ends_the_child_of_a_killed_parent() -> None:
    """A child does not survive the SIGKILL of the process that started it."""
    code = (
        "import asyncio,os,sys\n"
        "from trainmover.machine.children import Child\n"
        "async def main():\n"
        f"    child = Child.start('c', {SLEEP!r}, env=dict(os.environ), own_group=True)\n"
        "    print(child.pid, flush=True)\n"
        "    await child.exited()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    # Not before the leash has become the command: from then on the tie is surely made.
    await until(lambda: "-c" in _cmdline(pid)[1:2])
    parent.kill()
    await asyncio.wait_for(parent.wait(), 10)
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("priority", "policy", "nice"),
    # Where these tests run nicely, what they start does.
    [("low", "SCHED_OTHER", 10), ("idle", "SCHED_IDLE", os.getpriority(os.PRIO_PROCESS, 0))],
    ids=["low", "idle"],
)
async def test_a_process_stands_back_and_comes_forward(priority: Any, policy: str, nice: int) -> None:
    """A spare's process stands back with every thread until it is needed, where that can be taken back."""
    if not may_come_forward():
        return
    wanted = (getattr(os, policy), nice)
    threads = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ntime.sleep(60)"
    )
    child = start([sys.executable, "-c", threads], priority=priority)
    try:
        await until(lambda: len(_standing(child.pid)) == 2 and set(_standing(child.pid)) == {wanted})
        child.come_forward()
        assert set(_standing(child.pid)) == {(os.SCHED_OTHER, 0)}
        child.stand_back()
        assert {policy for policy, _ in _standing(child.pid)} == {os.SCHED_IDLE}
    finally:
        await child.end(0.0)


def _standing(pid: int) -> list[tuple[int, int]]:
    """Scheduling policy and niceness of each thread."""
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return [(os.sched_getscheduler(t), os.getpriority(os.PRIO_PROCESS, t)) for t in threads]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _cmdline(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []
