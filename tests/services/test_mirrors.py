"""Mirrored state in the plans: who sends it, and what is said when machine and mirror are both lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.services.test_checkpoints import saved
from trainmover.events import catalogue as say
from trainmover.services.replay import replay

Kit = SimpleNamespace


def mirrored(world: SimpleNamespace, *ranks: int, generation: int = 1) -> None:
    """These ranks say that their mirrors are whole."""
    for rank in ranks:
        event = say.MirrorWhole(
            machine=f"m{rank}",
            rank=rank,
            guardian=(rank + 1) % 3,
            generation=generation,
            step=4,
            image_bytes=3,
            changes_bytes=1,
        )
        world.plant.publish(event, f"m{rank}")


@pytest.mark.parametrize("lost", range(3))
def test_the_guardian_sends_what_nobody_else_has(kit: Kit, lost: int) -> None:
    """Three stages on three machines: a lost one is replaced, and no step is done again."""
    world = kit.World(machines=3, stages=3, standbys=3, state="mirror")
    world.at(15, lambda: mirrored(world, 0, 1, 2))
    world.at(40, lambda: world.plant.kill(f"m{lost}")).run()
    (roles,) = world.all(say.RolesFound)
    assert sum(row.count for row in roles.unreplicated) == 3
    said = [type(e.event) for e in world.log if isinstance(e.event, say.MirrorWhole | say.StandbyWarm)]
    assert said[:3] == [say.MirrorWhole] * 3, "until the mirrors are whole, there is nothing to keep"
    (plan,) = [event for event in world.all(say.PlanReady) if event.kind == "failure"]
    told = [(item.rank, item.sources, item.mirrored) for item in plan.joiner_ranks]
    assert told == [(lost, (), (lost + 1) % 3)]
    assert not world.all(say.JobHeld)
    assert {event.generation for event in world.all(say.MachineLaunch)} == {1}
    assert world.all(say.JobCompleted)
    result = replay(world.log)
    assert result.same, str(result)


def test_a_loss_before_the_mirrors_are_whole_starts_again(kit: Kit) -> None:
    """A step or two are lost, and nothing is held."""
    world = kit.World(machines=3, stages=3, standbys=3, state="mirror")
    world.at(15, lambda: mirrored(world, 0, 2))
    world.at(16, lambda: world.plant.kill("m1"))
    world.at(30, lambda: mirrored(world, 0, 1, 2, generation=2)).run()
    assert {event.generation for event in world.all(say.MachineLaunch)} == {1, 2}
    assert not world.all(say.JobHeld)
    assert world.all(say.JobCompleted)


@pytest.mark.parametrize("state", ["mirror", "none"])
def test_a_machine_and_its_mirror_are_lost(kit: Kit, state: str) -> None:
    """One sentence says it, and the job fails where it is to; with a checkpoint it goes back."""
    for policy, there in ((state, False), (state, True)):
        world = kit.World(machines=4, stages=4, standbys=3, on_exhausted="fail", state=policy)
        if policy == "mirror":
            world.at(15, lambda world=world: mirrored(world, 0, 1, 2, 3))
        if there:
            world.at(20, lambda world=world: world.plant.publish(saved(), "m0"))
        world.at(40, lambda world=world: (world.plant.kill("m1"), world.plant.kill("m2"))).run(limit=200)
        if there and state == "mirror":
            assert {event.generation for event in world.all(say.MachineLaunch)} == {1, 2}
            continue
        (failed,) = world.all(say.JobFailed)
        assert "the state of rank 1 is on no other machine that lives" in failed.reason
        assert ("which kept its mirror, is lost as well" in failed.reason) == (state == "mirror")
        assert {event.generation for event in world.all(say.MachineLaunch)} == {1}


def test_a_mirror_is_lost_while_the_seat_waits(kit: Kit) -> None:
    """First a standby is missing, and then more would not help: that is said as well."""
    world = kit.World(machines=4, stages=4, standbys=0, state="mirror")
    world.at(15, lambda: mirrored(world, 0, 1, 2, 3))
    world.at(40, lambda: (world.plant.kill("m1"), world.later(30.0, lambda: world.plant.kill("m2"))))
    world.run(limit=200)
    first, *others = [event.reason for event in world.all(say.JobHeld)]
    assert first.startswith("no standby is left to take the place of m1")
    lost = [reason for reason in others if "the state of rank 1" in reason]
    assert len(lost) == 1, others
    assert "m2, which kept its mirror, is lost as well" in lost[0]


def test_a_state_that_cannot_be_mirrored(kit: Kit) -> None:
    """The reason that its rank gave is in the sentence."""
    world = kit.World(machines=3, stages=3, on_exhausted="fail", state="mirror")
    refused = say.MirrorFailed(machine="m1", rank=1, generation=1, reason="ema changes late")
    world.at(15, lambda: (mirrored(world, 0, 2), world.plant.publish(refused, "m1")))
    world.at(40, lambda: world.plant.kill("m1")).run(limit=200)
    (failed,) = world.all(say.JobFailed)
    assert "it could not be mirrored: ema changes late" in failed.reason
