"""The judge, on logs that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.chaos.judge import _not_finite, _wronged
from trainmover.chaos.plan import Plan, Trouble
from trainmover.chaos.round import Order
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.faults import parse_faults
from trainmover.monitor.steps import StepFact, StepFacts


@pytest.mark.parametrize(
    ("reason", "wronged"),
    [
        ("no heartbeat for 1.26 s (limit 1.20 s); does not answer a probe", ["m0"]),
        ("nobody listens under its name", ["m0"]),
        ("live rank process of slot 0 (pid 7) ended by signal 9", []),
        ("m0 joined again as b", []),
    ],
)
def test_whoever_is_declared_dead_for_silence_was_hit_by_something(
    tmp_path: Path, reason: str, wronged: list[str]
) -> None:
    """A machine that the plan kills, stops or cuts off may be silent; one that nothing is done to may not."""
    plan = Plan(
        0,
        parse_faults(["kill:machine=1,step=3", "move:machine=0,step=9"]),
        (Trouble("part", "m2+m3", 5.0), Trouble("stall", "", 3.0)),
    )
    order = Order(str(tmp_path), "train.py", (), 4, 1, 1, 0, plan)
    log = [
        Envelope(
            id=f"e{number}",
            source="health",
            time=1.0,
            job="j",
            event=say.MachineFailed(machine=f"m{number}", incarnation="a", reason=reason),
        )
        for number in range(4)
    ]
    assert [line.split()[0] for line in _wronged(order, log)] == wronged


def test_a_run_that_diverges_is_nothing_to_compare_with() -> None:
    """All runs end alike in what is not a number, whatever happened to them."""
    for losses, wrong in (((2.0, None, 1.0), 0), ((2.0, 1e30, float("inf"), float("nan")), 1)):
        steps = [
            StepFact("m0", 0, 7, step, 1, 0, 0.0, 1.0, 1.0, loss, 1, False)
            for step, loss in enumerate(losses)
        ]
        facts = StepFacts(steps=steps)
        assert len(list(_not_finite(facts))) == wrong
    assert "from step 2 on" in next(iter(_not_finite(facts)))
