"""The disk of the run's folder is full: what is said then gets into the log, and the bus comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.rounds import played
from trainmover.chaos import disk
from trainmover.chaos.plan import Plan, Trouble
from trainmover.chaos.round import Order
from trainmover.events import catalogue as say
from trainmover.events.log import read_log
from trainmover.faults import FaultSpec
from trainmover.machine.rundir import RunDir

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

TINY = Path(__file__).parent / "scripts" / "tiny.py"
STEPS = 40


@pytest.mark.long(every=0)
@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
def test_a_joiner_dies_while_the_disk_is_full(tmp_path: Path) -> None:
    """It has said that it is prepared, and dies in the copy of the state: who heard it stores its words."""
    plan = Plan(
        seed=0,
        faults=tuple(map(FaultSpec.parse, ("kill:machine=0,step=12", "kill:machine=3,step=0,at=copy"))),
        troubles=(Trouble("disk", "", 6.0, "machine.failed", 1),),
    )
    order = Order(str(tmp_path), str(TINY), ("--steps", str(STEPS)), 3, 1, 1, 7, plan)
    disk.mount(order.run_dir)
    try:
        verdict = played(order, None, 200)
        log = [record.envelope for record in read_log(RunDir(order.run_dir).events)]
    finally:
        disk.unmount(order.run_dir)
    assert verdict.complaints == ()
    assert len(verdict.truth.losses) == STEPS
    said = [envelope.event for envelope in log]
    stored = [event.machine for event in said if isinstance(event, say.SwitchPrepared)]
    assert "m3" not in stored, "its own words did not reach the log"
    copied = [event.headers["ce-type"] for event in said if isinstance(event, say.JournalCopy)]
    assert any("switch.prepared" in kind for kind in copied)


@pytest.mark.long(every=0)
@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
def test_the_bus_dies_while_the_disk_is_full(tmp_path: Path) -> None:
    """It is started again when there is room: before, it could not, or would store nothing for good."""
    plan = Plan(
        seed=0,
        faults=(FaultSpec.parse("kill:machine=1,step=80"),),
        troubles=(
            Trouble("disk", "", 4.0, "training.started", 1),
            Trouble("bus", "", 0.0, "training.started", 1, 0.5),
        ),
    )
    order = Order(str(tmp_path), str(TINY), ("--steps", "120"), 3, 1, 1, 7, plan)
    disk.mount(order.run_dir)
    try:
        verdict = played(order, None, 120)
    finally:
        disk.unmount(order.run_dir)
    assert verdict.complaints == ()
    assert len(verdict.truth.losses) == 120
    assert verdict.incidents == ("failure of m1",)
