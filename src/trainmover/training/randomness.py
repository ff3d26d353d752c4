"""Every random generator a step may use, as one plain value that can be kept and put back.

torch (CPU, and CUDA devices where there are any), Python's ``random`` and NumPy's global
generator.  Values hold only bytes and numbers: they travel between machines and are never
unpickled.

Every vote captures all of them, and most steps draw from torch's alone.  Asking NumPy for its state
takes 40 microseconds, so it is only asked when the memory that holds the state has changed
(:class:`Watched`): the generator's own object, and what its bit generator points to.
"""

from __future__ import annotations

import array
import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

HEAD_BYTES = object.__basicsize__
"""What every object begins with: its reference count, which changes without it, and its type."""

MT19937_BYTES = 625 * 4
"""The state of NumPy's default bit generator: 624 words and a position."""


class Watched:
    """A generator's state, read again only when the memory that holds it has changed.

    Args:
        read: reads the state.
        look: the bytes of that memory, or None where they are not known: then it is read each time.
    """

    def __init__(self, read: Callable[[], Any], look: Callable[[], Any]) -> None:
        self._read, self._look = read, look
        self._seen: Any = None
        self._state: Any = None

    def state(self) -> Any:
        """The state as plain data. The same object as before when it is the same state."""
        seen = self._look()
        if seen is None or seen != self._seen:
            self._state, self._seen = self._read(), seen
        return self._state


def _content(thing: Any) -> bytes:
    """An object's own memory."""
    return ctypes.string_at(id(thing) + HEAD_BYTES, type(thing).__basicsize__ - HEAD_BYTES)


def _read_python() -> list[Any]:
    version, words, gauss = random.getstate()
    return [version, array.array("Q", words).tobytes(), gauss]


def _look_at_python() -> tuple[Any, ...] | None:
    generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return None
    return id(generator), _content(generator), generator.__dict__["gauss_next"]


def _read_numpy() -> list[Any]:
    name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state(legacy=True)
    return [name, keys.astype("<u4").tobytes(), int(position), int(has_gauss), float(cached)]


def _look_at_numpy() -> tuple[Any, ...] | None:
    numpy_random = sys.modules["numpy"].random
    generator = numpy_random.get_state.__self__
    source: Any = getattr(generator, "_bit_generator", None)
    if sys.implementation.name != "cpython" or type(source) is not numpy_random.MT19937:
        return None
    words = ctypes.string_at(source.ctypes.state_address, MT19937_BYTES)
    return id(generator), id(source), _content(generator), words


_python = Watched(_read_python, _look_at_python)
_numpy = Watched(_read_numpy, _look_at_numpy)


def capture() -> dict[str, Any]:
    """The state of all generators."""
    found: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes(), "python": _python.state()}
    if "numpy" in sys.modules:
        found["numpy"] = _numpy.state()
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
