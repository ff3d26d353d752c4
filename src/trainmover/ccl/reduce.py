"""How two partial results are combined: the reduce operations, on torch tensors.

Always called in the canonical order (left operand first) by the walks, so that a reduction has
the same bits on every rank, algorithm and topology.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainmover.errors import LinkError

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
"""``combine(left, right, out)``: writes the combination of two equal-shaped tensors to ``out``."""

_OPERATIONS: dict[str, Combine] = {
    "SUM": lambda left, right, out: torch.add(left, right, out=out),
    "AVG": lambda left, right, out: torch.add(left, right, out=out),
    "PREMUL_SUM": lambda left, right, out: torch.add(left, right, out=out),
    "PRODUCT": lambda left, right, out: torch.mul(left, right, out=out),
    "MIN": lambda left, right, out: torch.minimum(left, right, out=out),
    "MAX": lambda left, right, out: torch.maximum(left, right, out=out),
    "BAND": lambda left, right, out: torch.bitwise_and(left, right, out=out),
    "BOR": lambda left, right, out: torch.bitwise_or(left, right, out=out),
    "BXOR": lambda left, right, out: torch.bitwise_xor(left, right, out=out),
}

NAMES: tuple[str, ...] = tuple(_OPERATIONS)


def combine_of(name: str) -> Combine:
    """The combination for a reduce operation's name (``SUM``, ``AVG``, ...).

    Raises:
        LinkError: the operation is not supported.
    """
    try:
        return _OPERATIONS[name]
    except KeyError:
        raise LinkError(f"reduce operation {name} is not supported; use one of {', '.join(NAMES)}") from None


def finish(name: str, tensor: torch.Tensor, size: int) -> None:
    """What is left to do once all members are combined: AVG divides by their number."""
    if name == "AVG":
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.div_(size)
        else:
            tensor.div_(size, rounding_mode="trunc")
