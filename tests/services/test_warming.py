"""Spares by role: in which order they are warmed, which one is taken, and what no spare can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmover.events import catalogue as say
from trainmover.services.planner import PlannerCore
from trainmover.services.roles import MAX_ROLES, by_size
from trainmover.services.spares import Spare
from trainmover.services.standby import StandbyCore
from trainmover.services.switcher import SwitcherCore

Kit = SimpleNamespace
PIPELINE = ("first", "first", "middle", "middle", "last", "last")


# -- warming -------------------------------------------------------------------------------------


def pipeline(kit: Kit, spares: int = 1, recorded: tuple[str, ...] = ("m1", "m2", "m4"), **job: Any) -> Any:
    """Standby in a job of six machines in three stages, in training; these have recorded."""
    bench = kit.Bench(StandbyCore())
    names = [f"m{seat}" for seat in range(6)]
    bench.hear(kit.submitted(machines=6, standbys=spares, **job))
    bench.hear(*(kit.joined(name) for name in names))
    bench.hear(*(kit.launch(name, seat, n=6) for seat, name in enumerate(names)))
    bench.hear(kit.committed(1, names, kind="start"), kit.started(), *staged_ranks(kit))
    bench.hear(*(kit.recorded(name) for name in recorded))
    bench.hear(*(kit.joined(f"s{number}") for number in range(spares)))
    return bench


def staged_ranks(kit: Kit) -> list[say.RankDescribed]:
    """Six ranks in three stages of two replicas."""
    return [
        kit.described(f"m{rank}", rank, kind=kind, stage=(rank // 2, 3)) for rank, kind in enumerate(PIPELINE)
    ]


def warmed(bench: Any, machine: str = "s0") -> list[str]:
    """Roles that a spare was asked to be warm in."""
    return [e.role for e in bench.said if isinstance(e, say.StandbyWarm) and e.machine == machine]


def test_one_role_after_another(kit: Kit) -> None:
    """The next role is asked for when the last one is parked; then the spare is parked."""
    bench = pipeline(kit)
    (spare,) = [item for life, item in bench.core.spares.items() if life[0] == "s0"]
    for number, role in enumerate(("first", "middle", "last")):
        assert warmed(bench)[number:] == [role]
        assert spare.state is Spare.WARMING
        bench.hear(kit.parked("s0", role=role), kit.parked("s0", role=role))
    assert spare.state is Spare.PARKED
    warms = [event for event in bench.said if isinstance(event, say.StandbyWarm)]
    assert [(event.recordings, event.positions) for event in warms] == [
        (("/r/m1-0",), (1,)),
        (("/r/m2-0",), (2,)),
        (("/r/m4-0",), (4,)),
    ]
    assert {event.memory for event in warms} == {"resident"}


def test_a_role_that_is_warmed_again_is_not_parked_until_it_is(kit: Kit) -> None:
    """A spare whose ranks in one role are started again is not taken for a seat of that role meanwhile."""
    bench = pipeline(kit)
    bench.hear(*(kit.parked("s0", role=role) for role in ("first", "middle", "last")))
    end = kit.exited("s0", mode="sandbox", signal=9, role="middle").model_copy(update={"again": True})
    assert bench.hear(end) == []
    assert kit.brief(bench.hear(kit.failed("m2"))) == []
    assert "standby.assigned leaver=m2 joiner=s0" in kit.brief(bench.hear(kit.parked("s0", role="middle")))


def test_only_the_first_role_keeps_its_tensors_when_memory_is_short(kit: Kit) -> None:
    """With standby memory sequential the first role is resident and the others are released."""
    bench = pipeline(kit, standby_memory="sequential")
    bench.hear(*(kit.parked("s0", role=role) for role in ("first", "middle")))
    assert [(e.role, e.memory) for e in bench.said if isinstance(e, say.StandbyWarm)] == [
        ("first", "resident"),
        ("middle", "released"),
        ("last", "released"),
    ]


def test_larger_roles_come_first(kit: Kit) -> None:
    """The role with the most seats is warmed first; of equal ones, that with the lowest seat."""
    found = kit.found(6, ("a", "b", "b", "c", "c", "c"))
    assert [role.name for role in by_size(found.roles)] == ["role-3", "role-2", "role-1"]


def test_two_spares_cover_two_roles_sooner(kit: Kit) -> None:
    """A second spare begins with a role that the first one is not on."""
    bench = pipeline(kit, spares=2)
    assert (warmed(bench, "s0"), warmed(bench, "s1")) == (["first"], ["middle"])
    bench.hear(kit.parked("s0", role="first"))
    assert warmed(bench, "s0") == ["first", "last"]


def test_a_gap_takes_a_spare_that_warms_other_roles_still(kit: Kit) -> None:
    """A parked role is of use at once, whatever else the spare is being warmed in."""
    bench = pipeline(kit)
    bench.hear(kit.parked("s0", role="first"), kit.failed("m0"))
    (assigned,) = [event for event in bench.said if isinstance(event, say.StandbyAssigned)]
    assert (assigned.leaver, assigned.joiner, assigned.role) == ("m0", "s0", "first")
    assert warmed(bench) == ["first", "middle"], "an assigned spare is asked for nothing more"


def test_a_gap_waits_for_its_role_and_that_comes_next(kit: Kit) -> None:
    """While the spare lacks the role nothing is said; the role that is needed is warmed before others."""
    bench = pipeline(kit)
    bench.hear(kit.failed("m4"))
    assert not [event for event in bench.said if event.type in ("job.held", "standby.assigned")]
    bench.hear(kit.parked("s0", role="first"))
    assert warmed(bench) == ["first", "last"]
    assert [e.urgent for e in bench.said if isinstance(e, say.StandbyWarm)] == [False, True]
    bench.hear(kit.parked("s0", role="last"))
    assert [(e.joiner, e.role) for e in bench.said if isinstance(e, say.StandbyAssigned)] == [("s0", "last")]
    assert warmed(bench) == ["first", "last"], "nothing is started beside the switch"


def test_the_spare_of_the_least_other_use_is_taken(kit: Kit) -> None:
    """Of two spares that fit, the one with fewer roles goes, so that the other still covers the rest."""
    bench = pipeline(kit, spares=2)
    bench.hear(kit.parked("s0", role="first"), kit.parked("s0", role="last"), kit.parked("s1", role="middle"))
    bench.hear(kit.parked("s0", role="middle"), kit.failed("m2"))
    assert [e.joiner for e in bench.said if isinstance(e, say.StandbyAssigned)] == ["s1"]


def test_resident_tensors_are_preferred_when_memory_is_short(kit: Kit) -> None:
    """Of two spares that fit, the one that still has the role's tensors goes."""
    bench = pipeline(kit, spares=2, standby_memory="sequential")
    bench.hear(kit.parked("s0", role="first"), kit.parked("s0", role="last"), kit.parked("s0", role="middle"))
    bench.hear(kit.parked("s1", role="middle"), kit.parked("s1", role="last"), kit.failed("m0"))
    assert [e.joiner for e in bench.said if isinstance(e, say.StandbyAssigned)] == ["s0"]


