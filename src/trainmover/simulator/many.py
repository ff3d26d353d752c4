"""Many runs: several processes, results in the order of the setups.

What lives here: how runs are spread over processors.  What never lives here: a run.

A run keeps nothing from the one before it, so processes change nothing but the time that it takes.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainmover.simulator.run import Outcome, simulate
from trainmover.simulator.setup import Setup

CHUNK = 4
"""Setups that a process is given at a time."""


def simulate_many(setups: Sequence[Setup], workers: int = 1) -> Iterator[Outcome]:
    """Run setups; outcomes come without their logs, in the order of the setups.

    Args:
        setups: what is simulated.
        workers: processes.
    """
    if workers <= 1 or len(setups) <= 1:
        yield from map(_quietly, setups)
        return
    # Started afresh: a fork would copy threads' locks of whoever calls.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(setups))) as pool:
        yield from pool.imap(_quietly, setups, chunksize=CHUNK)


def _quietly(setup: Setup) -> Outcome:
    """One run.  What services would log is in the story of a violation."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return replace(simulate(setup), log=())
    finally:
        logging.disable(before)
