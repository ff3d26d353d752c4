"""Seeds: what goes wrong in a thousand runs breaks no promise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from trainmover.events import catalogue as say
from trainmover.simulator import Outcome, draw, simulate, simulate_many
from trainmover.simulator.report import violation_lines

SEEDS = 1000
BLOCK = 100


def whole(outcome: Outcome) -> str:
    """Nothing, or all there is to know of a violation."""
    return "\n".join(violation_lines(outcome)) if outcome.violation is not None else ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_a_thousand_small_clusters(first: int) -> None:
    """Small clusters, a few faults each: every run completes, or is held or fails for a reason."""
    setups = [draw(seed) for seed in range(first, first + BLOCK)]
    endings: Counter[str] = Counter()
    for outcome in simulate_many(setups):
        assert not whole(outcome), whole(outcome)
        endings[outcome.ending.partition(":")[0]] += 1
    assert endings["completed"] > 0.7 * BLOCK, endings
    assert endings["forgotten"] <= 0.03 * BLOCK, endings


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long(every=2)
@pytest.mark.parametrize("first", range(0, 200, BLOCK))
def test_jobs_that_shrink(first: int) -> None:
    """The same small clusters, few spares: replicas pause and come back, and nothing is promised less."""
    setups = [
        draw(seed, on_exhausted="shrink", standbys=seed % 2, machines=4 if seed % 3 else None)
        for seed in range(first, first + BLOCK)
    ]
    endings: Counter[str] = Counter()
    switches: Counter[str] = Counter()
    for outcome in simulate_many(setups):
        assert not whole(outcome), whole(outcome)
        endings[outcome.ending.partition(":")[0]] += 1
        switches.update(outcome.switches)
    assert endings["completed"] > 0.7 * BLOCK, endings
    assert min(switches["shrink"], switches["grow"]) > 0.1 * BLOCK, switches


def test_a_machine_that_nobody_had_heard_of_is_started_again() -> None:
    """Killed before it had joined, while the bus was away: nothing in the log tells of it."""
    outcome = simulate(draw(6496))
    assert not whole(outcome), whole(outcome)
    assert outcome.ending == "completed"


@pytest.mark.parametrize("seed", [1773, 1975, 4799])
def test_seeds_that_went_wrong(seed: int) -> None:
    """An answer before its question, a description after the end, and a job whose machines all died unheard.

    Health waited for ever for an answer that the log had before what had made it ask; the switcher took
    stages for replicas that differ; and the simulated operator started nothing again.
    """
    outcome = simulate(draw(seed))
    assert not whole(outcome), whole(outcome)
    assert outcome.ending == "completed"


def test_a_switcher_that_lost_its_journal_hears_what_it_had_said() -> None:
    """It died in a stall of the log; others had kept its word, and no plan was refused for ever."""
    outcome = simulate(draw(101804))
    assert not whole(outcome), whole(outcome)
    assert outcome.forgetful
    assert outcome.ending == "completed"
    assert sum(isinstance(one.event, say.PlanReady) for one in outcome.log) < 10


def test_a_move_whose_replica_pauses_ends() -> None:
    """Who is asked to move may be in a replica that another machine's loss makes pause: that is told."""
    outcome = simulate(draw(23518, on_exhausted="shrink"))
    assert not whole(outcome), whole(outcome)
    (refused,) = [one.event for one in outcome.log if isinstance(one.event, say.MoveRefused)]
    assert (refused.machine, refused.reason) == (
        "m3",
        "its replica pauses, so nobody trains at position 3",
    )


def test_a_replica_that_still_records_does_not_pause() -> None:
    """Else no spare could ever be warm in a role, and the replica never come back."""
    outcome = simulate(draw(22215, on_exhausted="shrink"))
    assert not whole(outcome), whole(outcome)
    assert outcome.ending == "completed"
    assert outcome.switches["shrink"] == outcome.switches["grow"] == 1


@pytest.mark.parametrize("roles", [1, 4])
def test_a_long_run(roles: int) -> None:
    """A job that runs for a quarter of an hour and has a fault every twenty seconds."""
    outcome = simulate(draw(7, machines=8, standbys=2, hours=0.25, roles=roles))
    assert not whole(outcome), whole(outcome)
    assert outcome.faults > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    ("seed", "machines", "roles"), [(1, 1000, 1), (2, 600, 16), (3, 2000, 1), (4, 3000, 8)]
)
def test_thousands_of_machines(seed: int, machines: int, roles: int) -> None:
    """The same with thousands of machines."""
    outcome = simulate(draw(seed, machines=machines, standbys=4, roles=roles))
    assert not whole(outcome), whole(outcome)


def test_a_seed_reproduces_its_run_byte_by_byte() -> None:
    """Two processes in which strings hash differently make the same logs."""
    code = (
        "from trainmover.simulator import draw, simulate\n"
        "print([simulate(draw(seed)).digest for seed in (1, 9, 20)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(digests) == 1
    assert len(set(next(iter(digests)).split(","))) == 3, "other seeds make other runs"


@pytest.mark.parametrize(
    ("seed", "machines", "standbys", "roles"),
    [(1108, 4, 0, None), (1136, 4, 0, None), (1197, 4, 0, None), (5204, 6, 1, 3)],
)
def test_what_was_found_in_jobs_that_shrink(
    seed: int, machines: int, standbys: int, roles: int | None
) -> None:
    """A leaver that dies before it has left is no spare; a job that held and went on may hold again."""
    outcome = simulate(draw(seed, machines=machines, standbys=standbys, roles=roles, on_exhausted="shrink"))
    assert not whole(outcome), whole(outcome)