@pytest.mark.parametrize("role", ["first", "middle"])
def test_a_spare_that_is_lost_in_one_role_is_lost(kit: Kit, role: str) -> None:
    """Whether it was warming or parked: another is asked for, and gets all roles from the beginning."""
    bench = pipeline(kit)
    bench.hear(kit.parked("s0", role="first"))
    bench.hear(kit.exited("s0", mode="sandbox", code=1, error="boom"), kit.failed("s0"))
    assert [event.ordinal for event in bench.said if isinstance(event, say.StandbyReplenish)] == [1]
    bench.hear(kit.failed("m0"), kit.joined("s9"))
    assert warmed(bench, "s9") == ["first"]
    bench.hear(kit.parked("s9", role="first"))
    assert [e.joiner for e in bench.said if isinstance(e, say.StandbyAssigned)] == ["s9"]


def test_a_role_that_no_spare_survives_is_given_up(kit: Kit) -> None:
    """After two spares that ended in it the next one is warmed in the others; a failure in it is told why."""
    bench = pipeline(kit)
    for spare in ("s0", "s1"):
        bench.hear(kit.joined(spare))
        assert warmed(bench, spare) == ["first"]
        bench.hear(kit.exited(spare, mode="sandbox", code=1, error="Trace\nboom", role="first"))
        bench.hear(kit.failed(spare))
    bench.hear(kit.joined("s2"), kit.parked("s2", role="middle"), kit.parked("s2", role="last"))
    assert warmed(bench, "s2") == ["middle", "last"]
    assert bench.core.spares["s2", "a"].state is Spare.PARKED
    bench.hear(say.MoveRequested(machine="m0"))
    assert "2 spares in a row ended while they were warmed in it (boom)" in bench.said[-1].reason
    bench.hear(kit.failed("m0"))
    (held,) = [event for event in bench.said if isinstance(event, say.JobHeld)]
    assert "no spare can be warm in the role first: 2 spares in a row ended" in held.reason
    bench.hear(kit.failed("m2"))
    assert [e.leaver for e in bench.said if isinstance(e, say.StandbyAssigned)] == ["m2"]


