"""The switcher alone: what commits an epoch, what gives it up, and how a job ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say
from trainmover.services.core import Say
from trainmover.services.switcher import Switch, SwitcherCore

Kit = SimpleNamespace


def switching(kit: Kit) -> Any:
    """A switcher that has prepared epoch 2."""
    bench = kit.training(SwitcherCore(), spares=2)
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
    bench = kit.training(SwitcherCore())
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


def test_what_an_earlier_life_has_said_holds(kit: Kit) -> None:
    """It comes back out of the log, and this life, which lacks what led to it, says nothing else."""
    bench = switching(kit)
    outputs = bench.hear(kit.committed(2, SEATS, leavers=("m1",), joiners=("m3",)))
    assert kit.brief(outputs) == ["no timer limit:2"]
    assert bench.core.phase is Switch.IDLE
    assert bench.hear(kit.failed("m3")) == [], "that epoch came about"
    late = kit.plan(2, SEATS, leavers=("m1",), joiners=("m3",))
    assert bench.hear(late, *(kit.adopted(2, rank, name) for rank, name in enumerate(SEATS))) == []
    outputs = bench.hear(kit.plan(3, ("m0", "m4", "m2"), base=2, leavers=("m3",), joiners=("m4",)))
    assert kit.brief(outputs)[1] == "switch.prepare epoch=3 machines=m0,m4,m2"
    assert kit.brief(bench.hear(say.SwitchAborted(epoch=3, incidents=(), reason="limit"))) == [
        "no timer limit:3"
    ]
    assert bench.hear(*(kit.adopted(3, rank, f"m{rank}") for rank in range(3))) == []


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
    bench = kit.training(SwitcherCore(), spares=2)
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


def test_descriptions_that_come_after_the_end(kit: Kit) -> None:
    """Stages end in different digests; who has which stage may be heard last, and is waited for."""
    bench = kit.Bench(SwitcherCore())
    bench.hear(kit.submitted(4), *(kit.joined(f"m{i}") for i in range(4)))
    bench.hear(*(kit.launch(f"m{i}", i, n=4) for i in range(4)))
    bench.hear(kit.committed(1, ("m0", "m1", "m2", "m3"), kind="start"), kit.started())
    described = kit.all_described(4, ("first", "first", "last", "last"))
    finished = [kit.finished(rank, f"m{rank}", "first" if rank < 2 else "last") for rank in range(4)]
    bench.hear(*described[1:3])
    assert kit.brief(bench.hear(*finished)) == ["timer described"]
    late = bench.hear(described[0], described[3])
    assert [output.event.identical for output in late if isinstance(output, Say)] == [True]


def test_a_relaunch_forgets_who_finished(kit: Kit) -> None:
    """Ranks that finished in an older generation do not count in the next."""
    bench = kit.training(SwitcherCore())
    bench.hear(kit.finished(0, "m0"), kit.finished(1, "m1"))
    bench.hear(*(kit.launch(f"m{i}", i, generation=2) for i in range(3)), kit.finished(2, "m2"))
    assert bench.said == []
