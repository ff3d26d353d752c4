"""How two partial results are combined: the reduce operations, on torch tensors.

Always called in the canonical order (left operand first) by the walks, so that a reduction has
the same bits on every rank, algorithm and topology.  That takes operations whose result for an element
does not depend on where in a tensor it lies.  torch's product of complex numbers and its minimum and
maximum do not keep to that (the vector code and the code for the rest of a tensor round differently,
and choose differently between 0.0 and -0.0), so these are put together from ones that do.  Only the
bits of a NaN are left to chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainmover.errors import LinkError

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
"""``combine(left, right, out)``: writes the combination of two equal-shaped tensors to ``out``."""


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    if not left.is_complex():
        torch.mul(left, right, out=out)
        return
    a, b = torch.view_as_real(left).unbind(-1)
    c, d = torch.view_as_real(right).unbind(-1)
    torch.complex(a * c - b * d, a * d + b * c, out=out)


def _minimum(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    torch.minimum(left, right, out=out)
    _one_zero(out)


def _maximum(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    torch.maximum(left, right, out=out)
    _one_zero(out)


def _one_zero(tensor: torch.Tensor) -> None:
    """Make every -0.0 a 0.0."""
    if tensor.is_floating_point():
        tensor.add_(0.0)


_OPERATIONS: dict[str, Combine] = {
    "SUM": lambda left, right, out: torch.add(left, right, out=out),
    "AVG": lambda left, right, out: torch.add(left, right, out=out),
    "PREMUL_SUM": lambda left, right, out: torch.add(left, right, out=out),
    "PRODUCT": _product,
    "MIN": _minimum,
    "MAX": _maximum,
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