def test_a_spare_that_survives_clears_its_role(kit: Kit) -> None:
    """Two spares that ended in a role are no sign against it when one was parked in it between them."""
    bench = pipeline(kit, spares=3)
    for spare in ("s0", "s2"):
        bench.hear(kit.exited(spare, mode="sandbox", signal=9, role="first"), kit.failed(spare))
        bench.hear(kit.parked("s1", role="first"))
    assert not bench.core._warming.why_not(kit.found(6, PIPELINE).roles[0])


def test_a_released_spare_goes_on_warming(kit: Kit) -> None:
    """A spare whose gap cannot be filled any more goes on with the roles that it lacks, and serves others."""
    bench = pipeline(kit)
    bench.hear(kit.parked("s0", role="first"), kit.failed("m0"))
    assert warmed(bench) == ["first", "middle"]
    bench.hear(kit.failed("m1"), kit.parked("s0", role="middle"))
    for timer in list(bench.timers):
        bench.fire(timer)
    assert warmed(bench) == ["first", "middle", "last"]
    bench.hear(kit.failed("m2"))
    assert [e.leaver for e in bench.said if isinstance(e, say.StandbyAssigned)] == ["m0", "m2"]


def test_roles_wait_for_their_recordings(kit: Kit) -> None:
    """A role is warmed when its recording is whole; one without any leaves the spare on its way."""
    bench = pipeline(kit, recorded=("m4",))
    assert warmed(bench) == ["last"]
    bench.hear(kit.parked("s0", role="last"))
    assert bench.core.spares["s0", "a"].state is Spare.WARMING
    bench.hear(kit.recorded("m1"))
    assert warmed(bench) == ["last", "first"]


def test_more_roles_than_a_spare_takes(kit: Kit) -> None:
    """The first so many are warmed, and beyond them what an open gap needs."""
    count = 2 * (MAX_ROLES + 1)
    kinds = [f"k{seat // 2:02}" for seat in range(count)]
    bench = kit.Bench(StandbyCore())
    names = [f"m{seat}" for seat in range(count)]
    bench.hear(kit.submitted(machines=count), *(kit.joined(name) for name in (*names, "s0")))
    bench.hear(*(kit.launch(name, seat, n=count) for seat, name in enumerate(names)))
    bench.hear(kit.committed(1, names, kind="start"), kit.started(), *kit.all_described(count, kinds))
    bench.hear(*(kit.recorded(name) for name in (names[1], *names[2::2])))
    for number in range(MAX_ROLES):
        bench.hear(kit.parked("s0", role=f"role-{number + 1}"))
    assert len(warmed(bench)) == MAX_ROLES
    assert bench.core.spares["s0", "a"].state is Spare.PARKED
    bench.hear(kit.failed(names[-1]))
    assert warmed(bench)[-1] == f"role-{MAX_ROLES + 1}"
    bench.hear(kit.parked("s0", role=f"role-{MAX_ROLES + 1}"))
    assert bench.said[-1].type == "standby.assigned"


# -- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "what"), [("hold", "job.held"), ("fail", "job.failed")])
def test_a_role_that_was_not_recorded(kit: Kit, how: str, what: str) -> None:
    """A failure in it holds (or fails) the job and says why; other roles are replaced as ever."""
    bench = pipeline(kit, recorded=("m1", "m4"), on_exhausted=how)
    bench.hear(kit.unrecorded("m2"))
    bench.hear(*(kit.parked("s0", role=role) for role in ("first", "last")))
    assert bench.core.spares["s0", "a"].state is Spare.PARKED
    bench.hear(kit.failed("m3"))
    assert bench.said[-1].type == what
    assert "the role middle: it was not recorded (too large)" in bench.said[-1].reason
    if how == "hold":
        bench.hear(kit.failed("m4"))
        assert [e.leaver for e in bench.said if isinstance(e, say.StandbyAssigned)] == ["m4"]


