"""Streams of batches: every sample exactly once, wherever one goes back to, with workers and shuffling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover.errors import ConfigError
from trainmover.training import plainly, randomness
from trainmover.training.data import DataStream

torchdata = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

SIZE, BATCH = 22, 4
PASS = 6
"""Batches in one pass."""


class Numbers(Dataset[int]):
    """Samples that are their own number."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


def stream(kind: str, workers: int) -> DataStream:
    """A stream as a fresh process makes it."""
    torch.manual_seed(3)
    more: dict[str, Any] = {"shuffle": True}
    if kind == "generator":
        more["generator"] = torch.Generator().manual_seed(9)
    if kind == "sampler":
        more = {"sampler": DistributedSampler(Numbers(), num_replicas=1, rank=0, seed=5)}
    loader = torchdata.StatefulDataLoader(Numbers(), batch_size=BATCH, num_workers=workers, **more)
    return DataStream(loader)


def place(data: DataStream) -> bytes:
    """Where a stream and the generators are, as it travels between machines."""
    return plainly.pack({"data": data.state_dict(), "random": randomness.capture()}, "test")


def go_to(data: DataStream, where: bytes) -> None:
    """As a rank does it: the things, then the generators."""
    values = plainly.unpack(where)
    data.load_state_dict(values["data"])
    randomness.restore(values["random"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["global", "generator", "sampler"])
def test_every_sample_once_wherever_one_goes_back_to(kind: str, workers: int) -> None:
    """Going back, in this process or in a fresh one, before, in and at the end of a pass, changes nothing."""
    data = stream(kind, workers)
    places, batches = [], []
    for _ in range(4 * PASS):
        places.append(place(data))
        batches.append(next(data).tolist())
    for number in range(4):
        one = [sample for batch in batches[number * PASS : (number + 1) * PASS] for sample in batch]
        assert sorted(one) == list(range(SIZE))
    assert batches[:PASS] != batches[PASS : 2 * PASS]
    other = stream(kind, workers)
    torch.manual_seed(99)
    for index in (0, 1, 4, PASS, PASS + 1, 2 * PASS - 1) if workers == 0 else (0, 4, PASS):
        for tried in (data, other):
            go_to(tried, places[index])
            assert [next(tried).tolist() for _ in range(PASS + 2)] == batches[index : index + PASS + 2]


def test_a_step_that_is_begun_again_has_the_same_batch() -> None:
    """Back by one batch, again and again."""
    data = stream("global", 0)
    seen = []
    for number in range(2 * PASS):
        where = place(data)
        tries = []
        for _ in range(1 + number % 3):
            go_to(data, where)
            tries.append(next(data).tolist())
        assert all(batch == tries[0] for batch in tries)
        seen += tries[0]
    assert sorted(seen[:SIZE]) == sorted(seen[SIZE:]) == list(range(SIZE))


def test_loaders_that_cannot_say_where_they_are() -> None:
    """Said at once, and so is one that has no batches."""
    with pytest.raises(ConfigError, match="StatefulDataLoader"):
        DataStream(DataLoader(Numbers()))
    empty = torchdata.StatefulDataLoader(Numbers(), batch_size=SIZE + 1, drop_last=True)
    with pytest.raises(ConfigError, match="no batches"):
        next(DataStream(empty))
