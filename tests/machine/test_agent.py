"""The machine program against a bus in memory and real rank processes that need no torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.memory_bus import MemoryBroker
from trainmover.machine.agent import Agent, Ending, MachineConfig

FAKE = Path(__file__).with_name("fake_rank.py")


class World:
    """A job with one real machine program; the test plays the services."""

    def __init__(self, run_dir: Path, *arguments: str) -> None:
        self.broker = MemoryBroker()
        self.bus = self.broker.connect("test")
        self.run_dir = run_dir
        self.arguments = arguments
        self.beats: list[say.Heartbeat] = []
        self.agent = Agent(self.broker.connect("m0"), MachineConfig("m0", slots=2, beat_seconds=0.05))
        self.task: asyncio.Task[int] | None = None
        self._count = itertools.count()

    async def begin(self) -> None:
        await self.bus.listen(["sample.beat"], lambda envelope: self.beats.append(envelope.event))
        await self.say(
            say.JobSubmitted(
                script=str(FAKE),
                args=self.arguments,
                cwd=str(self.run_dir),
                python=sys.executable,
                machines=1,
                run_dir=str(self.run_dir),
            )
        )
        self.task = asyncio.create_task(self.agent.run())
        await self.until(say.MachineJoined)

    async def say(self, event: say.Event) -> None:
        identity = f"test-{next(self._count)}"
        await self.bus.publish(
            Envelope(id=identity, source="test", time=time.time(), job=self.broker.job, event=event)
        )

    def heard(self, kind: type[say.Event]) -> list:
        return [envelope.event for envelope in self.broker.log if isinstance(envelope.event, kind)]

    async def until(self, kind: type[say.Event], count: int = 1) -> list:
        await self.come_true(lambda: len(self.heard(kind)) >= count)
        return self.heard(kind)

    async def come_true(self, condition, limit: float = 60.0) -> None:
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, [str(envelope) for envelope in self.broker.log]
            await asyncio.sleep(0.01)

    async def launch(self, generation: int = 0, ranks: int = 1, incarnation: str | None = None) -> None:
        await self.say(
            say.MachineLaunch(
                machine="m0",
                incarnation=incarnation or self.agent.incarnation,
                position=0,
                world_size=ranks,
                ranks_per_machine=ranks,
                generation=generation,
                record=True,
            )
        )

    async def warm(self, role: str, slots: int = 1) -> None:
        """Warm the machine in a role, and wait until it is parked."""
        before = len(self.heard(say.StandbyParked))
        await self.say(
            say.StandbyWarm(
                machine="m0",
                incarnation=self.agent.incarnation,
                generation=0,
                recordings=(str(self.run_dir),) * slots,
                world_size=3 * slots,
                ranks_per_machine=slots,
                positions=(0,) * slots,
                role=role,
            )
        )
        await self.until(say.StandbyParked, before + slots)

    async def assign(self, role: str) -> None:
        await self.say(
            say.StandbyAssigned(
                incident="i",
                kind="failure",
                leaver="m9",
                joiner="m0",
                joiner_incarnation=self.agent.incarnation,
                role=role,
            )
        )

    async def prepare(self, epoch: int = 1, generation: int = 0) -> None:
        endpoints = tuple(event.endpoint for event in self.heard(say.RankStarted))
        await self.say(
            say.SwitchPrepare(
                epoch=epoch,
                kind="start",
                generation=generation,
                incidents=(),
                machines=("m0",),
                ranks_per_machine=1,
                leavers=(),
                joiners=("m0",),
                endpoints=endpoints[-1:],
                limit_seconds=10.0,
            )
        )

    async def end(self) -> Ending:
        assert self.task is not None
        return await asyncio.wait_for(self.task, 15)


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    arguments = getattr(request, "param", ())
    world = World(tmp_path, *arguments)
    # Other tests may have left helpers of their own (multiprocessing's resource tracker).
    before = set(psutil.Process().children(recursive=True))
    await world.begin()
    yield world
    assert world.task is not None
    if not world.task.done():
        world.agent.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(world.task, 15)
    assert not set(psutil.Process().children(recursive=True)) - before
    assert not os.path.exists(world.agent._socket.path)  # noqa: ASYNC240 - one look


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


@pytest.mark.parametrize("world", [("--steps", "100000")], indirect=True)
async def test_a_spare_with_the_name_of_a_leaver_stays(world: World) -> None:
    """The machine came back while its seat was still its first life's: only that one left."""
    await world.warm("all")
    change = {"kind": "failure", "incidents": ("i",), "leavers": ("m0",), "step": 4}
    await world.say(say.SwitchCommitted(epoch=2, machines=("m1",), joiners=("m1",), **change))
    await world.warm("more")
    assert not world.heard(say.MachineLeft)


JOIN = {
    "kind": "failure",
    "generation": 0,
    "incidents": ("i",),
    "leavers": ("m9",),
    "joiners": ("m0",),
}


def joining(epoch: int, machines: tuple[str, ...], slots: int = 1) -> say.SwitchPrepare:
    """A switch in which m0 takes a seat of a pipeline of three machines."""
    seat = machines.index("m0")
    return say.SwitchPrepare(
        epoch=epoch,
        machines=machines,
        ranks_per_machine=slots,
        endpoints=(),
        limit_seconds=10.0,
        joiner_ranks=tuple(
            say.JoinerRank(
                rank=seat * slots + slot,
                groups=(
                    say.GroupRow(name="default", first=0, count=3 * slots),
                    say.GroupRow(name=f"data:{seat}.{slot}", ranks=(seat * slots + slot,)),
                ),
                sources=(seat * slots + slot,),
            )
            for slot in range(slots)
        ),
        **JOIN,
    )