def test_that_a_role_was_not_recorded_may_be_heard_late(kit: Kit) -> None:
    """The job is held for want of a spare by then: now no spare would do, and that is said, once."""
    bench = pipeline(kit, spares=0, recorded=("m1", "m4"))
    bench.hear(kit.failed("m3"))
    assert "no standby is left" in bench.said[-1].reason
    bench.hear(kit.unrecorded("m2"))
    assert "it was not recorded (too large)" in bench.said[-1].reason
    held = [event for event in bench.said if isinstance(event, say.JobHeld)]
    bench.hear(kit.joined("s0"))
    assert [event for event in bench.said if isinstance(event, say.JobHeld)] == held
    assert len(held) == 2


def test_a_move_in_a_role_that_was_not_recorded_is_refused(kit: Kit) -> None:
    """At once, with the reason."""
    bench = pipeline(kit, recorded=("m1", "m4"))
    bench.hear(kit.unrecorded("m2"), say.MoveRequested(machine="m3"))
    assert bench.said[-1].type == "move.refused"
    assert "was not recorded" in bench.said[-1].reason


def test_a_representative_lost_before_it_has_recorded_starts_everything_again(kit: Kit) -> None:
    """Its role can never be warm: planner launches anew, standby opens no gap."""
    bench = pipeline(kit, recorded=("m1", "m4"))
    said = len(bench.said)
    bench.hear(kit.failed("m2"), kit.failed("m5"))
    assert len(bench.said) == said
    planner = kit.Bench(PlannerCore())
    names = [f"m{seat}" for seat in range(6)]
    planner.hear(kit.submitted(machines=6), *(kit.joined(name) for name in (*names, "s0")))
    planner.hear(*(kit.up(name) for name in names), kit.committed(1, names, kind="start"), kit.started())
    planner.hear(*staged_ranks(kit), kit.found(6, PIPELINE), kit.recorded("m1"), kit.recorded("m4"))
    planner.said.clear()
    planner.hear(kit.failed("m2"))
    assert [(event.machine, event.generation) for event in planner.said][2] == ("s0", 2)


@pytest.mark.parametrize(("how", "what"), [("hold", "job.held"), ("fail", "job.failed")])
def test_a_state_that_nobody_else_has(kit: Kit, how: str, what: str) -> None:
    """Both replicas of a stage are lost: no standby helps, and the rank is named."""
    bench = pipeline(kit, spares=2, on_exhausted=how)
    for spare in ("s0", "s1"):
        bench.hear(*(kit.parked(spare, role=role) for role in ("first", "middle", "last")))
    bench.hear(kit.failed("m2"))
    assert bench.said[-1].type == "standby.assigned"
    bench.hear(kit.failed("m3"))
    assert bench.said[-1].type != what, "the switch may have brought the state across"
    bench.fire(next(iter(bench.timers)))
    assert bench.said[-1].type == what
    assert "the state of rank" in bench.said[-1].reason
    assert "data-parallel replica" in bench.said[-1].reason


def test_a_state_that_came_across_at_the_last_moment(kit: Kit) -> None:
    """The last replica dies when its state is on the joiner, which is heard later: nothing is lost."""
    bench = pipeline(kit, spares=2, on_exhausted="fail")
    for spare in ("s0", "s1"):
        bench.hear(*(kit.parked(spare, role=role) for role in ("first", "middle", "last")))
    bench.hear(kit.failed("m2"), kit.failed("m3"))
    machines = ("m0", "m1", "s0", "m3", "m4", "m5")
    bench.hear(kit.committed(2, machines, leavers=("m2",), joiners=("s0",)))
    for timer in list(bench.timers):
        bench.fire(timer)
    assert [(e.leaver, e.joiner) for e in bench.said if isinstance(e, say.StandbyAssigned)] == [
        ("m2", "s0"),
        ("m3", "s1"),
    ]
    assert not [event for event in bench.said if event.type == "job.failed"]


