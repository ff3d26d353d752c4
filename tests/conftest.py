"""Long suites: which of their cases run every time; and which tests may run beside each other.

A test marked ``long(every=N)`` has many cases that differ little.  Of these the first and every N-th
after it run each time, always the same ones; with ``every=0`` none does.  ``--long`` (``make test-long``)
runs all.

With pytest-xdist every file is a room of its own that one worker has, and all of ``tests/cluster`` is one
room: whole jobs, each of which wants the computer for itself, never run beside each other.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that runs everything."""
    parser.addoption("--long", action="store_true", help="run every case of the tests that are marked long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of long tests that have no turn; a test that is asked for by its id has one."""
    if config.getoption("--long") or any("::" in argument for argument in config.args):
        return
    seen: dict[str, int] = defaultdict(int)
    kept, left_out = [], []
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None:
            kept.append(item)
            continue
        test = item.nodeid.partition("[")[0]
        every = mark.kwargs["every"]
        turn = every > 0 and seen[test] % every == 0
        seen[test] += 1
        (kept if turn else left_out).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


class Rooms(LoadFileScheduling):
    """Whole jobs in one room, every other file in its own."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/cluster" if nodeid.startswith("tests/cluster/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Rooms:
    """What xdist asks for who runs what."""
    return Rooms(config, log)
