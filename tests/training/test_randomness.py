"""Every generator a step may draw from can be kept, sent and put back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from trainmover.training import plainly, randomness


def draw() -> list[float]:
    """Numbers from all generators (a normal one leaves half a pair behind in two of them)."""
    return [
        float(torch.rand(())),
        float(torch.randn(())),
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
    ]


@pytest.mark.parametrize("before", range(3))
def test_the_same_numbers_come_again(before: int) -> None:
    """After a restore every generator goes on from where it was kept, cached halves included."""
    for _ in range(before):
        draw()
    kept = randomness.capture()
    first = draw() + draw()
    randomness.restore(kept)
    assert draw() + draw() == first


def test_it_travels_as_plain_data() -> None:
    """The state goes over the wire and is as good as new."""
    packed = plainly.pack(randomness.capture(), "random")
    first = draw()
    randomness.restore(plainly.unpack(packed))
    assert draw() == first


def test_capturing_draws_nothing() -> None:
    """Two captures in a row are equal."""
    assert randomness.capture() == randomness.capture()
