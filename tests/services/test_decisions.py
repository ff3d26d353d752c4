"""Standby, planner and switcher, each alone: the transitions that a whole cluster rarely takes."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say
from trainmover.services import gaps, health, planner, spares, switcher
from trainmover.services.core import Say, incident_id, said_id, timer_id
from trainmover.services.crew import natural
from trainmover.services.gaps import Gap
from trainmover.services.planner import Phase, PlannerCore
from trainmover.services.roster import Roster
from trainmover.services.spares import Spare
from trainmover.services.standby import StandbyCore
from trainmover.services.switcher import Switch, SwitcherCore
from trainmover.services.tables import check, markdown, mermaid

Kit = SimpleNamespace


def training(kit: Kit, core: Any, spares: int = 1, **job: Any) -> Any:
    """A core in a job of three machines, in training on epoch 1 with recordings."""
    bench = kit.Bench(core)
    bench.hear(kit.submitted(standbys=spares, **job))
    bench.hear(*(kit.joined(f"m{i}") for i in range(3 + spares)))
    launches = [kit.launch(f"m{i}", i) for i in range(3)]
    ups = [kit.up(f"m{i}") for i in range(3)]
    begun = [kit.plan(1, ("m0", "m1", "m2"), kind="start", base=0)]
    begun += [kit.adopted(1, i, f"m{i}") for i in range(3)]
    bench.hear(*launches, *ups, *begun, kit.committed(1, ("m0", "m1", "m2"), kind="start"), *kit.ready())
    bench.said.clear()
    return bench


# -- tables and ids ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "states"),
    [(spares.SPARES, Spare), (gaps.GAPS, Gap), (planner.TABLE, Phase), (switcher.TABLE, Switch)],
)
def test_tables_are_whole(table: Any, states: Any) -> None:
    """Every state has a row, no row leads out of the table, and both drawings show every transition."""
    check(table, states)
    transitions = sum(len(row) for row in table.values())
    assert mermaid(table, next(iter(states))).count(": ") == transitions
    assert markdown(table).count("\n") >= transitions + 2
    with pytest.raises(ValueError, match="no row"):
        check({}, states)
    with pytest.raises(ValueError, match="lead to"):
        check({state: {"x": "nowhere"} for state in states}, states)


def test_the_docs_show_the_tables() -> None:
    """The tables and the picture in docs/reference/services.md are those of the code."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "services.md").read_text("utf-8")
    assert "preparing --> adopting: all prepared" in switcher.diagram()
    assert switcher.diagram() in text
    for table in (health.TABLE, spares.SPARES, gaps.GAPS, planner.TABLE, switcher.TABLE):
        assert markdown(table) in text


def test_ids_follow_from_causes() -> None:
    """The same cause gives the same id, another cause, place or service another one."""
    ids = {
        said_id("health", "a", 0),
        said_id("health", "a", 1),
        said_id("health", "b", 0),
        said_id("x", "a", 0),
    }
    assert len(ids) == 4
    assert said_id("health", "a", 0) in ids
    assert timer_id("health", "t", 1.5) == timer_id("health", "t", 1.5)
    assert incident_id("m1", "a").startswith("inc-")


def test_names_sort_as_people_count() -> None:
    """Machine m2 comes before m10, and names without numbers have a place too."""
    assert sorted(["m10", "m2", "a", "m1x"], key=natural) == ["a", "m1x", "m2", "m10"]


# -- standby -------------------------------------------------------------------------------------


def test_a_spare_is_warmed_from_the_other_position(kit: Kit) -> None:
    """Spares are warmed from a position other than the first, once its recording is whole."""
    bench = kit.Bench(StandbyCore())
    bench.hear(kit.submitted(), *(kit.joined(f"m{i}") for i in range(4)))
    bench.hear(*(kit.launch(f"m{i}", i) for i in range(3)), kit.started(), *kit.all_described())
    assert bench.hear(kit.recorded("m0")) == []
    bench.hear(kit.recorded("m1"))
    found, warm = bench.said
    assert found == kit.found()
    assert (warm.machine, warm.recordings, warm.positions, warm.world_size) == ("m3", ("/r/m1-0",), (1,), 3)


