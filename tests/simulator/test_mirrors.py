"""Jobs in which no two ranks have the same state: what mirrors save, and what is said when they are lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.simulator.test_disturbed_switches import setup
from tests.simulator.test_seeds import whole
from trainmover.events import catalogue as say
from trainmover.services.planner import PlannerCore
from trainmover.services.roster import Roster
from trainmover.services.standby import StandbyCore
from trainmover.simulator import Outcome, draw, simulate, simulate_many
from trainmover.simulator.cluster import Cluster

SEEDS = 80


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["hold", "fail"])
def test_jobs_whose_state_is_mirrored(policy: str) -> None:
    """The small clusters: a joiner has the mirror of the right step, or the job ends or waits with reason."""
    setups = [draw(seed, state="mirror", on_exhausted=policy) for seed in range(SEEDS)]
    endings: Counter[str] = Counter()
    switches: Counter[str] = Counter()
    for outcome in simulate_many(setups):
        assert not whole(outcome), whole(outcome)
        endings[outcome.ending.partition(":")[0]] += 1
        switches.update(outcome.switches)
    assert endings["completed"] > 0.5 * SEEDS, endings
    assert endings["held" if policy == "hold" else "failed"] > 0, endings
    assert switches["failure"] > 0.1 * SEEDS, switches


def killed(seats: Collection[int], policy: str, cores: Any = None) -> Outcome:
    """A run of four machines with two standbys, in which the machines of some seats die together."""

    def beforehand(cluster: Cluster) -> None:
        def kill(_: say.Event) -> str:
            names = [cluster.watch.layout[seat] for seat in seats]
            for name in names:
                cluster.machines[name].kill()
            return f"{', '.join(names)} are killed"

        # Both standbys are parked, and so the mirrors are whole.
        cluster.faults.ambush(say.StandbyParked, kill, skip=1)

    return simulate(replace(setup(), state="mirror", on_exhausted=policy), cores, beforehand)


def reasons(outcome: Outcome, kind: type[say.JobFailed | say.JobHeld]) -> list[str]:
    """What was said, in the order of the log."""
    found = [envelope.event for envelope in outcome.log if isinstance(envelope.event, kind)]
    return [cast("Any", event).reason for event in found]


@pytest.mark.parametrize("ward", range(4))
def test_a_guardian_and_its_ward_die_together(ward: int) -> None:
    """The job fails, once, in one sentence that names the rank and who kept its mirror."""
    guardian = (ward + 1) % 4
    outcome = killed((ward, guardian), "fail")
    assert not whole(outcome), whole(outcome)
    (reason,) = reasons(outcome, say.JobFailed)
    assert outcome.ending == "failed"
    assert re.fullmatch(
        rf"nobody can take the place of m{ward} \(position {ward}\): the state of rank {ward} is on no other "
        rf"machine that lives: m{guardian}, which kept its mirror, is lost as well; [^.]*",
        reason,
    ), reason
    assert not reasons(outcome, say.JobHeld)


def test_a_job_that_holds_says_the_same() -> None:
    """It waits for somebody to look, and nobody is put on the seat."""
    outcome = killed((1, 2), "hold")
    assert not whole(outcome), whole(outcome)
    assert outcome.ending.startswith("held: nobody can take the place of m1 (position 1): the state of rank")
    assert not any(isinstance(e.event, say.SwitchCommitted) and e.event.kind != "start" for e in outcome.log)


@pytest.mark.parametrize("seats", [(0,), (3,), (0, 2), (1, 3)])
def test_machines_die_whose_guardians_live(seats: tuple[int, ...]) -> None:
    """One, or two that do not keep each other's state: each joiner gets its mirror, no step is repeated."""
    outcome = killed(seats, "fail")
    assert not whole(outcome), whole(outcome)
    assert (outcome.ending, outcome.switches["failure"]) == ("completed", 1)
    plans = [envelope.event for envelope in outcome.log if isinstance(envelope.event, say.PlanReady)]
    # Who is noticed later is in the plan that follows; the one that came about is the last.
    plan = [plan for plan in plans if plan.kind == "failure"][-1]
    told = [(item.rank, item.sources, item.mirrored) for item in plan.joiner_ranks]
    assert told == [(seat, (), (seat + 1) % 4) for seat in seats]
    assert {e.event.generation for e in outcome.log if isinstance(e.event, say.MachineLaunch)} == {1}


class Trusting(Roster):
    """Takes every mirror for whole, whoever died."""

    def mirror_of(self, rank: int, away: Collection[int] = ()) -> int | None:
        return (rank + self.slots) % (self.size * self.slots)


def trusting(core: type[Any]) -> Any:
    """A core with such a roster."""

    def make() -> Any:
        made = core()
        made.roster.__class__ = Trusting
        return made

    return make


def test_a_state_that_comes_from_nowhere_is_caught() -> None:
    """A planner that takes a new machine for the keeper of a mirror: the watch sees that it has none."""
    cores = {core.name: trusting(core) for core in (PlannerCore, StandbyCore)}
    outcome = killed((1, 2), "hold", cores)
    assert re.match(
        r"rank 1 joins epoch \d with its state after \d+ steps from m[45]", str(outcome.violation)
    )


@pytest.mark.parametrize("seed", [77])
def test_what_was_found_in_jobs_whose_state_is_mirrored(seed: int) -> None:
    """Of a seat that waits for a standby, the mirror is lost later: it is said, or machines come in vain."""
    outcome = simulate(draw(seed, state="mirror", on_exhausted="hold"))
    assert not whole(outcome), whole(outcome)
    assert "which kept its mirror, is lost as well" in outcome.ending
