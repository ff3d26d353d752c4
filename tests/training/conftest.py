"""The fixture ``cluster``: jobs in the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.ccl.conftest import engines
from tests.ccl.worlds import wait_until
from tests.training.clusters import Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeCluster]:
    """Makes clusters in epoch 1; all end with the test."""
    for name in ("RANK", "ROLE_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    made: list[Cluster] = []
    before = engines()
    with TemporaryDirectory() as folder:

        def make(machines: int = 3, steps: int = 6, ranks_per_machine: int = 1) -> Cluster:
            place = Path(folder) / str(len(made))
            place.mkdir()
            made.append(Cluster(place, machines, steps, ranks_per_machine))
            return made[-1]

        yield make
        for item in made:
            item.end()
        wait_until(lambda: engines() <= before, "engine threads end")