def alive(pid: int) -> bool:
    """The process runs."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("world", [("--stages", "3")], indirect=True)
async def test_a_spare_is_promoted_in_the_role_that_is_needed(world: World) -> None:
    """Each role has processes of its own; only the assigned ones hear of the switch, and the rest end."""
    for role in ("first", "middle", "last"):
        await world.warm(role, slots=2)
    started = world.heard(say.RankStarted)
    assert sorted((event.role, event.slot, event.mode) for event in started) == [
        (role, slot, "sandbox") for role in ("first", "last", "middle") for slot in range(2)
    ]
    assert {event.role for event in world.heard(say.StandbyParked)} == {"first", "middle", "last"}
    await world.come_true(lambda: world.beats[-1].ranks == ("running", "running"))
    await world.assign("middle")
    machines = ("m8", "m0", "m7")
    await world.say(joining(2, machines, slots=2))
    shared = world.run_dir / "fake" / "g0"
    made = lambda: sorted(path.name for path in shared.glob("link-e2-*"))  # noqa: E731 - a condition
    await world.come_true(lambda: made() == ["link-e2-r2", "link-e2-r3"])
    await world.say(say.SwitchCommitted(epoch=2, machines=machines, step=4, **JOIN))
    for event in started:
        if event.role != "middle":
            await world.come_true(lambda pid=event.pid: not alive(pid))
    assert all(alive(event.pid) for event in started if event.role == "middle")
    assert not world.heard(say.RankExited), "nobody asks why they ended"
    await world.come_true(lambda: len(world.beats[-1].ranks) == 2)


@pytest.mark.parametrize("world", [("--stages", "3")], indirect=True)
async def test_an_assignment_may_be_heard_after_the_request_to_prepare(world: World) -> None:
    """A request to prepare waits for the role to be known, and is delivered once."""
    await world.warm("middle")
    await world.say(joining(2, ("m8", "m0", "m7")))
    links = lambda: list((world.run_dir / "fake" / "g0").glob("link-e2-*"))  # noqa: E731 - a condition
    await world.warm("last")
    assert not links()
    await world.assign("middle")
    await world.come_true(lambda: bool(links()))


async def test_a_spare_whose_rank_dies_in_one_role_keeps_the_others(world: World) -> None:
    """The ranks of that role are started again, all of them; the others are not touched."""
    await world.warm("first", slots=2)
    await world.warm("last", slots=2)
    before = {(rank.role, rank.slot): rank.child.pid for rank in world.agent._ranks}
    os.kill(before["last", 1], signal.SIGKILL)
    (ended,) = await world.until(say.RankExited)
    assert (ended.role, ended.mode, ended.again) == ("last", "sandbox", True)
    await world.until(say.StandbyParked, 6)
    after = {(rank.role, rank.slot): rank.child.pid for rank in world.agent._ranks}
    assert {place for place in after if after[place] == before[place]} == {("first", 0), ("first", 1)}
    assert len(after) == 4
    assert len(world.heard(say.RankExited)) == 1


async def test_a_rank_that_dies_in_one_role_again_is_the_end_of_the_spare(world: World) -> None:
    """One more try is all that a role gets; so does the one that is to take a seat get none."""
    await world.warm("first")
    await world.warm("last")
    for again in (True, False):
        (pid,) = (rank.child.pid for rank in world.agent._ranks if rank.role == "last")
        ends, parked = len(world.heard(say.RankExited)), len(world.heard(say.StandbyParked))
        os.kill(pid, signal.SIGKILL)
        assert (await world.until(say.RankExited, ends + 1))[-1].again is again
        if again:
            await world.until(say.StandbyParked, parked + 1)
    await world.assign("first")
    await world.come_true(lambda: world.agent._relay.role == "first")
    (pid,) = (rank.child.pid for rank in world.agent._ranks if rank.role == "first")
    os.kill(pid, signal.SIGKILL)
    assert (await world.until(say.RankExited, 3))[-1].again is False


@pytest.mark.parametrize("world", [("--hang-in-sandbox", "last")], indirect=True)
async def test_a_warm_up_that_hangs_has_a_limit(world: World) -> None:
    """It is ended, and told with what was waited for; what is parked stays as it is."""
    world.agent._job = world.agent._job.model_copy(update={"warm_limit_seconds": 4.0})
    await world.warm("first")
    waiting = asyncio.ensure_future(world.warm("last"))
    (ended,) = await world.until(say.RankExited)
    waiting.cancel()
    assert (ended.role, ended.mode, ended.again) == ("last", "sandbox", False)
    assert "was not warm in the role last within 4 s (--warm-limit)" in ended.error
    await asyncio.sleep(4.0)  # the limit of the role that is parked
    assert len(world.heard(say.RankExited)) == 1


async def test_a_request_to_warm_that_comes_twice_starts_nothing_new(world: World) -> None:
    """One set of ranks in a role, however often it is asked for; a newer generation ends the older."""
    await world.warm("all")
    (first,) = world.heard(say.RankStarted)
    (again,) = world.heard(say.StandbyWarm)
    await world.say(again)
    await world.say(again.model_copy(update={"generation": 1}))
    _, second = await world.until(say.RankStarted, 2)
    assert second.generation == 1
    assert not psutil.pid_exists(first.pid)


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
