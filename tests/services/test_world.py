"""The four cores together, on scripted machines, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say
from trainmover.services import SERVICES, replay
from trainmover.services.core import Decider
from trainmover.services.pool import Pool
from trainmover.services.standby import StandbyCore


def finished_well(world: Any) -> None:
    """The job completed, epochs only grew, and nobody dead was ever planned in."""
    assert [event.identical for event in world.all(say.JobCompleted)] == [True], world.story(
        say.SwitchCommitted, say.JobFailed, say.JobHeld, say.PlanReady, say.SwitchAborted, say.MachineLaunch
    )
    assert not world.all(say.JobFailed)
    epochs = [event.epoch for event in world.all(say.PlanReady)]
    assert epochs == sorted(set(epochs))
    committed = [event.epoch for event in world.all(say.SwitchCommitted)]
    assert committed == sorted(set(committed))
    lives = [(event.machine, event.incarnation) for event in world.all(say.MachineFailed)]
    assert len(lives) == len(set(lives))


def replays_the_same(world: Any) -> None:
    """Fresh cores say the same again."""
    result = replay(world.log)
    assert result.same, str(result)
    assert set(result.inputs) == set(SERVICES)


def test_a_job_without_faults(kit: SimpleNamespace) -> None:
    """Without a fault there is one launch, one epoch, a warm spare and a completed job."""
    world = kit.World().run()
    finished_well(world)
    assert world.story(say.PlanReady, say.SwitchCommitted, say.MachineFailed) == [
        "plan.ready epoch=1 machines=m0,m1,m2",
        "switch.committed epoch=1 machines=m0,m1,m2",
    ]
    assert [event.machine for event in world.all(say.StandbyWarm)] == ["m3"]
    assert not world.all(say.StandbyReplenish)
    replays_the_same(world)


def test_a_killed_machine_is_replaced(kit: SimpleNamespace) -> None:
    """A killed machine is replaced in one switch, and a fresh spare is asked for."""
    world = kit.World()
    world.at(20, lambda: world.plant.kill("m1")).run()
    finished_well(world)
    assert world.story(
        say.MachineFailed, say.StandbyAssigned, say.PlanReady, say.SwitchCommitted, say.StandbyReplenish
    ) == [
        "plan.ready epoch=1 machines=m0,m1,m2",
        "switch.committed epoch=1 machines=m0,m1,m2",
        "machine.failed machine=m1",
        "standby.assigned leaver=m1 joiner=m3",
        "plan.ready epoch=2 machines=m0,m3,m2",
        "switch.committed epoch=2 machines=m0,m3,m2",
        "standby.replenish",
    ]
    incident = {
        e.incident for e in world.log if e.type in ("machine.failed", "plan.ready", "switch.committed")
    }
    assert len(incident - {None}) == 1
    replays_the_same(world)


def test_a_frozen_machine_is_replaced_within_its_lease(kit: SimpleNamespace) -> None:
    """A machine that stops without a word costs its lease, and is fenced when it comes back."""
    world = kit.World()
    world.at(20, lambda: world.plant.freeze("m2")).run()
    finished_well(world)
    assert world.plant.layout == ("m0", "m1", "m3")


@pytest.mark.parametrize("step", [1, 2, 3, 30])
def test_early_failures_start_again_or_are_replaced(kit: SimpleNamespace, step: int) -> None:
    """A failure at any step ends well: by a fresh start before there is a recording, else by a switch."""
    world = kit.World()
    world.at(step, lambda: world.plant.kill("m0")).run()
    finished_well(world)
    generations = {event.generation for event in world.all(say.MachineLaunch)}
    assert generations == ({1, 2} if step < 2 else {1})
    replays_the_same(world)


def test_a_failure_during_start_up_starts_again(kit: SimpleNamespace) -> None:
    """A machine lost before the first step costs a generation; its seat goes to the spare."""
    world = kit.World()
    world.run(lambda: bool(world.all(say.MachineLaunch)))
    world.plant.kill("m1")
    world.run()
    finished_well(world)
    assert world.story(say.SwitchCommitted) == ["switch.committed epoch=1 machines=m0,m3,m2"]
    assert {event.generation for event in world.all(say.PlanReady)} == {2}


def test_a_planned_move(kit: SimpleNamespace) -> None:
    """A moved machine works until the commit and then leaves, without a failure."""
    world = kit.World()
    world.at(20, lambda: world.plant.publish(say.MoveRequested(machine="m2"), "cli")).run()
    finished_well(world)
    assert not world.all(say.MachineFailed)
    assert world.plant.layout == ("m0", "m1", "m3")
    assert [event.kind for event in world.all(say.SwitchCommitted)] == ["start", "move"]
    assert [event.reason for event in world.all(say.MachineLeft)] == ["released"]
    replays_the_same(world)


def test_a_leaver_that_dies_in_its_move(kit: SimpleNamespace) -> None:
    """A leaver's death before the commit changes nothing: one incident, one new epoch."""
    world = kit.World()
    world.at(20, lambda: world.plant.publish(say.MoveRequested(machine="m2"), "cli"))
    world.plant.on_prepare[2] = [lambda: world.plant.kill("m2")]
    world.run()
    finished_well(world)
    assert world.story(say.StandbyAssigned) == ["standby.assigned leaver=m2 joiner=m3"]
    assert world.plant.layout == ("m0", "m1", "m3")
    assert len(world.all(say.SwitchCommitted)) == 2


