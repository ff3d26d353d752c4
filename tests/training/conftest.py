"""The fixtures ``cluster`` and ``mesh``: jobs in the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.ccl.conftest import engines
from tests.training.clusters import Cluster
from tests.training.meshes import MeshCluster
from tests.waiting import wait_until

MakeCluster = Callable[..., Cluster]
MakeMesh = Callable[..., MeshCluster]


@contextmanager
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, list[Cluster]]]:
    """A folder for clusters and the list of them; all end, and leave no thread, with the test."""
    for name in ("RANK", "ROLE_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    made: list[Cluster] = []
    before = engines()
    with TemporaryDirectory() as folder:
        yield Path(folder), made
        for item in made:
            item.end()
        wait_until(lambda: engines() <= before, "engine threads end")


def place(folder: Path, made: list[Cluster]) -> Path:
    """The next cluster's own folder."""
    found = folder / str(len(made))
    found.mkdir()
    return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeCluster]:
    """Makes clusters in epoch 0."""
    with making(monkeypatch) as (folder, made):

        def make(
            machines: int = 3, steps: int = 6, ranks_per_machine: int = 1, faults: Sequence[str] = ()
        ) -> Cluster:
            made.append(Cluster(place(folder, made), machines, steps, ranks_per_machine, faults))
            return made[-1]

        yield make


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeMesh]:
    """Makes clusters with data, tensor and pipeline groups, in epoch 1."""
    with making(monkeypatch) as (folder, made):

        def make(steps: int = 8, replicas: int = 2, faults: Sequence[str] = ()) -> MeshCluster:
            found = MeshCluster(place(folder, made), steps, replicas, faults)
            made.append(found)
            found.switch("start")
            return found

        yield make
