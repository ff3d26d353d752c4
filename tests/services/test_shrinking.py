"""A job that shrinks: which seats are vacated, who comes back, and what is said where that cannot be."""

from __future__ import annotations

from types import SimpleNamespace as Kit
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say

SWITCH = (say.SwitchCommitted,)


def layouts(world: Any) -> list[tuple[str, ...]]:
    """The machines of every committed epoch."""
    return [event.machines for event in world.all(say.SwitchCommitted)]


def shrinking(kit: Kit, **more: Any) -> Any:
    """A world without spares whose job shrinks."""
    settings = {"machines": 3, "standbys": 0, "shares": True, "on_exhausted": "shrink"}
    return kit.World(**{**settings, **more})


def test_a_lost_machine_without_a_spare_is_left_out(kit: Kit) -> None:
    """Its seat is vacated, the others go on, and the job completes without it."""
    world = shrinking(kit)
    world.at(20, lambda: world.plant.kill("m1"))
    world.run()
    assert layouts(world) == [("m0", "m1", "m2"), ("m0", "", "m2")]
    (exhausted,) = world.all(say.StandbyExhausted)
    assert (exhausted.machine, exhausted.position) == ("m1", 1)
    (_, plan) = world.all(say.PlanReady)
    assert (plan.kind, plan.leavers, plan.joiners) == ("shrink", ("m1",), ())
    assert plan.endpoint_ranks == (0, 2)
    assert world.all(say.JobHeld) == []
    (done,) = world.all(say.JobCompleted)
    assert done.identical


def test_a_machine_that_comes_makes_it_whole_again(kit: Kit) -> None:
    """It is warmed and takes the vacant seat; its state comes from replicas, one has its private part."""
    world = shrinking(kit, steps=100)
    world.at(20, lambda: world.plant.kill("m0"))
    world.at(40, lambda: world.plant.join("late"))
    world.run()
    assert layouts(world) == [("m0", "m1", "m2"), ("", "m1", "m2"), ("late", "m1", "m2")]
    grow = world.all(say.PlanReady)[-1]
    assert (grow.kind, grow.leavers, grow.joiners) == ("grow", (), ("late",))
    (joiner,) = grow.joiner_ranks
    assert (joiner.rank, joiner.keeper) == (0, joiner.sources[0])
    assert set(joiner.sources) == {1, 2}
    (assigned,) = world.all(say.StandbyAssigned)
    assert (assigned.kind, assigned.leaver, assigned.position) == ("grow", "", 0)
    assert len(world.all(say.JobCompleted)) == 1


def test_a_script_that_does_not_share_holds_and_is_told_why(kit: Kit) -> None:
    """Nobody could compute the lost share: the job waits, and the reason says what to do."""
    world = shrinking(kit, shares=False)
    world.at(20, lambda: world.plant.kill("m1"))
    world.run(limit=60)
    (held,) = world.all(say.JobHeld)
    assert "step.shares()" in held.reason
    assert layouts(world) == [("m0", "m1", "m2")]


def test_a_whole_replica_pauses_and_comes_back(kit: Kit) -> None:
    """A pipeline of two stages, two replicas: the lost machine's other stage leaves, and waits as a spare.

    One machine more, and both seats are filled at once.
    """
    world = shrinking(kit, machines=4, stages=2, steps=120)
    world.at(20, lambda: world.plant.kill("m1"))
    world.at(40, lambda: world.plant.join("late"))
    world.run()
    assert layouts(world)[1] == ("m0", "", "m2", "")
    shrink = world.all(say.PlanReady)[1]
    assert (shrink.kind, sorted(shrink.leavers)) == ("shrink", ["m1", "m3"])
    assert len(layouts(world)) == 3
    assert sorted(layouts(world)[2]) == ["late", "m0", "m2", "m3"]
    assert len(world.all(say.JobCompleted)) == 1


def test_shrinks_down_to_one_replica_and_then_holds(kit: Kit) -> None:
    """The last replica's state would be on no machine: the job waits for one."""
    world = shrinking(kit, machines=4, stages=2, steps=120)
    world.at(20, lambda: world.plant.kill("m1"))
    world.at(40, lambda: world.plant.kill("m0"))
    world.run(limit=60)
    assert layouts(world) == [("m0", "m1", "m2", "m3"), ("m0", "", "m2", "")]
    assert "is on no other machine that lives" in world.all(say.JobHeld)[-1].reason