def test_a_failure_waits_for_a_spare_that_is_warming(kit: Kit) -> None:
    """While a spare is on its way nothing is said; when it is lost too, the job is held."""
    bench = training(kit, StandbyCore())
    assert bench.hear(kit.failed("m1")) == []
    assert kit.brief(bench.hear(kit.failed("m3")))[0] == "job.held"
    bench.hear(kit.joined("m4"))
    assert kit.brief(bench.hear(kit.parked("m4"))) == ["standby.assigned leaver=m1 joiner=m4"]


def test_failures_come_before_moves(kit: Kit) -> None:
    """A spare that becomes warm goes to the failure, though the move was asked for earlier."""
    bench = training(kit, StandbyCore())
    bench.hear(say.MoveRequested(machine="m0"), kit.failed("m1"))
    bench.hear(kit.parked("m3"))
    assert [event.type for event in bench.said] == ["standby.assigned", "move.refused"]
    assert (bench.said[0].leaver, bench.said[0].kind) == ("m1", "failure")


@pytest.mark.parametrize(
    ("machine", "to", "reason"),
    [
        ("m9", None, "has no seat"),
        ("m3", None, "has no seat"),
        ("m0", "m2", "not a living spare"),
        ("m0", "m9", "not a living spare"),
        ("m1", None, "being replaced already"),
    ],
)
def test_moves_are_refused_with_their_reason(kit: Kit, machine: str, to: str | None, reason: str) -> None:
    """A move that cannot be is refused at once, and says why."""
    bench = training(kit, StandbyCore())
    bench.hear(kit.parked("m3"), say.MoveRequested(machine="m1"))
    bench.said.clear()
    bench.hear(say.MoveRequested(machine=machine, to=to))
    assert [event.type for event in bench.said] == ["move.refused"]
    assert reason in bench.said[0].reason


def test_a_move_waits_for_its_spare_but_not_for_ever(kit: Kit) -> None:
    """A move waits for a spare that is being warmed, and is refused after its patience."""
    bench = training(kit, StandbyCore())
    outputs = bench.hear(say.MoveRequested(machine="m0", to="m3"))
    (timer,) = bench.timers
    assert kit.brief(outputs) == [f"timer {timer}"]
    assert kit.brief(bench.fire(timer))[-1] == "move.refused machine=m0"
    bench.hear(kit.parked("m3"))
    assert (
        kit.brief(bench.hear(say.MoveRequested(machine="m0", to="m3")))[-1]
        == "standby.assigned leaver=m0 joiner=m3"
    )


def test_a_joiner_lost_after_a_late_commit(kit: Kit) -> None:
    """Whether the joiner's commit is heard before or after its death, its seat gets another spare."""
    for late in (False, True):
        bench = training(kit, StandbyCore(), spares=2)
        bench.hear(kit.parked("m3"), kit.parked("m4"), kit.failed("m1"))
        done = kit.committed(2, ("m0", "m3", "m2"), leavers=("m1",), joiners=("m3",))
        bench.hear(*((kit.failed("m3"), done) if late else (done, kit.failed("m3"))))
        last = [event for event in bench.said if event.type == "standby.assigned"][-1]
        assert last.joiner == "m4"


def test_a_fresh_start_makes_spares_stale(kit: Kit) -> None:
    """After a relaunch a parked spare is warmed again, with the new generation's recording."""
    bench = training(kit, StandbyCore())
    bench.hear(kit.parked("m3"), *(kit.launch(f"m{i}", i, generation=2) for i in range(3)))
    bench.said.clear()
    bench.hear(*kit.ready(generation=2, epoch=5))
    assert [(event.type, event.generation) for event in bench.said] == [
        ("roles.found", 2),
        ("standby.warm", 2),
    ]


def test_a_machine_back_under_a_taken_name(kit: Kit) -> None:
    """A machine that comes back under the name of the seat that it lost is not assigned to it."""
    bench = training(kit, StandbyCore(), spares=0)
    bench.hear(kit.joined("m1", "b"), kit.failed("m1"))
    assert "under another one" in bench.said[-1].reason


