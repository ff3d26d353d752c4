"""Both roads into torch under ``torch.distributed``, in three real processes, compared with Gloo."""

from __future__ import annotations

import os
import traceback
from typing import Any

import pytest
import torch

from tests.ccl import api, api_beyond, checks, side_by_side
from tests.ccl.test_standalone import meet, spawn
from trainmover.ccl.backend import ROAD
from trainmover.ccl.plugin import backend_road

SIZE = 3
ROADS = ["group", *(["backend"] if backend_road() else [])]
NAMES = [*checks.CHECKS, *api.LIKE_GLOO, *api_beyond.BEYOND]

# Torch passes only wait and get_future on to a Python Work behind a backend, and no way for its newest calls.
NOT_ON_BACKEND = (
    "async_calls",
    "gathering_into_one_tensor",
    "messages_from_anybody",
    "messages_from_anybody_in_a_group",
    "split_groups",
    "works_tell",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def everything(rank: int, size: int, folder: str) -> dict[str, dict[str, str]]:
    """What differs from Gloo, by road and check; empty when nothing does."""
    import torch.distributed as dist

    alike = {**checks.CHECKS, **api.LIKE_GLOO}
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    expected = {name: attempt(check, rank, size) for name, check in alike.items()}
    dist.destroy_process_group()
    report: dict[str, dict[str, str]] = {}
    for road in ROADS:
        os.environ[ROAD] = road
        meet(folder, rank, size, road)
        report[road] = {
            name: difference(check, rank, size, expected.get(name))
            for name, check in {**alike, **api_beyond.BEYOND}.items()
            if road == "group" or name not in NOT_ON_BACKEND
        }
        dist.destroy_process_group()
    return report


def attempt(check: api.Check, rank: int, size: int) -> Any:
    """A check's result, or what went wrong."""
    try:
        return check(rank, size)
    except Exception:
        return traceback.format_exc()


def difference(check: api.Check, rank: int, size: int, expected: Any) -> str:
    """How a check's result differs from the expected one, or from the one it names itself."""
    found = attempt(check, rank, size)
    if isinstance(found, str):
        return found
    if check.__name__ in api_beyond.BEYOND:
        found, expected = found
    return "" if side_by_side.same(found, expected) else f"{found!r:.700} is not {expected!r:.1400}"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, str]]]:
    """Each rank's report."""
    return spawn(everything, SIZE, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize(
    ("road", "name"),
    [(road, name) for road in ROADS for name in NAMES if road == "group" or name not in NOT_ON_BACKEND],
)
def test_it_does_what_gloo_does(reports: list[dict[str, dict[str, str]]], road: str, name: str) -> None:
    """On every road every operation gives every rank the same as Gloo, or what it promises beyond it."""
    for rank, report in enumerate(reports):
        assert report[road][name] == "", f"rank {rank}"


def test_the_backend_road_is_there_when_torch_has_it() -> None:
    """Python can write a Backend since torch 2.14."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    assert backend_road() == (version >= (2, 14))
