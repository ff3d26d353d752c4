"""A sample of the matrix with real processes: a service or the bus fails at a phase of a switch.

The whole matrix is in tests/simulator/test_disturbed_switches.py, in virtual time.  Here services and server
are real, and get a real SIGKILL or SIGSTOP at the event that begins the phase; the ranks are small programs
without torch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.rounds import played
from trainmover.chaos.plan import Plan, Trouble, TroubleKind
from trainmover.chaos.round import Order
from trainmover.faults import FaultSpec

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]

FAKE = Path(__file__).parents[1] / "machine" / "fake_rank.py"
STEPS = 60
PHASES: list[tuple[str, int, TroubleKind, str]] = [
    ("machine.failed", 1, "service", "health"),
    ("standby.assigned", 1, "service", "standby"),
    ("standby.assigned", 1, "service", "planner"),
    ("plan.ready", 2, "service", "planner"),
    ("plan.ready", 2, "bus", ""),
    ("switch.prepare", 2, "service", "switcher"),
    ("switch.prepare", 2, "bus", ""),
    ("switch.prepared", 5, "service", "switcher"),
    ("switch.prepared", 5, "stall", ""),
    ("switch.adopted", 5, "service", "switcher"),
    ("switch.adopted", 5, "bus", ""),
    ("switch.committed", 2, "service", "standby"),
    ("switch.committed", 2, "service", "planner"),
    ("standby.replenish", 1, "service", "standby"),
]
"""The event that begins the phase, which one it is (the start of the job has some, too), and what fails."""


@pytest.mark.long(every=14)
@pytest.mark.parametrize("kind", ["kill", "move"])
@pytest.mark.parametrize(("moment", "nth", "trouble", "target"), PHASES)
def test_a_phase_is_disturbed(
    moment: str, nth: int, trouble: TroubleKind, target: str, kind: str, tmp_path: Path
) -> None:
    """The machine is replaced all the same, nothing differs, nothing is left."""
    seconds = 3.0 if trouble == "stall" else 0.0
    plan = Plan(
        seed=0,
        faults=(FaultSpec.parse(f"{kind}:machine=1,step=25"),),
        troubles=(Trouble(trouble, target, seconds, moment, nth),),
    )
    order = Order(
        str(tmp_path), str(FAKE), ("--steps", str(STEPS), "--step-seconds", "0.05"), 3, 1, 1, 7, plan
    )
    verdict = played(order, None, 120)
    assert verdict.complaints == ()
    assert verdict.truth.losses == tuple(4.0 / (1 + step) for step in range(STEPS))
    assert verdict.incidents == (f"{'failure' if kind == 'kill' else 'move'} of m1",)