def test_hopeless_spares_are_not_asked_for(kit: Kit) -> None:
    """After three spares in a row that never parked, no more is asked for."""
    bench = training(kit, StandbyCore())
    asked = 0
    for number in itertools.count(3):
        bench.said.clear()
        bench.hear(kit.failed(f"m{number}"))
        if not [event for event in bench.said if event.type == "standby.replenish"]:
            break
        asked += 1
        bench.hear(kit.joined(f"m{number + 1}"))
    assert asked == 2


facts = st.permutations(range(12))


@settings(max_examples=150, deadline=None)
@given(order=facts, doubled=st.sets(st.integers(0, 11)))
def test_standby_settles_in_any_order(kit: Kit, order: list[int], doubled: set[int]) -> None:
    """In whatever order and however often the facts come, the dead machine gets the one spare."""
    events = [
        *(kit.joined(f"m{i}") for i in range(2, 4)),
        *(kit.launch(f"m{i}", i) for i in range(3)),
        kit.started(),
        *kit.all_described(),
        kit.recorded("m1"),
        kit.failed("m1"),
        kit.parked("m3"),
    ]
    bench = kit.Bench(StandbyCore())
    bench.hear(kit.submitted(), kit.joined("m0"), kit.joined("m1"))
    for index in order:
        bench.hear(*[events[index]] * (2 if index in doubled else 1))
    assigned = [event for event in bench.said if event.type == "standby.assigned"]
    assert [(event.leaver, event.joiner) for event in assigned] == [("m1", "m3")]


# -- planner -------------------------------------------------------------------------------------


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
    bench = training(kit, PlannerCore())
    bench.hear(kit.up("m3", mode="sandbox"), kit.failed("m1"), kit.assigned("m1", "m3"))
    (plan,) = bench.said
    assert (plan.epoch, plan.base_epoch, plan.kind, plan.machines) == (2, 1, "failure", ("m0", "m3", "m2"))
    assert plan.endpoints[1] == kit.endpoint("m3", role="all")
    assert plan.links_added == plan.links_dropped
    assert all(1 in (link.low, link.high) for link in plan.links_added)
    assert len(plan.links_added) < plan.links_total


def test_a_plan_waits_for_every_dead_machine(kit: Kit) -> None:
    """With two dead and one assignment there is no plan; with both there is one for both."""
    bench = training(kit, PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.failed("m1"), kit.failed("m2"), kit.assigned("m1", "m3", "inc-1"))
    assert bench.said == []
    bench.hear(kit.assigned("m2", "m4", "inc-2"))
    assert [(plan.machines, plan.incidents) for plan in bench.said] == [
        (("m0", "m3", "m4"), ("inc-1", "inc-2"))
    ]


def test_epochs_only_grow(kit: Kit) -> None:
    """An aborted epoch's number is not used again, and a broken plan is superseded by the next number."""
    bench = training(kit, PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.failed("m1"), kit.assigned("m1", "m3"))
    bench.hear(say.SwitchAborted(epoch=2, incidents=("inc-1",), reason="limit"))
    bench.hear(kit.failed("m3"), kit.assigned("m1", "m4"))
    assert [(plan.epoch, plan.machines[1]) for plan in bench.said] == [(2, "m3"), (3, "m3"), (4, "m4")]


def test_a_plan_on_a_committed_base(kit: Kit) -> None:
    """A plan made while the older one was committed is made again on the committed layout."""
    bench = training(kit, PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.failed("m1"), kit.assigned("m1", "m3"))
    bench.hear(kit.failed("m2"), kit.assigned("m2", "m4", "inc-2"))
    bench.hear(kit.committed(2, ("m0", "m3", "m2"), leavers=("m1",), joiners=("m3",)))
    last = bench.said[-1]
    assert (last.epoch, last.base_epoch, last.leavers, last.joiners) == (4, 2, ("m2",), ("m4",))


def test_a_refused_move_is_forgotten(kit: Kit) -> None:
    """A move whose joiner died and that was then refused blocks no later plan."""
    bench = training(kit, PlannerCore(), spares=2)
    bench.hear(kit.up("m4", mode="sandbox"), kit.assigned("m0", "m3", "inc-9", "move"), kit.failed("m3"))
    bench.hear(say.MoveRefused(machine="m0", incident="inc-9", reason="x"))
    bench.hear(kit.failed("m1"), kit.assigned("m1", "m4"))
    assert [plan.machines for plan in bench.said] == [("m0", "m4", "m2")]


