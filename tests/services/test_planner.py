"""The planner alone: transitions that a whole cluster rarely takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trainmover.events import catalogue as say
from trainmover.services.planner import PlannerCore
from trainmover.services.standby import StandbyCore

Kit = SimpleNamespace


def test_a_launch_waits_a_moment_for_the_standbys(kit: Kit) -> None:
    """Machines get seats by name when all are there, or after the gathering time."""
    bench = kit.Bench(PlannerCore())
    bench.hear(kit.submitted())
    assert kit.brief(bench.hear(kit.joined("m3"), kit.joined("m2"), kit.joined("m10"))) == ["timer gather"]
    assert kit.brief(bench.hear(kit.joined("m1")))[-3:] == [f"machine.launch machine=m{i}" for i in (1, 2, 3)]
    assert [event.record for event in bench.said] == [True, True, True]

    bench = kit.Bench(PlannerCore())
    bench.hear(kit.submitted(), kit.joined("m3"), kit.joined("m2"), kit.joined("m1"))
    bench.hear(kit.failed("m1"))
    assert "gather" not in bench.timers, "too few again"
    assert [event.type for event in bench.said] == ["job.held"], "and whoever waits for it knows"
    bench.hear(kit.joined("m0"))
    bench.fire("gather")
    assert [event.machine for event in bench.said[1:]] == ["m0", "m2", "m3"]


def test_machines_with_too_few_slots_are_no_use(kit: Kit) -> None:
    """A machine with fewer slots than ranks per machine is not launched."""
    bench = kit.Bench(PlannerCore())
    bench.hear(kit.submitted(machines=1, slots=2, standbys=0), kit.joined("m0"))
    assert bench.said == []
    bench.hear(kit.joined("m1", slots=2))
    assert [event.machine for event in bench.said] == ["m1"]


def test_a_plan_names_the_links_that_change(kit: Kit) -> None:
    """A replacement plan has the joiner's endpoint, and drops and adds only links of its seat."""
    bench = kit.training(PlannerCore())
    bench.hear(kit.up("m3", mode="sandbox"), kit.failed("m1"), kit.assigned("m1", "m3"))
    (plan,) = bench.said
    assert (plan.epoch, plan.base_epoch, plan.kind, plan.machines) == (2, 1, "failure", ("m0", "m3", "m2"))
    assert plan.endpoints[1] == kit.endpoint("m3", role="all")
    assert plan.links_added == plan.links_dropped
    assert all(1 in (link.low, link.high) for link in plan.links_added)
    assert len(plan.links_added) < plan.links_total


def test_a_plan_waits_for_every_dead_machine(kit: Kit) -> None:
    """With two dead and one assignment there is no plan; with both there is one for both."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.failed("m1"), kit.failed("m2"), kit.assigned("m1", "m3", "inc-1"))
    assert bench.said == []
    bench.hear(kit.assigned("m2", "m4", "inc-2"))
    assert [(plan.machines, plan.incidents) for plan in bench.said] == [
        (("m0", "m3", "m4"), ("inc-1", "inc-2"))
    ]


def test_epochs_only_grow(kit: Kit) -> None:
    """An aborted epoch's number is not used again, and a broken plan is superseded by the next number."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.failed("m1"), kit.assigned("m1", "m3"))
    bench.hear(say.SwitchAborted(epoch=2, incidents=("inc-1",), reason="limit"))
    bench.hear(kit.failed("m3"), kit.assigned("m1", "m4"))
    assert [(plan.epoch, plan.machines[1]) for plan in bench.said] == [(2, "m3"), (3, "m3"), (4, "m4")]


def aborted(epoch: int) -> say.SwitchAborted:
    """A plan is given up."""
    return say.SwitchAborted(epoch=epoch, incidents=("inc-1",), reason="it follows epoch 1, but 0 holds")


def test_plan_after_plan_in_vain(kit: Kit) -> None:
    """Two services that know different things do not plan and refuse a thousand times a second."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.failed("m1"), kit.assigned("m1", "m3"))
    for epoch in (2, 3):
        assert kit.brief(bench.hear(aborted(epoch)))[0].startswith(f"plan.ready epoch={epoch + 1}")
    for number in range(12):
        rests = [min(30.0, 0.25 * 2**number)]
        assert kit.brief(bench.hear(aborted(4 + number))) == ["timer rest"]
        assert [due - bench.now for due in bench.timers.values()] == rests
        assert bench.hear(kit.joined(f"m{number + 10}")) == [], "nothing hurries it"
        assert kit.brief(bench.fire("rest"))[0].startswith(f"plan.ready epoch={5 + number}")
    bench.hear(aborted(16))
    outputs = kit.brief(bench.hear(kit.committed(16, ("m0", "m1", "m2"), kind="repair")))
    assert outputs[0] == "no timer rest"
    assert outputs[1].startswith("plan.ready epoch=17")
    assert kit.brief(bench.hear(aborted(17)))[0].startswith("plan.ready epoch=18")


def test_a_plan_on_a_committed_base(kit: Kit) -> None:
    """A plan made while the older one was committed is made again on the committed layout."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.failed("m1"), kit.assigned("m1", "m3"))
    bench.hear(kit.failed("m2"), kit.assigned("m2", "m4", "inc-2"))
    bench.hear(kit.committed(2, ("m0", "m3", "m2"), leavers=("m1",), joiners=("m3",)))
    last = bench.said[-1]
    assert (last.epoch, last.base_epoch, last.leavers, last.joiners) == (4, 2, ("m2",), ("m4",))


