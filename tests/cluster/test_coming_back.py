"""Machines that come back in real runs: one that was cut off, one that was started again.

Each is told that it is out, joins once more as another life, and is warmed like any other standby; the run
ends in the bytes of the undisturbed one.  (A machine that was frozen: tests/cluster/test_control_plane.py and
test_same_bytes.py.)
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.rounds import played
from tests.cluster.training import Outcome, Running, join, train
from trainmover.chaos import network
from trainmover.chaos.judge import Truth, Verdict
from trainmover.chaos.plan import Plan, Trouble
from trainmover.chaos.round import Order
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import read_log
from trainmover.faults import parse_faults
from trainmover.monitor.explain import Fact, explain, find

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(420)]

TINY = Path(__file__).parent / "scripts" / "tiny.py"
STEPS, FINAL = 200, 100
SLOW = f"slow:machine=0,step={FINAL},factor=8"
"""On a busy computer a spare takes 20 s to be warm, as does a machine that is back: no job ends before."""
networked = pytest.mark.skipif(bool(why := network.why_not()), reason=why or "possible")


def run_of(folder: Path, *troubles: Trouble, truth: Truth | None = None) -> Verdict:
    """A run on three machines with networks of their own, and a standby; its last steps are slow."""
    plan = Plan(0, parse_faults([SLOW]), troubles)
    script = ("--steps", str(STEPS), "--step-seconds", "0.1")
    return played(Order(str(folder), str(TINY), script, 3, 1, 1, 7, plan, networks=True), truth, 300)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """What the run comes to that nothing happens to."""
    verdict = run_of(tmp_path_factory.mktemp("calm"))
    assert verdict.complaints == ()
    return verdict.truth


def lives(folder: Path, machine: str) -> dict[str, list[str]]:
    """What was said of each life of a machine, in order."""
    found: dict[str, list[str]] = {}
    for record in read_log(folder / "run" / "events.tmlog"):
        event = record.envelope.event
        told = isinstance(event, say.MachineJoined | say.MachineFailed | say.MachineLeft | say.StandbyParked)
        if told and event.machine == machine:
            found.setdefault(event.incarnation, []).append(event.type)
    return found


def read_envelopes(folder: Path) -> Iterator[Envelope]:
    """The log of a run."""
    return (record.envelope for record in read_log(folder / "run" / "events.tmlog"))


def check(folder: Path, machine: str) -> None:
    """Its first life was declared dead, its second one was parked as a standby."""
    first, second = lives(folder, machine).values()
    assert first[:2] == ["machine.joined", "machine.failed"], first
    assert second[:2] == ["machine.joined", "standby.parked"], second


@networked
@pytest.mark.long(every=0)
def test_a_machine_whose_cable_was_pulled(calm: Truth, tmp_path: Path) -> None:
    """It is replaced; when the cable is back it hears that it is out, ends its ranks and joins the pool."""
    cut = Trouble("cut", "m1", 5.0, "standby.parked")
    verdict = run_of(tmp_path, cut, truth=calm)
    assert verdict.complaints == ()
    assert verdict.faults[-1] == str(cut)
    assert verdict.incidents == ("failure of m1",)
    check(tmp_path, "m1")
    left = [r.envelope.event for r in read_log(tmp_path / "run" / "events.tmlog")]
    assert ("m1", "fenced") in {(e.machine, e.reason) for e in left if isinstance(e, say.MachineLeft)}


@networked
@pytest.mark.long(every=0)
def test_two_machines_that_did_not_reach_each_other(calm: Truth, tmp_path: Path) -> None:
    """Both reach the bus and everybody else: training waits, and goes on when they do."""
    part = Trouble("part", "m0+m1", 5.0, "standby.parked")
    verdict = run_of(tmp_path, part, truth=calm)
    assert verdict.complaints == ()
    assert verdict.faults[-1] == str(part)


@networked
@pytest.mark.long(every=0)
def test_two_machines_that_never_reach_each_other_again(calm: Truth, tmp_path: Path) -> None:
    """The repair does not come about, so one is replaced, and waits outside for as long as the cut lasts.

    The bytes are those of the undisturbed run, and the log replays without a difference.
    """
    part = Trouble("part", "m0+m1", 600.0, "standby.parked")
    verdict = run_of(tmp_path, part, truth=calm)
    assert verdict.complaints == ()
    assert verdict.incidents == ("failure of m1",)
    assert list(lives(tmp_path, "m1").values()) == [["machine.joined", "machine.failed", "machine.left"]]
    events = [record.envelope.event for record in read_log(tmp_path / "run" / "events.tmlog")]
    (failed,) = (event for event in events if isinstance(event, say.MachineFailed))
    assert failed.unreached == ("m0",)
    assert "m1 and m0 do not reach each other, though all are well" in failed.reason
    story = explain(list(read_envelopes(tmp_path)), find(list(read_envelopes(tmp_path)), "m1"))
    told = [item.envelope.type for item in story.chain if isinstance(item, Fact)]
    assert "link.unreached" in told


@networked
@pytest.mark.long(every=0)
def test_two_machines_between_which_only_small_packets_pass(calm: Truth, tmp_path: Path) -> None:
    """They shake hands, enter the epoch, and lose each other in its first step: the third time one goes."""
    verdict = run_of(tmp_path, Trouble("narrow", "m0+m1", 600.0, "standby.parked"), truth=calm)
    assert verdict.complaints == ()
    assert verdict.incidents == ("failure of m1",)
    events = [record.envelope.event for record in read_log(tmp_path / "run" / "events.tmlog")]
    (failed,) = (event for event in events if isinstance(event, say.MachineFailed))
    assert failed.unreached == ("m0",)
    assert any("without a step between" in line for line in failed.evidence)
    assert sum(isinstance(event, say.LinkRepair) for event in events) == 2
    assert list(lives(tmp_path, "m1").values()) == [["machine.joined", "machine.failed", "machine.left"]]


@pytest.mark.long(every=0)
def test_a_machine_that_was_started_again(tmp_path: Path) -> None:
    """Under its own name, while somebody else has its seat: it joins the pool."""
    back: list[subprocess.Popen[bytes]] = []

    def start_again(running: Running) -> None:
        running.until("m1 is declared dead")
        back.append(join(running, "m1"))

    def run(name: str, *faults: str, **more: object) -> Outcome:
        folder = tmp_path / name
        folder.mkdir()
        script = (str(TINY), "--step-seconds", "0.1")
        return train(folder, *faults, steps=STEPS, script=script, **more)  # type: ignore[arg-type]

    straight = run("straight", standbys=0)
    outcome = run("again", "kill:machine=1,step=12", SLOW, meanwhile=start_again)
    assert back[0].wait(20) == 0
    assert (outcome.digest, outcome.losses) == (straight.digest, straight.losses)
    assert outcome.incidents == [("failure", "m1")]
    check(tmp_path / "again", "m1")