def test_assignments_of_an_older_generation_are_void(kit: Kit) -> None:
    """What standby said before a relaunch does not change the new generation's layout."""
    bench = training(kit, PlannerCore())
    bench.hear(kit.up("m3", mode="sandbox"), kit.assigned("m1", "m3", generation=9))
    assert bench.said == []


def test_a_repair_keeps_the_machines(kit: Kit) -> None:
    """A repair is a new epoch with the same machines, and is done by any later epoch."""
    bench = training(kit, PlannerCore())
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


# -- switcher ------------------------------------------------------------------------------------


def switching(kit: Kit) -> Any:
    """A switcher that has prepared epoch 2."""
    bench = training(kit, SwitcherCore(), spares=2)
    outputs = bench.hear(kit.plan(2, ("m0", "m3", "m2"), leavers=("m1",), joiners=("m3",)))
    assert kit.brief(outputs) == ["timer limit:2", "switch.prepare epoch=2 machines=m0,m3,m2"]
    bench.said.clear()
    return bench


SEATS = ("m0", "m3", "m2")


def test_all_adopted_is_committed(kit: Kit) -> None:
    """The last rank's report commits the epoch, with the step that training goes on with."""
    bench = switching(kit)
    bench.hear(*(kit.prepared(2, rank, machine) for rank, machine in enumerate(SEATS)))
    assert bench.core.phase is Switch.ADOPTING
    outputs = bench.hear(*(kit.adopted(2, rank, machine, 7) for rank, machine in enumerate(SEATS)))
    assert kit.brief(outputs) == ["no timer limit:2", "switch.committed epoch=2 machines=m0,m3,m2"]
    assert bench.said[0].step == 7


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(range(7)))
def test_reports_in_any_order(kit: Kit, order: list[int]) -> None:
    """Reports may come before the plan and before each other; the epoch is committed once."""
    bench = training(kit, SwitcherCore())
    events = [
        kit.plan(2, SEATS, leavers=("m1",), joiners=("m3",)),
        *(kit.prepared(2, rank, machine) for rank, machine in enumerate(SEATS)),
        *(kit.adopted(2, rank, machine) for rank, machine in enumerate(SEATS)),
    ]
    bench.hear(*(events[index] for index in order), *events)
    assert [event.type for event in bench.said] == ["switch.prepare", "switch.committed"]


def test_a_bystander_counts_for_nothing(kit: Kit) -> None:
    """A report by a machine that does not sit on that rank is not the rank's."""
    bench = switching(kit)
    bench.hear(kit.adopted(2, 0, "m0"), kit.adopted(2, 1, "m1"), kit.adopted(2, 2, "m2"))
    assert bench.said == []
    assert bench.hear(kit.adopted(2, 1, "m3"))


def test_a_committed_step_proves_the_rest(kit: Kit) -> None:
    """The first step after the switch commits the epoch though a report was lost."""
    bench = switching(kit)
    bench.hear(kit.adopted(2, 0, "m0", 6), say.TrainingResumed(epoch=2, step=7))
    assert [(event.type, event.step) for event in bench.said] == [("switch.committed", 6)]


def test_what_aborts_and_what_does_not(kit: Kit) -> None:
    """A leaver's death changes nothing; a member's death, the limit and a newer plan abort."""
    assert switching(kit).hear(kit.failed("m1")) == []
    bench = switching(kit)
    bench.hear(kit.failed("m3"))
    assert "m3 failed" in bench.said[0].reason
    bench = switching(kit)
    bench.hear(kit.prepared(2, 0, "m0"))
    bench.fire("limit:2")
    assert bench.said[0].reason == "not prepared within 60 s: rank 1 (m3), 2 (m2)"
    bench = switching(kit)
    outputs = bench.hear(kit.plan(3, ("m0", "m4", "m2"), leavers=("m1",), joiners=("m4",)))
    assert kit.brief(outputs)[1:] == [
        "switch.aborted epoch=2",
        "timer limit:3",
        "switch.prepare epoch=3 machines=m0,m4,m2",
    ]