def test_a_machine_with_a_state_of_its_own_does_not_move(kit: Kit) -> None:
    """A move that would lose the only copy of a state is refused with the rank's number."""
    bench = pipeline(kit)
    bench.hear(*(kit.parked("s0", role=role) for role in ("first", "middle", "last")))
    bench.hear(kit.failed("m2"), say.MoveRequested(machine="m3"))
    assert bench.said[-1].type == "move.refused"
    assert "the state of rank 3 is on no other machine" in bench.said[-1].reason


def planning(kit: Kit, kinds: tuple[str, ...]) -> Any:
    """A planner in training with two spares that are up in the role of the first two kinds."""
    bench = kit.Bench(PlannerCore())
    count = len(kinds)
    names = [f"m{seat}" for seat in range(count)]
    bench.hear(kit.submitted(machines=count, standbys=2), *(kit.joined(n) for n in (*names, "s0", "s1")))
    bench.hear(*(kit.up(name) for name in names), kit.committed(1, names, kind="start"), kit.started())
    bench.hear(*kit.all_described(count, kinds), kit.found(count, kinds))
    for spare in ("s0", "s1"):
        bench.hear(*(kit.up(spare, mode="sandbox", role=role.name) for role in kit.found(count, kinds).roles))
    bench.hear(*(kit.recorded(f"m{role.representative}") for role in kit.found(count, kinds).roles))
    bench.said.clear()
    return bench


def test_the_last_copy_of_a_state_waits_with_its_move(kit: Kit) -> None:
    """Two replicas that are both to move go one after the other, though they are no neighbours."""
    bench = planning(kit, ("a", "b", "c", "a", "b", "c"))
    bench.hear(kit.assigned("m0", "s0", "inc-a", "move"), kit.assigned("m3", "s1", "inc-b", "move"))
    (plan,) = bench.said
    assert (plan.leavers, plan.joiners) == (("m0",), ("s0",))
    assert [(joiner.rank, joiner.sources) for joiner in plan.joiner_ranks] == [(0, (3,))]
    bench.hear(kit.committed(plan.epoch, plan.machines, kind="move"))
    assert (bench.said[-1].leavers, bench.said[-1].joiner_ranks[0].sources) == (("m3",), (0,))


def test_the_endpoint_of_a_joiner_is_that_of_its_role(kit: Kit) -> None:
    """Of the processes that a spare has, those in the role of the seat are meant, now and afterwards."""
    bench = planning(kit, ("a", "b", "a", "b", "a", "b"))
    bench.hear(kit.failed("m3"), kit.assigned("m3", "s0", role="role-2"))
    plan = bench.said[-1]
    assert plan.endpoints[3] == kit.endpoint("s0", role="role-2")
    bench.hear(kit.committed(plan.epoch, plan.machines, leavers=("m3",), joiners=("s0",)))
    bench.hear(kit.failed("m0"), kit.assigned("m0", "s1", "inc-2", role="role-1"))
    assert bench.said[-1].endpoints[3] == kit.endpoint("s0", role="role-2")
    assert bench.said[-1].endpoints[0] == kit.endpoint("s1", role="role-1")


def test_there_is_no_plan_without_a_source(kit: Kit) -> None:
    """A dead seat whose state is nowhere is not planned in."""
    bench = planning(kit, ("a", "b", "c", "a", "b", "c"))
    bench.hear(kit.failed("m0"), kit.failed("m3"))
    bench.hear(kit.assigned("m0", "s0", "inc-a"), kit.assigned("m3", "s1", "inc-b"))
    assert bench.said == []


@pytest.mark.parametrize(("last", "same"), [("y", True), ("z", False)])
def test_a_job_ends_well_when_replicas_agree(kit: Kit, last: str, same: bool) -> None:
    """Digests are compared within replicas; the job's digest is one over all ranks."""
    bench = kit.Bench(SwitcherCore())
    bench.hear(kit.submitted(machines=4), *(kit.joined(f"m{i}") for i in range(4)))
    bench.hear(*(kit.launch(f"m{i}", i, n=4) for i in range(4)), *kit.all_described(4, "abab"))
    bench.hear(*(kit.finished(rank, f"m{rank}", digest) for rank, digest in enumerate(("x", "y", "x", last))))
    (done,) = bench.said
    assert done.identical is same
    assert len(done.digest) == 64
