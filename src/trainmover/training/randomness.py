"""Every random generator a step may use, as one plain value that can be kept and put back.

torch (CPU, and CUDA devices where there are any), Python's ``random`` and NumPy's global
generator.  Values hold only bytes and numbers: they travel between machines and are never
unpickled.
"""

from __future__ import annotations

import array
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The state of all generators."""
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": [version, array.array("Q", words).tobytes(), gauss],
    }
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state(legacy=True)
        found["numpy"] = [name, keys.astype("<u4").tobytes(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available():
        found["cuda"] = [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return found


def restore(state: dict[str, Any]) -> None:
    """Put all generators back."""
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array.array("Q", words)), gauss))
    if "numpy" in state and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.frombuffer(keys, "<u4"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_bytes_tensor(item) for item in state["cuda"]])


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
