"""Giving back the memory of what a parked standby will receive anyway, and getting it again.

A spare that is warm in several roles needs the tensors of one.  The others' storages are shrunk to
nothing: parameters, buffers, optimizer state and gradients keep their identity, shapes and places in the
optimizer, so that compiled code, hooks and views of the whole stay valid; only the bytes are gone until
:meth:`Residence.materialise`.  What else uses a storage (an untracked view) is unknown, so only storages
that tracked tensors fill completely are given back.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable

import torch


class Residence:
    """The storages of a rank's tracked tensors and gradients."""

    def __init__(self) -> None:
        self._given_back: list[tuple[torch.UntypedStorage, int, bool]] = []

    @property
    def released(self) -> bool:
        """True while the memory is given back."""
        return bool(self._given_back)

    def release(self, tensors: Iterable[torch.Tensor], gradients: Iterable[torch.Tensor]) -> int:
        """Give back the memory of tensors that will be received, and of gradients; returns its bytes."""
        filled: dict[int, int] = {}
        storages: dict[int, tuple[torch.UntypedStorage, bool]] = {}
        spans: set[tuple[int, int, int]] = set()
        for tensor, zero in [*((t, False) for t in tensors), *((g, True) for g in gradients)]:
            storage = tensor.untyped_storage()
            key = storage._cdata
            span = (key, int(tensor.storage_offset()) * tensor.element_size(), tensor.nbytes)
            if span not in spans:
                spans.add(span)
                filled[key] = filled.get(key, 0) + tensor.nbytes
            storages[key] = storage, zero
        total = 0
        for key, (storage, zero) in storages.items():
            size = storage.nbytes()
            if size and size <= filled[key] and storage.resizable():
                self._given_back.append((storage, size, zero))
                storage.resize_(0)
                total += size
        _trim()
        return total

    def materialise(self) -> None:
        """Get the memory again. Tensors have any content, since all will be received; gradients are zero."""
        for storage, size, zero in self._given_back:
            storage.resize_(size)
            if zero:
                torch.empty(0, dtype=torch.uint8).set_(storage).zero_()
        self._given_back = []


def _trim() -> None:
    """Let the allocators give freed memory back to the system and the device, where they have a way to."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