def test_plans_that_are_not_begun(kit: Kit) -> None:
    """A plan on another base is refused; one with a dead machine waits for its successor."""
    bench = training(kit, SwitcherCore(), spares=2)
    bench.hear(kit.plan(3, SEATS, base=2))
    assert "follows epoch 2, but 1 holds" in bench.said[0].reason
    bench.hear(kit.plan(4, SEATS, generation=0))
    assert "generation" in bench.said[1].reason
    bench.hear(kit.failed("m3"))
    assert bench.hear(kit.plan(5, SEATS)) == []
    assert (
        kit.brief(bench.hear(kit.plan(6, ("m0", "m4", "m2"))))[-1]
        == "switch.prepare epoch=6 machines=m0,m4,m2"
    )
    assert bench.hear(kit.plan(5, SEATS)) == [], "an older plan does not come back"


@pytest.mark.parametrize("digests", [("d", "d", "d"), ("d", "d", "x")])
def test_the_end_of_the_job(kit: Kit, digests: tuple[str, ...]) -> None:
    """When all ranks have finished the job is completed, once, even in the middle of a switch."""
    bench = switching(kit)
    outputs = bench.hear(*(kit.finished(r, f"m{r}", d) for r, d in enumerate(digests)), kit.finished(0, "m0"))
    assert kit.brief(outputs) == ["no timer limit:2", "job.completed"]
    done = bench.said[0]
    assert (done.steps, done.digest == "d", done.identical) == (10, *[len(set(digests)) == 1] * 2)


def test_a_relaunch_forgets_who_finished(kit: Kit) -> None:
    """Ranks that finished in an older generation do not count in the next."""
    bench = training(kit, SwitcherCore())
    bench.hear(kit.finished(0, "m0"), kit.finished(1, "m1"))
    bench.hear(*(kit.launch(f"m{i}", i, generation=2) for i in range(3)), kit.finished(2, "m2"))
    assert bench.said == []


# -- roster --------------------------------------------------------------------------------------


def test_a_commit_of_an_older_generation_moves_no_seat(kit: Kit) -> None:
    """A start that is committed after its generation was given up changes the epoch and nothing else."""
    roster = Roster()
    for event in (kit.launch("m0", 0), kit.launch("m9", 0, generation=2)):
        roster.note(event)
    roster.note(kit.committed(1, ("m0",), kind="start"))
    assert (roster.epoch, roster.members, roster.settled) == (1, ("m9",), False)


def test_outputs_carry_their_incident(kit: Kit) -> None:
    """What belongs to an incident names it in the envelope."""
    bench = training(kit, StandbyCore())
    bench.hear(kit.parked("m3"))
    (output,) = bench.hear(kit.failed("m1"))
    assert isinstance(output, Say)
    assert output.incident == incident_id("m1", "a")


# -- neighbours --------------------------------------------------------------------------------------


def plans(bench: Any) -> list[say.PlanReady]:
    """The plans that a planner has said."""
    return [event for event in bench.said if isinstance(event, say.PlanReady)]


def test_neighbours_do_not_move_together(kit: Kit) -> None:
    """Two living neighbours move one after the other: each keeps the other's private state."""
    bench = training(kit, PlannerCore(), spares=2)
    bench.hear(kit.up("m3", mode="sandbox"), kit.up("m4", mode="sandbox"))
    bench.hear(kit.assigned("m0", "m3", "inc-a", "move"), kit.assigned("m1", "m4", "inc-b", "move"))
    (first,) = plans(bench)
    assert first.machines == ("m3", "m1", "m2")
    bench.hear(*(kit.adopted(first.epoch, rank, name) for rank, name in enumerate(first.machines)))
    bench.hear(kit.committed(first.epoch, first.machines, kind="move"))
    assert plans(bench)[-1].machines == ("m3", "m4", "m2")


def test_a_move_waits_for_a_lost_neighbour(kit: Kit) -> None:
    """A lost seat is filled first; the living neighbour that was to move still serves its state."""
    bench = training(kit, PlannerCore(), spares=2)
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
