"""Two machines that do not reach each other: who is replaced, and when nobody is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmover.events import catalogue as say
from trainmover.services.apart import NOBODY_GOES
from trainmover.services.health import HealthCore

Kit = SimpleNamespace
STORY = (say.LinkRepair, say.MachineFailed, say.StandbyAssigned, say.SwitchCommitted, say.JobHeld)


@pytest.fixture
def bench(kit: Kit) -> Any:
    """Health in a job of four machines and two spares, broken in epoch 1, with a repair on its way."""
    return begun(kit)


def begun(kit: Kit, kinds: tuple[str, ...] = (), **job: Any) -> Any:
    """The same with roles by seat, and more said of the job."""
    bench = kit.Bench(HealthCore())
    bench.hear(kit.submitted(4, standbys=2, **job), *(kit.joined(f"m{i}") for i in range(6)))
    bench.hear(*(kit.launch(f"m{i}", i, n=4) for i in range(4)))
    bench.hear(kit.committed(1, ("m0", "m1", "m2", "m3"), kind="start"), kit.started())
    bench.hear(*kit.all_described(4, kinds), kit.found(4, kinds))
    bench.hear(kit.broken("m0", "m1"), kit.probed("m1", "alive"))
    assert kit.brief(bench.fire("grace:1")) == ["link.repair epoch=1"]
    bench.hear(kit.prepare(2, ("m0", "m1", "m2", "m3")))
    bench.said.clear()
    return bench


def verdict(bench: Any, kit: Kit, *pairs: tuple[str, str], epoch: int = 2) -> list[str]:
    """What comes of it when these pairs do not reach each other and everybody answers."""
    bench.hear(*(kit.unreached(one, other, epoch) for one, other in pairs))
    bench.hear(*(kit.probed(other, "alive") for _, other in pairs))
    return kit.brief(bench.fire(f"grace:{epoch}"))


def test_of_two_members_the_higher_position_goes(bench: Any, kit: Kit) -> None:
    """Who complains is heard, and is not asked; the other is asked, and one goes, with the reason."""
    assert kit.brief(bench.hear(kit.unreached("m1", "m2"))) == ["probe m2"]
    assert kit.brief(bench.hear(kit.probed("m2", "alive"))) == ["timer grace:2"]
    assert kit.brief(bench.fire("grace:2")) == ["machine.failed machine=m2"]
    failed = bench.said[-1]
    assert failed.unreached == ("m1",)
    assert failed.reason == (
        "m2 and m1 do not reach each other, though all are well; m2 is replaced: of the two it has the "
        "higher position, 2"
    )
    assert "m1 has not reached m2 for 20 s (link 0-1 of epoch 2: timed out)" in failed.evidence


def test_the_epoch_that_broke_is_not_repaired_once_more(bench: Any, kit: Kit) -> None:
    """The pair whose link broke is the one whose repair is in vain: only the epoch on its way is judged."""
    bench.hear(kit.unreached("m0", "m1"), kit.probed("m1", "alive"))
    assert list(bench.timers) == ["grace:2"]
    assert kit.brief(bench.fire("grace:2")) == ["machine.failed machine=m1"]


def test_a_machine_that_is_no_member_yet_goes_first(bench: Any, kit: Kit) -> None:
    """A joiner that a member does not reach, whatever the positions."""
    bench.hear(kit.failed("m0"), kit.assigned("m0", "m4"))
    bench.hear(kit.prepare(3, ("m4", "m1", "m2", "m3"), kind="failure", joiners=("m4",)))
    assert verdict(bench, kit, ("m4", "m3"), epoch=3) == ["machine.failed machine=m4"]
    assert "it is no member yet" in bench.said[-1].reason


def test_one_fault_is_likelier_than_two(bench: Any, kit: Kit) -> None:
    """The machine that is in both pairs goes, though its position is lower, and nobody else."""
    assert verdict(bench, kit, ("m0", "m1"), ("m0", "m3")) == ["machine.failed machine=m0"]
    assert bench.said[-1].unreached == ("m1", "m3")
    assert "it does not reach m1, m3, and m1 fewer" in bench.said[-1].reason


def test_two_cuts_without_a_common_end(bench: Any, kit: Kit) -> None:
    """One of each pair goes, but not two neighbours: they keep each other's private state."""
    outputs = verdict(bench, kit, ("m0", "m3"), ("m1", "m2"))
    assert outputs == ["machine.failed machine=m3", "machine.failed machine=m1"]