def test_a_joiner_that_dies_in_prepare(kit: SimpleNamespace) -> None:
    """A joiner's death aborts its epoch, and the same incident gets another spare."""
    world = kit.World(standbys=2)
    world.at(20, lambda: world.plant.kill("m1"))
    world.plant.on_prepare[2] = [lambda: world.plant.kill("m3")]
    world.run()
    finished_well(world)
    assert world.plant.layout == ("m0", "m4", "m2")
    assigned = world.all(say.StandbyAssigned)
    assert [(event.leaver, event.joiner) for event in assigned] == [("m1", "m3"), ("m1", "m4")]
    assert len({event.incident for event in assigned}) == 1
    assert [event.epoch for event in world.all(say.SwitchAborted)] == [2]
    assert [event.epoch for event in world.all(say.SwitchCommitted)] == [1, 3]
    replays_the_same(world)


def test_two_failures_at_once_with_two_standbys(kit: SimpleNamespace) -> None:
    """Two machines that die together are replaced together."""
    world = kit.World(standbys=2)
    world.at(20, lambda: (world.plant.kill("m1"), world.plant.kill("m2"))).run()
    finished_well(world)
    assert set(world.plant.layout) == {"m0", "m3", "m4"}
    assert len(world.all(say.SwitchCommitted)) == 2, "one start, one merged change"
    replays_the_same(world)


def test_two_failures_at_once_with_one_standby(kit: SimpleNamespace) -> None:
    """With one spare for two failures the job holds until another machine joins, then goes on."""
    world = kit.World(replenish=False)
    world.at(20, lambda: (world.plant.kill("m1"), world.plant.kill("m2")))
    world.run(lambda: bool(world.all(say.JobHeld)))
    world.run(limit=20)
    assert len(world.all(say.SwitchCommitted)) == 1, "no plan has a dead machine in it"
    world.plant.join("m9")
    world.run()
    finished_well(world)
    assert set(world.plant.layout) == {"m0", "m3", "m9"}
    assert "trainmover machine" in world.all(say.JobHeld)[0].reason
    replays_the_same(world)


def test_exhaustion_fails_the_job_when_it_says_so(kit: SimpleNamespace) -> None:
    """With on_exhausted=fail a failure without a spare fails the job."""
    world = kit.World(standbys=0, on_exhausted="fail")
    world.at(20, lambda: world.plant.kill("m1")).run()
    assert ["no standby is left" in event.reason for event in world.all(say.JobFailed)] == [True]


def test_too_few_machines_wait(kit: SimpleNamespace) -> None:
    """With too few machines nothing is launched until enough have joined."""
    world = kit.World(spares=-1)
    world.run(limit=30)
    assert not world.all(say.MachineLaunch)
    world.plant.join("m7")
    world.run()
    finished_well(world)
    assert world.plant.layout == ("m0", "m1", "m7")


