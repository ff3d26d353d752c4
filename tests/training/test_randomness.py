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


DRAWS = {
    "python": random.random,
    "python, the first of a pair": lambda: random.gauss(0, 1),
    "python, the second of a pair": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy, the first of a pair": np.random.randn,
    "numpy, the second of a pair": np.random.randn,
    "numpy, another seed": lambda: np.random.seed(3),
    "numpy, the same seed": lambda: np.random.seed(3),
    "numpy, put back": lambda: np.random.set_state(np.random.get_state()),
    "python, another seed": lambda: random.seed(3),
}


def test_a_capture_sees_every_change() -> None:
    """Whatever was drawn, also half a pair that moves no generator: the capture is what they say."""
    random.seed(5)
    np.random.seed(5)
    for _ in range(3):
        for what, act in DRAWS.items():
            randomness.capture()
            act()
            found = randomness.capture()
            assert found["python"] == randomness._read_python(), what
            assert found["numpy"] == randomness._read_numpy(), what


def test_half_a_pair_that_is_put_back_is_seen() -> None:
    """NumPy's cached half comes back while the words of its generator stay as they are."""
    np.random.seed(5)
    np.random.randn()
    half = np.random.get_state()
    np.random.randn()
    whole = randomness.capture()["numpy"]
    np.random.set_state(half)
    found = randomness.capture()["numpy"]
    assert found != whole
    assert found == randomness._read_numpy()


def test_another_bit_generator_is_seen() -> None:
    """A process may give NumPy another source of bits, of the same kind or of another one."""
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.MT19937(7))
        assert randomness.capture()["numpy"] == randomness._read_numpy()
    finally:
        np.random.set_bit_generator(before)
    assert randomness.capture()["numpy"] == randomness._read_numpy()