def test_a_member_for_which_others_went_in_vain(bench: Any, kit: Kit) -> None:
    """Its partner went; when it does not reach the joiner either, it goes itself, as it may be the one."""
    assert verdict(bench, kit, ("m1", "m3")) == ["machine.failed machine=m3"]
    bench.hear(kit.assigned("m3", "m4"), say.SwitchAborted(epoch=2, incidents=(), reason="m3 failed"))
    bench.hear(kit.prepare(3, ("m0", "m1", "m2", "m4"), kind="failure", joiners=("m4",)))
    assert verdict(bench, kit, ("m1", "m4"), epoch=3) == ["machine.failed machine=m1"]
    assert "it does not reach m3, m4, and m4 fewer" in bench.said[-1].reason


def test_a_neighbour_of_a_lost_machine_stays(bench: Any, kit: Kit) -> None:
    """Its private state is on no other machine while its keeper's seat is empty: the joiners go."""
    assert verdict(bench, kit, ("m1", "m2")) == ["machine.failed machine=m2"]
    for epoch, joiner in ((3, "m4"), (4, "m5")):
        bench.hear(kit.assigned("m2", joiner))
        bench.hear(kit.prepare(epoch, ("m0", "m1", joiner, "m3"), kind="failure", joiners=(joiner,)))
        assert verdict(bench, kit, ("m1", joiner), epoch=epoch) == [f"machine.failed machine={joiner}"]


def test_with_a_checkpoint_the_third_in_vain_is_enough(kit: Kit) -> None:
    """Rather than every spare, the member goes that none of them reached, and some steps with it."""
    bench = begun(kit, resume=True)
    assert verdict(bench, kit, ("m1", "m2")) == ["machine.failed machine=m2"]
    for epoch, joiner, goes in ((3, "m4", "m4"), (4, "m5", "m1")):
        bench.hear(kit.assigned("m2", joiner))
        bench.hear(kit.prepare(epoch, ("m0", "m1", joiner, "m3"), kind="failure", joiners=(joiner,)))
        assert verdict(bench, kit, ("m1", joiner), epoch=epoch) == [f"machine.failed machine={goes}"]


def test_what_was_in_vain_is_forgotten_with_the_next_step(bench: Any, kit: Kit) -> None:
    """A step was committed with the joiner: who is there reaches it, and begins anew."""
    assert verdict(bench, kit, ("m1", "m2")) == ["machine.failed machine=m2"]
    bench.hear(kit.assigned("m2", "m4"), kit.prepare(3, ("m0", "m1", "m4", "m3"), joiners=("m4",)))
    bench.hear(kit.committed(3, ("m0", "m1", "m4", "m3"), leavers=("m2",), joiners=("m4",)))
    bench.hear(say.TrainingResumed(epoch=3, step=9))
    bench.hear(kit.broken("m1", "m4", 3), kit.probed("m4", "alive"))
    bench.fire("grace:3")
    bench.hear(kit.prepare(4, ("m0", "m1", "m4", "m3")))
    assert verdict(bench, kit, ("m1", "m4"), epoch=4) == ["machine.failed machine=m4"]


def breaks(bench: Any, kit: Kit, epoch: int) -> list[str]:
    """The link of m0 and m1 breaks in an epoch, everybody answers, and the grace is over."""
    bench.hear(kit.broken("m0", "m1", epoch), kit.broken("m1", "m0", epoch))
    bench.hear(kit.probed("m1", "alive"), kit.probed("m0", "alive"))
    return kit.brief(bench.fire(f"grace:{epoch}"))


def adopts(bench: Any, kit: Kit, epoch: int) -> None:
    """The repaired epoch is entered."""
    machines = ("m0", "m1", "m2", "m3")
    bench.hear(kit.prepare(epoch, machines), kit.committed(epoch, machines, kind="repair"))


