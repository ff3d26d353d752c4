"""A setup: what is simulated, drawn from a seed.

What lives here: the figures of one run, and how a seed becomes figures.  What never lives here: the
run.

Sizes can be asked for; whatever is not is drawn.  Each part of the simulation has its own generator
(:meth:`Setup.random`), so that one more draw in one part does not change the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

LARGE = 256
"""Seats from which on a drawn run is kept short."""

BEGIN = 1_800_000_000.0
"""Unix seconds at which every run begins."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated.

    Attributes:
        seed: decides everything that is left open here.
        machines: seats of the job.
        slots: ranks per machine.
        standbys: spare machines that the job asks for.
        roles: pipeline stages; the machines of a stage are one role.
        fault_seconds: faults happen before this virtual second.
        faults: number of faults.
        step_seconds: what a training step takes.
        start_seconds: what a rank process takes to be up.
        warm_seconds: what a spare takes to be warm in a role.
        memory: as in ``job.submitted``.
        on_exhausted: as in ``job.submitted``.
        supply: probability that a machine that is asked for comes.
        total_steps: steps of the job; 0: as many as it takes.
        latency: usual upper end of a delivery's delay, seconds.
        loss: probability that a live delivery to a feed is lost (the log has it).
        state: as in ``job.submitted``; with ``mirror`` no two ranks have the same state.
    """

    seed: int
    machines: int
    slots: int
    standbys: int
    roles: int
    fault_seconds: float
    faults: int
    step_seconds: float
    start_seconds: float
    warm_seconds: float
    memory: str
    on_exhausted: str
    supply: float
    total_steps: int
    latency: float
    loss: float
    state: str = "checkpoint"

    def random(self, part: str) -> random.Random:
        """The generator of one part of the simulation."""
        return random.Random(f"{self.seed}/{part}")

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.machines} machines x {self.slots}, {self.standbys} standbys, "
            f"{self.roles} roles, {self.faults} faults in {self.fault_seconds:.0f} s"
        )


def draw(
    seed: int,
    *,
    machines: int | None = None,
    standbys: int | None = None,
    hours: float | None = None,
    roles: int | None = None,
    on_exhausted: str | None = None,
    state: str | None = None,
) -> Setup:
    """The setup of a seed; what is given is taken as it is.

    Args:
        seed: the seed.
        machines: seats of the job.
        standbys: spare machines.
        hours: virtual hours in which faults happen; one about every 20 s for a small job.
        roles: pipeline stages, at most as many as machines.
        on_exhausted: what becomes of a job without a spare; never drawn is ``shrink``.
        state: what becomes of state without a replica; never drawn is ``mirror``.
    """
    chance = random.Random(f"{seed}/setup")
    drawn_roles = chance.choice([1, 1, 1, 2, 2, 3])
    wanted = max(1, roles if roles is not None else drawn_roles)
    least = wanted if roles is not None and machines is None else 2
    size = machines if machines is not None else max(least, chance.choice([2, 3, 3, 4, 4, 6]))
    seconds = chance.choice([15.0, 25.0, 40.0])
    faults = chance.choice([1, 2, 3, 4, 5, 6, 7, 8, 12])
    if hours is not None:
        seconds = hours * 3600.0
        faults = max(1, round(seconds / 20.0))
    step = chance.choice([0.1, 0.3, 0.3, 1.0])
    if size >= LARGE and hours is None:
        seconds, step = 20.0, 0.5
    steps = round(seconds / step * chance.uniform(0.3, 1.0))
    drawn = Setup(
        seed=seed,
        machines=size,
        slots=chance.choice([1, 1, 1, 2]),
        standbys=standbys if standbys is not None else chance.choice([0, 1, 1, 1, 2, 2, 3]),
        roles=min(wanted, size),
        fault_seconds=seconds,
        faults=faults,
        step_seconds=step,
        start_seconds=chance.choice([0.2, 0.5, 2.0]),
        warm_seconds=chance.choice([0.3, 1.0, 4.0]),
        memory=chance.choice(["resident", "resident", "sequential"]),
        on_exhausted=chance.choice(["hold", "hold", "hold", "hold", "fail"]) if hours is None else "hold",
        supply=chance.choice([1.0, 1.0, 0.8]),
        total_steps=chance.choice([0, 0, 0, steps]) if hours is None and size < LARGE else 0,
        latency=chance.choice([0.002, 0.002, 0.01, 0.1]),
        loss=chance.choice([0.0, 0.0, 0.01, 0.05]),
    )
    return replace(drawn, on_exhausted=on_exhausted or drawn.on_exhausted, state=state or drawn.state)
