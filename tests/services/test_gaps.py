"""Standby alone: whose seat is filled by whom, and when a move is refused."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say
from trainmover.services.core import Say, incident_id
from trainmover.services.standby import StandbyCore

Kit = SimpleNamespace


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
    bench = kit.training(StandbyCore())
    assert bench.hear(kit.failed("m1")) == []
    assert kit.brief(bench.hear(kit.failed("m3")))[0] == "job.held"
    bench.hear(kit.joined("m4"))
    assert kit.brief(bench.hear(kit.parked("m4"))) == ["standby.assigned leaver=m1 joiner=m4"]


def test_failures_come_before_moves(kit: Kit) -> None:
    """A spare that becomes warm goes to the failure, though the move was asked for earlier."""
    bench = kit.training(StandbyCore())
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
    bench = kit.training(StandbyCore())
    bench.hear(kit.parked("m3"), say.MoveRequested(machine="m1"))
    bench.said.clear()
    bench.hear(say.MoveRequested(machine=machine, to=to))
    assert [event.type for event in bench.said] == ["move.refused"]
    assert reason in bench.said[0].reason


def test_a_move_waits_for_its_spare_but_not_for_ever(kit: Kit) -> None:
    """A move waits for a spare that is being warmed, and is refused after its patience."""
    bench = kit.training(StandbyCore())
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
        bench = kit.training(StandbyCore(), spares=2)
        bench.hear(kit.parked("m3"), kit.parked("m4"), kit.failed("m1"))
        done = kit.committed(2, ("m0", "m3", "m2"), leavers=("m1",), joiners=("m3",))
        bench.hear(*((kit.failed("m3"), done) if late else (done, kit.failed("m3"))))
        last = [event for event in bench.said if event.type == "standby.assigned"][-1]
        assert last.joiner == "m4"


def test_a_fresh_start_makes_spares_stale(kit: Kit) -> None:
    """After a relaunch a parked spare is warmed again, with the new generation's recording."""
    bench = kit.training(StandbyCore())
    bench.hear(kit.parked("m3"), *(kit.launch(f"m{i}", i, generation=2) for i in range(3)))
    bench.said.clear()
    bench.hear(*kit.ready(generation=2, epoch=5))
    assert [(event.type, event.generation) for event in bench.said] == [
        ("roles.found", 2),
        ("standby.warm", 2),
    ]


def test_a_machine_back_under_a_taken_name(kit: Kit) -> None:
    """A machine that comes back under the name of the seat that it lost is not assigned to it."""
    bench = kit.training(StandbyCore(), spares=0)
    bench.hear(kit.joined("m1", "b"), kit.failed("m1"))
    assert "under another one" in bench.said[-1].reason


def test_hopeless_spares_are_not_asked_for(kit: Kit) -> None:
    """After three spares in a row that never parked, no more is asked for."""
    bench = kit.training(StandbyCore())
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


def test_outputs_carry_their_incident(kit: Kit) -> None:
    """What belongs to an incident names it in the envelope."""
    bench = kit.training(StandbyCore())
    bench.hear(kit.parked("m3"))
    (output,) = bench.hear(kit.failed("m1"))
    assert isinstance(output, Say)
    assert output.incident == incident_id("m1", "a")
