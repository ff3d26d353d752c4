"""A parked standby gives back the memory of what it will receive, and gets it again without a trace."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from trainmover.training.residence import Residence
from trainmover.training.state import TrackedState


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Trained:
    """A model with buffers, tied weights and an optimizer that has stepped."""

    def __init__(self, width: int = 64) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width))
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.tracked = TrackedState()
        self.tracked.add("model", self.model)
        self.tracked.add("optimizer", self.optimizer)
        self.width = width
        self.step()

    def step(self) -> None:
        """One step; gradients stay."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8, self.width, generator=generator)
        self.optimizer.zero_grad(set_to_none=False)
        self.model(x).square().mean().backward()
        self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        """What will be received."""
        return [tensor for _, tensor in self.tracked.tensors()]


def test_released_and_received_is_as_if_never_released() -> None:
    """Objects, shapes and views are the same; with the bytes received, so is every later step."""
    trained, other = Trained(), Trained()
    residence = Residence()
    names = [name for name, _ in trained.tracked.tensors()]
    view = trained.model[0].weight.view(-1)
    freed = residence.release(trained.tensors(), trained.tracked.gradients())
    assert residence.released
    assert freed > sum(tensor.nbytes for tensor in other.tensors()) * 0.9
    assert trained.model[0].weight.untyped_storage().nbytes() == 0
    assert trained.model[0].weight.grad.untyped_storage().nbytes() == 0
    assert [name for name, _ in trained.tracked.tensors()] == names
    assert trained.tracked.schema() == other.tracked.schema()
    residence.materialise()
    assert not residence.released
    assert all(not gradient.any() for gradient in trained.tracked.gradients())
    for mine, theirs in zip(trained.tensors(), other.tensors(), strict=True):
        mine.copy_(theirs)
    assert torch.equal(view, other.model[0].weight.view(-1))
    assert trained.tracked.digest() == other.tracked.digest()
    trained.step()
    other.step()
    assert trained.tracked.digest() == other.tracked.digest()


def test_the_memory_is_the_systems_again() -> None:
    """What is given back leaves the process."""
    trained = Trained(width=2048)
    size = sum(tensor.nbytes for tensor in trained.tensors())
    before = resident()
    Residence().release(trained.tensors(), trained.tracked.gradients())
    assert before - resident() > 0.8 * size


def test_what_others_use_too_stays() -> None:
    """A tracked tensor that is a part of something larger, or that cannot be resized, keeps its memory."""
    whole, given = torch.ones(100), torch.frombuffer(bytearray(400), dtype=torch.float32)
    both = torch.ones(100)
    residence = Residence()
    assert residence.release([whole[:50], given, both[:50], both[50:]], []) == both.nbytes
    assert whole.sum() == 100
    residence.materialise()
    assert both.shape == (100,)


@pytest.mark.parametrize("times", [0, 2])
def test_materialising_what_is_there_changes_nothing(times: int) -> None:
    """A switch that is tried again, and a standby that kept its memory, ask for nothing."""
    tensor, residence = torch.arange(10.0), Residence()
    if times:
        residence.release([tensor], [])
        residence.materialise()
        tensor.copy_(torch.arange(10.0))
    residence.materialise()
    assert tensor.tolist() == list(range(10))