def test_a_broken_link_is_repaired(kit: SimpleNamespace) -> None:
    """A link that breaks between living machines is made again with the same machines."""
    world = kit.World()
    world.at(20, lambda: world.plant.cut("m0", "m1")).run()
    finished_well(world)
    assert [event.kind for event in world.all(say.SwitchCommitted)] == ["start", "repair"]
    assert not world.all(say.MachineFailed)
    assert len(world.all(say.LinkRepair)) == 1
    replays_the_same(world)


def test_losing_everybody_starts_again(kit: SimpleNamespace) -> None:
    """When no member is left that has the state, the job starts again with what joins."""
    world = kit.World(machines=2, standbys=2)
    world.at(20, lambda: (world.plant.kill("m0"), world.plant.kill("m1"))).run()
    finished_well(world)
    assert {event.generation for event in world.all(say.MachineLaunch)} == {1, 2}


def test_more_ranks_per_machine(kit: SimpleNamespace) -> None:
    """Several ranks per machine are prepared, adopted and finished one by one."""
    world = kit.World(slots=2, standbys=2)
    world.at(10, lambda: world.plant.kill("m2"))
    world.at(40, lambda: world.plant.publish(say.MoveRequested(machine="m0", to="m4"), "cli")).run()
    finished_well(world)
    assert world.plant.layout == ("m4", "m1", "m3")
    replays_the_same(world)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    jitter=st.sampled_from([0.0, 0.01, 0.05]),
    faults=st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from(["kill", "freeze", "move", "cut"]), st.integers(0, 2)),
        max_size=4,
    ),
    slots=st.integers(1, 2),
)
def test_any_faults_in_any_order_of_delivery(
    kit: SimpleNamespace, seed: int, jitter: float, faults: list[tuple[int, str, int]], slots: int
) -> None:
    """Whatever happens and however late or often it is heard, the job ends well and replays the same."""
    world = kit.World(seed=seed, jitter=jitter, doubles=0.2, standbys=2, slots=slots)

    def hit(kind: str, position: int) -> None:
        plant = world.plant
        name = plant.layout[position]
        if not plant.machines[name].well:
            return
        if kind == "move":
            plant.publish(say.MoveRequested(machine=name), "cli")
        elif kind == "cut":
            plant.cut(name, plant.layout[(position + 1) % 3])
        else:
            (plant.kill if kind == "kill" else plant.freeze)(name)

    for step, kind, position in faults:
        world.at(step, lambda kind=kind, position=position: hit(kind, position))  # type: ignore[misc]
    world.run(limit=600)
    finished_well(world)
    replays_the_same(world)


def test_a_changed_decision_is_a_difference(kit: SimpleNamespace) -> None:
    """A core that decides otherwise is shown, with what it said then and now, and the incident."""

    class LastFirstPool(Pool):
        def idle(self) -> Any:
            return list(super().idle())[::-1]

    class LastFirst(StandbyCore):
        pool_class = LastFirstPool

    world = kit.World(standbys=2)
    world.at(20, lambda: world.plant.kill("m1")).run()
    cores: dict[str, Any] = {name: service.core for name, service in SERVICES.items()}
    cores["standby"] = LastFirst
    result = replay(world.log, cores=cores)
    assert not result.same
    first = result.differences[0]
    assert (first.service, first.kind) == ("standby", "changed")
    text = str(first)
    assert '-joiner: "m3"' in text
    assert '+joiner: "m4"' in text
    assert str(first.incident) in text
    assert first.incident == world.all(say.StandbyAssigned)[0].incident
    assert replay(world.log, cores=cores, incident=first.incident).differences == [
        item for item in result.differences if item.incident == first.incident
    ]
    assert replay(world.log, cores=cores, incident="inc-none").same
    assert replay(world.log, cores=cores, service="planner").same
    assert replay(world.log, cores=cores, until=world.log[0].time).same


def test_every_core_hears_only_what_exists(kit: SimpleNamespace) -> None:
    """What a core hears and says is in the catalogue, in the areas that it names."""
    for service in SERVICES.values():
        core = service.core()
        assert isinstance(core, Decider)
        for model in (*core.HEARS, *core.SAYS):
            assert say.EVENTS[model.type] is model
            assert model.type.split(".")[0] in core.areas
