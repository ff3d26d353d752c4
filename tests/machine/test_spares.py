"""The machine program as a spare: warm in several roles, promoted in one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
import pytest

from tests.machine.worlds import World
from trainmover.events import catalogue as say


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
    began = time.monotonic()
    await world.warm("middle")
    limit = round(max(4.0, 3 * (time.monotonic() - began)), 1)  # longer than this computer takes for one
    world.agent._job = world.agent._job.model_copy(update={"warm_limit_seconds": limit})
    await world.warm("first")
    waiting = asyncio.ensure_future(world.warm("last"))
    (ended,) = await world.until(say.RankExited)
    waiting.cancel()
    assert (ended.role, ended.mode, ended.again) == ("last", "sandbox", False)
    assert f"was not warm in the role last within {limit:g} s (--warm-limit)" in ended.error
    await asyncio.sleep(limit)  # the limit of the role that is parked
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