def test_a_link_that_breaks_however_often_it_is_repaired(bench: Any, kit: Kit) -> None:
    """The third epoch in a row without a step: they do not reach each other, though they shake hands."""
    adopts(bench, kit, 2)
    assert breaks(bench, kit, 2) == ["link.repair epoch=2"]
    adopts(bench, kit, 3)
    assert breaks(bench, kit, 3) == ["machine.failed machine=m1"]
    failed = bench.said[-1]
    assert failed.unreached == ("m0",)
    assert failed.evidence[-2].startswith("the link of m0 and m1 broke in the epochs 1, 2, 3")


def test_a_step_between_two_breaks(bench: Any, kit: Kit) -> None:
    """Then the repair was worth its while, and is tried again."""
    adopts(bench, kit, 2)
    assert breaks(bench, kit, 2) == ["link.repair epoch=2"]
    adopts(bench, kit, 3)
    bench.hear(say.TrainingResumed(epoch=3, step=9))
    assert breaks(bench, kit, 3) == ["link.repair epoch=3"]


def test_a_network_that_heals_before_the_verdict(bench: Any, kit: Kit) -> None:
    """They answer after all: nobody goes, and the epoch that is on its way is not given up."""
    bench.hear(kit.unreached("m1", "m2"), kit.probed("m2", "alive"), kit.reached("m1", "m2"))
    assert bench.fire("grace:2") == []


def test_one_of_two_pairs_heals(bench: Any, kit: Kit) -> None:
    """Only the other one counts."""
    bench.hear(kit.unreached("m0", "m1"), kit.unreached("m0", "m2"))
    bench.hear(kit.probed("m1", "alive"), kit.probed("m2", "alive"), kit.reached("m0", "m1"))
    assert kit.brief(bench.fire("grace:2")) == ["machine.failed machine=m2"]


def test_a_machine_that_does_not_answer_is_another_matter(bench: Any, kit: Kit) -> None:
    """Whose peer is silent or gone is no victim of the network: there is no choice to make."""
    bench.hear(kit.unreached("m1", "m2"), kit.unreached("m1", "m3"))
    bench.hear(kit.probed("m3", "alive"), kit.probed("m2", "absent"))
    assert kit.brief([]) == bench.fire("grace:2")
    assert [event.machine for event in bench.said] == ["m2"]


def test_the_last_copy_of_a_state_stays(kit: Kit) -> None:
    """The other one goes, whatever its position; where neither can, the links are tried again."""
    bench = begun(kit, ("a", "a", "a", "b"), state="none")
    assert verdict(bench, kit, ("m2", "m3")) == ["machine.failed machine=m2"]
    assert "with m3 the job would lose more" in bench.said[-1].reason
    bench = begun(kit, ("a", "b", "c", "d"), state="none")
    assert verdict(bench, kit, ("m2", "m3")) == ["link.repair epoch=2"]
    assert bench.said[-1].reason.startswith(NOBODY_GOES)


def test_an_epoch_that_was_given_up_accuses_nobody(bench: Any, kit: Kit) -> None:
    """There is nothing left to wait for when it is."""
    bench.hear(kit.unreached("m1", "m2"), kit.probed("m2", "alive"))
    outputs = bench.hear(say.SwitchAborted(epoch=2, incidents=(), reason="limit"))
    assert kit.brief(outputs) == ["no timer grace:2"]
    assert kit.brief(bench.hear(kit.broken("m0", "m0"), kit.probed("m2", "alive"))) == []


def test_a_checkpoint_is_something_to_go_back_to(kit: Kit) -> None:
    """With one the higher position goes: better some steps than to wait for ever."""
    bench = begun(kit, ("a", "b", "c", "d"), state="checkpoint", resume=True)
    assert verdict(bench, kit, ("m2", "m3")) == ["machine.failed machine=m3"]


