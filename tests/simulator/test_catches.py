"""The simulator itself: a core with a planted bug is caught, so its checks can fail."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from trainmover.events import catalogue as say
from trainmover.events.bus import ProbeAnswer
from trainmover.services.core import Core, noted
from trainmover.services.health import HealthCore
from trainmover.services.planner import PlannerCore
from trainmover.services.pool import Pool
from trainmover.services.spares import Spare
from trainmover.services.standby import StandbyCore
from trainmover.services.switcher import SwitcherCore
from trainmover.simulator import Outcome, draw, simulate
from trainmover.simulator.port import SimulatedBus
from trainmover.simulator.report import command, line, summary, violation_lines

SEEDS = 60


class SameEpoch(PlannerCore):
    """Names an epoch that it has named before."""

    def _epoch(self) -> int:
        return max(self.roster.epoch, 1)


class NoFence(SwitcherCore):
    """Prepares and commits whoever is dead."""

    def _dead(self, plan: say.PlanReady) -> list[str]:
        return []


class Deaf(HealthCore):
    """Does not hear that a lease expired."""

    HEARS: ClassVar[Any] = {**HealthCore.HEARS, say.LeaseExpired: noted}


class Twice(StandbyCore):
    """Has a spare for sale that is sold."""

    def _assign(self, gap: Any, spare: Any) -> None:
        super()._assign(gap, spare)
        spare.state = Spare.PARKED


class LuckyPool(Pool):
    dice = random.Random(1)

    def idle(self) -> Any:
        pool = list(super().idle())
        self.dice.shuffle(pool)
        return pool


class Lucky(StandbyCore):
    """Throws dice."""

    pool_class = LuckyPool


class MeanPool(Pool):
    def replenish(self) -> bool:
        return False


class Mean(StandbyCore):
    """Never asks for another spare."""

    pool_class = MeanPool


class Fragile(PlannerCore):
    """Raises when a spare's rank is up."""

    def _rank(self, event: say.RankStarted) -> None:
        raise KeyError(event.machine)

    HEARS: ClassVar[Any] = {**PlannerCore.HEARS, say.RankStarted: _rank}


def first_violation(core: type[Any], seeds: int = SEEDS) -> Outcome:
    """The first run that shows what is wrong with a core."""
    cores: dict[str, Callable[[], Core]] = {core.name: core}
    for seed in range(seeds):
        outcome = simulate(draw(seed), cores)
        if outcome.violation is not None:
            return outcome
    pytest.fail(f"{core.__name__} was not caught in {seeds} seeds")


@pytest.mark.parametrize(
    ("core", "words"),
    [
        (SameEpoch, ("planned twice", "does not follow")),
        (NoFence, ("which it knows to be over",)),
        (Deaf, ("no rest",)),
        (Twice, ("is assigned to",)),
        # Born again from the log, it throws other dice and has another history than it lived.
        (Lucky, ("the log replays with", "no rest")),
        (Mean, ("standbys are parked",)),
        (Fragile, ("the core of planner raised KeyError",)),
    ],
)
def test_a_planted_bug_is_caught(core: type[Any], words: tuple[str, ...]) -> None:
    """Each kind of bug is caught by the check that is there for it."""
    outcome = first_violation(core)
    assert any(word in str(outcome.violation) for word in words), outcome.violation


def test_taking_the_silence_of_the_bus_for_that_of_machines_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watcher that does not ask whether the bus carries anything blames machines that are well."""

    async def carries(self: SimulatedBus, limit: float) -> bool:
        return True

    async def probe(self: SimulatedBus, machine: str, limit: float) -> ProbeAnswer:
        await asyncio.sleep(limit)
        return "silent"

    monkeypatch.setattr(SimulatedBus, "echo", carries)
    monkeypatch.setattr(SimulatedBus, "probe", probe)
    outcomes = (simulate(draw(seed)) for seed in range(SEEDS))
    assert any("has been well" in str(outcome.violation) for outcome in outcomes)


def test_a_violation_tells_all_there_is_to_know() -> None:
    """The report has the seed, the time, the faults, the last events and the command that repeats it."""
    outcome = first_violation(NoFence)
    text = "\n".join(violation_lines(outcome, {"machines": None, "roles": 2}))
    assert f"VIOLATION after {outcome.seconds:.3f} virtual seconds" in text
    assert f"seed {outcome.setup.seed}:" in text
    assert "***" in text
    assert re.search(r"\n +\d+\.\d{3}  machine\.failed machine=m\d .* \[health\]\n", text)
    assert text.endswith(f"again: trainmover simulate --seed {outcome.setup.seed} --roles 2")
    assert command(outcome.setup) == f"trainmover simulate --seed {outcome.setup.seed}"


def test_runs_are_summed_up() -> None:
    """A line about a run, and one about several."""
    outcomes = [simulate(draw(seed)) for seed in (0, 1)]
    assert line(outcomes[0]).startswith("seed 0:")
    assert summary(outcomes).startswith("2 runs (")