def test_two_machines_at_once(kit: Kit) -> None:
    """Also the one that kept the other's private values: both seats are vacated, both come back."""
    world = shrinking(kit, machines=4, steps=120)

    def both() -> None:
        world.plant.kill("m1")
        world.plant.kill("m2")

    world.at(20, both)
    world.at(40, lambda: world.plant.join("one"))
    world.at(60, lambda: world.plant.join("two"))
    world.run()
    assert layouts(world)[-1] in {("m0", "one", "two", "m3"), ("m0", "two", "one", "m3")}
    assert ("m0", "", "", "m3") in layouts(world)
    assert len(world.all(say.JobCompleted)) == 1


def test_a_spare_that_is_there_takes_the_seat_instead(kit: Kit) -> None:
    """Shrinking is for when there is none."""
    world = shrinking(kit, standbys=1)
    world.at(30, lambda: world.plant.kill("m1"))
    world.run()
    assert world.all(say.StandbyExhausted) == []
    assert layouts(world) == [("m0", "m1", "m2"), ("m0", "m3", "m2")]


def test_a_joiner_that_dies_on_its_way_back_is_followed_by_the_next(kit: Kit) -> None:
    """The epoch is given up, training goes on at less strength, and another machine takes the seat."""
    world = shrinking(kit, steps=150)
    world.at(20, lambda: world.plant.kill("m2"))
    world.at(30, lambda: world.plant.join("first"))
    world.plant.on_prepare[3] = [lambda: world.plant.kill("first")]
    world.at(80, lambda: world.plant.join("second"))
    world.run()
    assert layouts(world)[-1] == ("m0", "m1", "second")
    assert len(world.all(say.JobCompleted)) == 1


def test_a_failure_while_a_replica_comes_back(kit: Kit) -> None:
    """The growing epoch loses a stayer: its seat is vacated as well, and the joiner gets there."""
    world = shrinking(kit, machines=4, steps=150)
    world.at(20, lambda: world.plant.kill("m2"))
    world.at(30, lambda: world.plant.join("late"))
    world.plant.on_prepare[3] = [lambda: world.plant.kill("m0")]
    world.run()
    assert {name for name in layouts(world)[-1] if name} == {"m1", "m3", "late"}
    assert len(world.all(say.JobCompleted)) == 1


@pytest.mark.parametrize("kind", ["hold", "fail"])
def test_other_policies_do_not_shrink(kit: Kit, kind: str) -> None:
    """Nothing pauses that was not asked to."""
    world = shrinking(kit, on_exhausted=kind)
    world.at(20, lambda: world.plant.kill("m1"))
    world.run(limit=60)
    assert world.all(say.StandbyExhausted) == []
    assert len(world.all(say.JobHeld if kind == "hold" else say.JobFailed)) == 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    machines=st.sampled_from([2, 3, 4]),
    deaths=st.lists(st.tuples(st.integers(8, 60), st.integers(0, 5)), min_size=1, max_size=2),
    comers=st.lists(st.integers(10, 90), max_size=2),
)
def test_whatever_the_order_of_things(
    kit: Kit, seed: int, machines: int, deaths: list[tuple[int, int]], comers: list[int]
) -> None:
    """Deaths and arrivals at any time, heard late and twice: it ends, or holds for a state that is lost."""
    world = shrinking(kit, machines=machines, seed=seed, jitter=0.05, doubles=0.3, steps=120)

    def die(number: int) -> None:
        seated = [name for name in world.plant.layout if name and world.plant.machines[name].alive]
        if len(seated) > 1:
            world.plant.kill(seated[number % len(seated)])

    for step, number in deaths:
        world.at(step, lambda number=number: die(number))
    for number, step in enumerate(comers):
        world.at(step, lambda number=number: world.plant.join(f"late{number}"))
    world.run(limit=900)
    assert len(world.all(say.JobCompleted)) == 1, world.story(say.JobHeld, say.SwitchCommitted)
    for seats in layouts(world):
        taken = [name for name in seats if name]
        assert len(set(taken)) == len(taken) > 0