def test_members_that_train_do_not_go(kit: Kit) -> None:
    """Beside a move only the joiner goes, again and again; what a member cannot reach waits for its break."""
    bench = kit.training(HealthCore(), spares=2)
    for epoch, joiner in ((2, "m3"), (3, "m4")):
        bench.hear(kit.assigned("m2", joiner, kind="move"))
        bench.hear(kit.prepare(epoch, ("m0", "m1", joiner), kind="move", joiners=(joiner,)))
        assert verdict(bench, kit, ("m0", joiner), epoch=epoch) == [f"machine.failed machine={joiner}"]
    assert "m0 trains" in bench.said[-1].reason


def test_old_and_foreign_complaints(bench: Any, kit: Kit) -> None:
    """An epoch that is not on its way, a machine without a seat, or one that is dead already."""
    bench.hear(kit.exited("m3", signal=9))
    for event in (
        kit.unreached("m0", "m1", epoch=7),
        kit.unreached("m0", "m5"),
        kit.unreached("m5", "m0"),
        kit.unreached("m0", "m3"),
    ):
        assert bench.hear(event) == []
    assert bench.hear(kit.reached("m0", "m1", epoch=7)) == []


# -- with all four cores ---------------------------------------------------------------------------


def trained(world: Any) -> bool:
    return bool(world.all(say.JobCompleted))


def test_a_cut_that_lasts_ends_with_a_replacement(kit: Kit) -> None:
    """Broken, repaired in vain, and replaced: the run ends with another machine in the place."""
    world = kit.World(machines=4, standbys=1)
    world.at(20, lambda: world.plant.part("m1", "m2")).run(lambda: trained(world))
    assert trained(world)
    assert world.plant.layout == ("m0", "m1", "m4", "m3")
    assert [event.machine for event in world.all(say.MachineFailed)] == ["m2"]


def test_a_cut_that_heals_costs_nobody_his_place(kit: Kit) -> None:
    """Within the seconds that are dialled the repair comes about."""
    world = kit.World(machines=4, standbys=1)
    world.at(20, lambda: world.plant.part("m1", "m2"))
    world.at(20, lambda: world.later(15.0, world.plant.heal)).run(lambda: trained(world))
    assert trained(world)
    assert not world.all(say.MachineFailed)


def test_a_joiner_that_one_member_does_not_reach(kit: Kit) -> None:
    """The next standby is tried."""
    world = kit.World(machines=4, standbys=2)
    world.plant.parted.add(frozenset({"m0", "m4"}))
    world.at(20, lambda: world.plant.kill("m1")).run(lambda: trained(world))
    assert trained(world)
    assert world.plant.layout == ("m0", "m5", "m2", "m3")
    assert [event.machine for event in world.all(say.MachineFailed)] == ["m1", "m4"]


def test_without_a_spare_the_job_is_held(kit: Kit) -> None:
    """As for any failure; the next machine that comes takes the place."""
    world = kit.World(machines=4, standbys=0, replenish=False)
    world.at(20, lambda: world.plant.part("m1", "m2")).run(limit=120)
    assert [event.reason for event in world.all(say.JobHeld)] != []
    world.plant.join("m9")
    world.run(lambda: trained(world))
    assert world.plant.layout == ("m0", "m1", "m9", "m3")


def test_without_a_spare_its_replica_pauses(kit: Kit) -> None:
    """With ``--on-exhausted shrink``."""
    world = kit.World(machines=4, standbys=0, replenish=False, shares=True, on_exhausted="shrink")
    world.at(20, lambda: world.plant.part("m1", "m2")).run(lambda: trained(world))
    assert trained(world)
    assert world.plant.layout == ("m0", "m1", "", "m3")


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_whatever_order_events_come_in(kit: Kit, seed: int) -> None:
    """Delays, doubles, and a network that heals in the moment of the verdict: the run ends."""
    world = kit.World(machines=4, standbys=2, seed=seed, jitter=0.5, doubles=0.3)
    world.at(20, lambda: world.plant.part("m1", "m2"))
    world.at(20, lambda: world.later(20.5 + seed / 2, world.plant.heal)).run(lambda: trained(world))
    assert trained(world)
    assert len(world.all(say.MachineFailed)) <= 1
