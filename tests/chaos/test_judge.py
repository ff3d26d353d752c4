"""The judge, on logs that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.chaos.judge import _wronged
from trainmover.chaos.plan import Plan, Trouble
from trainmover.chaos.round import Order
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.faults import parse_faults


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
