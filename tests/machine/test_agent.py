"""The machine program against a bus in memory and real rank processes that need no torch."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.machine.worlds import World
from trainmover.events import catalogue as say

FAKE = Path(__file__).with_name("fake_rank.py")


@pytest.mark.parametrize("world", [("--steps", "5")], indirect=True)
async def test_a_whole_job_on_one_machine(world: World) -> None:
    """Launched ranks get their environment, are relayed, finish, and the machine leaves with code 0."""
    await world.launch()
    (started,) = await world.until(say.RankStarted)
    assert (started.machine, started.incarnation, started.mode) == ("m0", world.agent.incarnation, "live")
    await world.prepare()
    await world.until(say.SwitchAdopted)
    await world.until(say.RankFinished)
    await world.come_true(lambda: max(beat.step for beat in world.beats) == 4)
    await world.say(say.JobCompleted(steps=5, digest="d", identical=True))
    assert await world.end() == "completed"
    assert world.heard(say.MachineLeft)[0].reason == "completed"
    assert not world.heard(say.RankExited)


async def test_it_obeys_only_its_own_life(world: World) -> None:
    """A launch for an earlier life of the same machine, or a failure of it, changes nothing."""
    await world.launch(incarnation="older")
    await world.say(say.MachineFailed(machine="m0", incarnation="older", reason="gone"))
    await world.launch()
    await world.until(say.RankStarted)
    assert world.task is not None
    assert not world.task.done()


async def test_a_machine_declared_dead_kills_its_ranks_and_leaves(world: World) -> None:
    """machine.failed of this life: ranks are gone at once, nothing said of them; it may join again."""
    await world.launch(ranks=2)
    started = await world.until(say.RankStarted, 2)
    await world.say(
        say.MachineFailed(machine="m0", incarnation=world.agent.incarnation, reason="silent for 3 s")
    )
    assert await world.end() == "fenced"
    assert not any(psutil.pid_exists(event.pid) for event in started)
    assert world.heard(say.MachineLeft)[0].reason == "fenced"
    assert not world.heard(say.RankExited)
    assert world.agent.unheard


async def test_a_machine_that_lost_a_rank_does_not_join_again(world: World) -> None:
    """Whatever ended the rank may be the machine's fault: somebody has to look first."""
    await world.launch()
    (started,) = await world.until(say.RankStarted)
    os.kill(started.pid, signal.SIGKILL)
    await world.until(say.RankExited)
    await world.say(
        say.MachineFailed(machine="m0", incarnation=world.agent.incarnation, reason="lost a rank")
    )
    assert await world.end() == "fenced"
    assert not world.agent.unheard


async def test_a_killed_rank_is_reported_with_its_signal(world: World) -> None:
    """A rank that dies unasked is told once, with signal and without an error of the script."""
    await world.launch()
    (started,) = await world.until(say.RankStarted)
    os.kill(started.pid, signal.SIGKILL)
    (exited,) = await world.until(say.RankExited)
    assert (exited.code, exited.signal, exited.error) == (None, signal.SIGKILL, "")
    await world.come_true(lambda: world.beats[-1].ranks == ("exited",))


@pytest.mark.parametrize("world", [("--raise-at", "0")], indirect=True)
async def test_an_exception_of_the_script_is_reported_with_its_text(world: World) -> None:
    """A script that raises is told with code 1 and the end of its traceback."""
    await world.launch()
    await world.until(say.RankStarted)
    await world.prepare()
    (exited,) = await world.until(say.RankExited)
    assert exited.code == 1
    assert "RuntimeError: the user's script is wrong" in exited.error


async def test_a_script_that_cannot_start_is_reported(world: World) -> None:
    """When no process can be started at all, that is an exit with a reason, not a crash."""
    assert world.agent._job is not None or await asyncio.sleep(0.1) is None
    world.agent._job = world.agent._job.model_copy(update={"cwd": "/no/such/folder"})
    await world.launch()
    (exited,) = await world.until(say.RankExited)
    assert exited.code == 1
    assert "m0 cannot start its ranks" in exited.error


async def test_a_stopped_rank_shows_in_the_heartbeat(world: World) -> None:
    """SIGSTOP of a rank is seen by its machine and told with the next beat."""
    await world.launch()
    (started,) = await world.until(say.RankStarted)
    await world.come_true(lambda: world.beats[-1].ranks == ("running",))
    os.kill(started.pid, signal.SIGSTOP)
    await world.come_true(lambda: world.beats[-1].ranks == ("stopped",))
    os.kill(started.pid, signal.SIGCONT)
    await world.come_true(lambda: world.beats[-1].ranks == ("running",))
    assert world.beats[-1].rss_bytes > 1_000_000


async def test_a_new_generation_replaces_the_ranks(world: World) -> None:
    """A launch of a newer generation ends the old ranks silently and starts new ones."""
    await world.launch()
    (first,) = await world.until(say.RankStarted)
    await world.launch(generation=1)
    _, second = await world.until(say.RankStarted, 2)
    assert second.generation == 1
    assert not psutil.pid_exists(first.pid)
    assert not world.heard(say.RankExited)


@pytest.mark.parametrize("world", [("--steps", "100000")], indirect=True)
async def test_a_released_machine_ends_its_ranks(world: World) -> None:
    """switch.committed with this machine as leaver: ranks end, the machine leaves with code 0."""
    await world.launch()
    await world.until(say.RankStarted)
    await world.say(
        say.SwitchCommitted(
            epoch=2,
            kind="move",
            incidents=("i",),
            machines=("m1",),
            leavers=("m0",),
            joiners=("m1",),
            step=4,
        )
    )
    assert await world.end() == "released"
    assert world.heard(say.MachineLeft)[0].reason == "released"


async def test_roles_reach_ranks_that_connect_later(world: World) -> None:
    """Ranks that train hear of the roles, and the representative's records, whenever they connect."""
    role = say.MachineRole(name="all", seats=(say.SeatRow(first=0),), representative=0)
    await world.say(say.RolesFound(generation=0, roles=(role,)))
    await world.launch()
    (ready,) = await world.until(say.RecordingReady)
    assert ready.path == str(world.run_dir / "recordings" / "g0" / "all" / "slot-0")


async def test_what_is_said_during_an_outage_is_said_later(world: World) -> None:
    """While the bus is away ranks go on, and afterwards the log has everything in order."""
    await world.launch()
    (started,) = await world.until(say.RankStarted)
    world.broker.down()
    os.kill(started.pid, signal.SIGKILL)
    await world.come_true(lambda: not psutil.pid_exists(started.pid))
    assert not world.heard(say.RankExited)
    world.broker.up()
    await world.until(say.RankExited)


async def test_a_machine_without_a_job_waits_for_it(tmp_path: Path) -> None:
    """A launch that arrives before the job's description is carried out once that is known."""
    world = World(tmp_path)
    world.task = asyncio.create_task(world.agent.run())
    await world.until(say.MachineJoined)
    await world.launch()
    await world.say(
        say.JobSubmitted(
            script=str(FAKE), cwd=str(tmp_path), python=sys.executable, machines=1, run_dir=str(tmp_path)
        )
    )
    await world.until(say.RankStarted)
    world.agent.stop()
    assert await world.end() == "stopped"
    assert world.heard(say.MachineLeft)[0].reason == "stopped"