def test_a_refused_move_is_forgotten(kit: Kit) -> None:
    """A move whose joiner died and that was then refused blocks no later plan."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m4", mode="sandbox"), kit.assigned("m0", "m3", "inc-9", "move"), kit.failed("m3"))
    bench.hear(say.MoveRefused(machine="m0", incident="inc-9", reason="x"))
    bench.hear(kit.failed("m1"), kit.assigned("m1", "m4"))
    assert [plan.machines for plan in bench.said] == [("m0", "m4", "m2")]


def test_assignments_of_an_older_generation_are_void(kit: Kit) -> None:
    """What standby said before a relaunch does not change the new generation's layout."""
    bench = kit.training(PlannerCore())
    bench.hear(kit.up("m3", mode="sandbox"), kit.assigned("m1", "m3", generation=9))
    assert bench.said == []


def test_a_repair_keeps_the_machines(kit: Kit) -> None:
    """A repair is a new epoch with the same machines, and is done by any later epoch."""
    bench = kit.training(PlannerCore())
    bench.hear(say.LinkRepair(epoch=1, reason="x"), incident="inc-r")
    assert [(plan.kind, plan.machines, plan.incidents) for plan in bench.said] == [
        ("repair", ("m0", "m1", "m2"), ("inc-r",))
    ]
    bench.hear(kit.committed(2, ("m0", "m1", "m2"), kind="repair"), say.LinkRepair(epoch=1, reason="late"))
    assert len(bench.said) == 1


def test_exhaustion_before_the_first_step(kit: Kit) -> None:
    """With nothing to keep and too few machines the job is held, or fails when it says so."""
    for how, what in (("hold", "job.held"), ("fail", "job.failed")):
        bench = kit.Bench(PlannerCore())
        bench.hear(kit.submitted(standbys=0, on_exhausted=how), *(kit.joined(f"m{i}") for i in range(3)))
        bench.hear(kit.failed("m1"), kit.failed("m2"))
        assert [event.type for event in bench.said][3:] == [what]


def plans(bench: Any) -> list[say.PlanReady]:
    """The plans that a planner has said."""
    return [event for event in bench.said if isinstance(event, say.PlanReady)]


def test_neighbours_do_not_move_together(kit: Kit) -> None:
    """Two living neighbours move one after the other: each keeps the other's private state."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.assigned("m0", "m3", "inc-a", "move"), kit.assigned("m1", "m4", "inc-b", "move"))
    (first,) = plans(bench)
    assert first.machines == ("m3", "m1", "m2")
    bench.hear(*(kit.adopted(first.epoch, rank, name) for rank, name in enumerate(first.machines)))
    bench.hear(kit.committed(first.epoch, first.machines, kind="move"))
    assert plans(bench)[-1].machines == ("m3", "m4", "m2")


def test_a_move_waits_for_a_lost_neighbour(kit: Kit) -> None:
    """A lost seat is filled first; the living neighbour that was to move still serves its state."""
    bench = kit.training(PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"), kit.failed("m1"))
    bench.hear(kit.assigned("m0", "m3", "inc-a", "move"), kit.assigned("m1", "m4", "inc-b"))
    assert plans(bench)[-1].machines == ("m0", "m4", "m2")
    assert plans(bench)[-1].incidents == ("inc-b",)


def test_the_only_machine_does_not_move(kit: Kit) -> None:
    """A job of one machine has nobody to copy its state from: the move is refused with that reason."""
    bench = kit.Bench(StandbyCore())
    bench.hear(kit.submitted(machines=1), kit.joined("m0"), kit.joined("m1"))
    bench.hear(kit.launch("m0", 0, n=1), kit.up("m0"))
    bench.hear(say.MoveRequested(machine="m0"))
    (refused,) = [event for event in bench.said if isinstance(event, say.MoveRefused)]
    assert "only machine" in refused.reason
