"""Long suites: which of their cases run every time; and which tests may run beside each other.

A test marked ``long(every=N)`` has many cases that differ little.  Of these the first and every N-th
after it run each time, always the same ones; with ``every=0`` none does.  ``--long`` (``make test-long``)
runs all.  So it is with properties (Hypothesis): where a test says no number of its own, a usual run tries
fewer examples than Hypothesis would by itself.

With pytest-xdist every file is a room of its own that one worker has, and all of ``tests/cluster`` is one
room: whole jobs, each of which wants the computer for itself, never run beside each other.  That room takes
longest by far, so it is begun first, and its worker takes of the others when it is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.conformance.ranks import Ranks

CLUSTER = "tests/cluster/"
EXAMPLES = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that runs everything."""
    parser.addoption("--long", action="store_true", help="run every case of the tests that are marked long")


def pytest_configure(config: pytest.Config) -> None:
    """How many examples a property is tried with, unless it says so itself."""
    settings.register_profile("some", max_examples=EXAMPLES)
    if not config.getoption("--long"):
        settings.load_profile("some")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of long tests that have no turn; a test that is asked for by its id has one."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(CLUSTER))
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
        return CLUSTER if nodeid.startswith(CLUSTER) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Rooms:
    """What xdist asks for who runs what."""
    return Rooms(config, log)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Whoever runs a program on several ranks: forked from one process, for all files of a worker."""
    from tests.conformance.ranks import Ranks

    made = Ranks()
    yield made
    made.close()
