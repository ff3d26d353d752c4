"""Going back to a checkpoint: when the state of a seat is on no machine, and only then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainmover.events import catalogue as say
from trainmover.services.replay import replay

Kit = SimpleNamespace


def saved(step: int = 20) -> say.CheckpointSaved:
    """A whole checkpoint."""
    return say.CheckpointSaved(
        generation=1, step=step, path="/checkpoints/step", bytes=1, copy_seconds=0.1, seconds=0.2
    )


@pytest.mark.parametrize("on_exhausted", ["hold", "fail"])
def test_a_state_that_is_on_no_machine(kit: Kit, on_exhausted: str) -> None:
    """Three stages on three machines: with a checkpoint a lost one starts everything again, by itself."""
    world = kit.World(machines=3, stages=3, on_exhausted=on_exhausted)
    world.at(20, lambda: world.plant.publish(saved(), "m0"))
    world.at(30, lambda: world.plant.kill("m1")).run()
    (held,) = world.all(say.JobHeld)
    assert held.lost
    assert "the state of rank 1 is on no other machine" in held.reason
    launches = [(event.generation, event.machine) for event in world.all(say.MachineLaunch)]
    assert launches == [(1, "m0"), (1, "m1"), (1, "m2"), (2, "m0"), (2, "m3"), (2, "m2")]
    assert world.all(say.JobCompleted)
    result = replay(world.log)
    assert result.same, str(result)


def test_without_a_checkpoint_it_is_as_before(kit: Kit) -> None:
    """There is nothing to go back to: the job waits, or fails where it says so."""
    world = kit.World(machines=3, stages=3)
    world.at(30, lambda: world.plant.kill("m1")).run(limit=60)
    assert len(world.all(say.JobHeld)) == 1
    assert len(world.all(say.MachineLaunch)) == 3
    world = kit.World(machines=3, stages=3, on_exhausted="fail")
    world.at(30, lambda: world.plant.kill("m1")).run(limit=60)
    assert len(world.all(say.JobFailed)) == 1


def test_a_machine_and_the_keeper_of_its_private_state(kit: Kit) -> None:
    """Neighbours lost at once: what belongs to a rank alone is gone, and the checkpoint has it."""
    world = kit.World(machines=4, standbys=2)
    world.at(20, lambda: world.plant.publish(saved(), "m0"))
    world.at(30, lambda: (world.plant.kill("m1"), world.plant.kill("m2"))).run()
    assert {event.generation for event in world.all(say.MachineLaunch)} == {1, 2}
    assert world.all(say.JobCompleted)


def test_a_replica_is_better_than_a_checkpoint(kit: Kit) -> None:
    """Where somebody has the state, a lost machine is replaced and no step is lost."""
    world = kit.World(machines=4, standbys=2)
    world.at(20, lambda: world.plant.publish(saved(), "m0"))
    world.at(30, lambda: (world.plant.kill("m1"), world.plant.kill("m3"))).run()
    assert {event.generation for event in world.all(say.MachineLaunch)} == {1}
    assert not world.all(say.JobHeld)
    assert world.all(say.JobCompleted)
