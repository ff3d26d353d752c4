"""Reduce operations: an element's result does not depend on where in a tensor it lies."""

from __future__ import annotations

import pytest
import torch

from trainmover.ccl.reduce import NAMES, combine_of
from trainmover.ccl.view import as_bytes
from trainmover.errors import LinkError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
COUNT = 203
"""Whole vectors of every width, and a rest."""


def values(kind: torch.dtype, seed: int) -> torch.Tensor:
    """Random numbers with zeros of both signs among them."""
    generator = torch.Generator().manual_seed(seed)
    source = kind if kind.is_complex else torch.float32
    found = torch.randn(COUNT, generator=generator, dtype=source).to(kind)
    which = torch.randint(0, 5, (COUNT,), generator=generator)
    found[which == 0], found[which == 1] = 0.0, -0.0
    return found


def bits(tensor: torch.Tensor) -> bytes:
    """The tensor's memory."""
    return bytes(as_bytes(tensor))


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX") for kind in FLOATS]
    + [(name, kind) for name in ("SUM", "AVG", "PRODUCT") for kind in COMPLEX],
)
def test_every_element_by_itself_has_the_same_bits(name: str, kind: torch.dtype) -> None:
    """Combined as a whole, one by one, from another start, or into an operand: the same bits."""
    combine, left, right = combine_of(name), values(kind, 1), values(kind, 2)
    whole = torch.empty_like(left)
    combine(left, right, whole)
    alone = torch.empty_like(left)
    for i in range(COUNT):
        combine(left[i : i + 1].clone(), right[i : i + 1].clone(), alone[i : i + 1])
    assert bits(alone) == bits(whole)
    shifted = torch.empty(COUNT - 3, dtype=kind)
    combine(left[3:], right[3:], shifted)
    assert bits(shifted) == bits(whole[3:].clone())
    for out in (left, right):
        kept = left.clone(), right.clone()
        combine(left, right, out)
        assert bits(out) == bits(whole)
        left.copy_(kept[0])
        right.copy_(kept[1])


@pytest.mark.parametrize("kind", COMPLEX)
def test_a_complex_product_is_a_product(kind: torch.dtype) -> None:
    """Up to rounding it is torch's."""
    left, right = values(kind, 3), values(kind, 4)
    found = torch.empty_like(left)
    combine_of("PRODUCT")(left, right, found)
    torch.testing.assert_close(found, left * right)


@pytest.mark.parametrize(("name", "reference"), [("MIN", torch.minimum), ("MAX", torch.maximum)])
def test_extremes_keep_nan(name: str, reference) -> None:
    """As in torch a NaN on either side is the result; otherwise the values are equal to torch's."""
    left, right = values(torch.float32, 5), values(torch.float32, 6)
    left[7], right[9] = float("nan"), float("nan")
    found = torch.empty_like(left)
    combine_of(name)(left, right, found)
    torch.testing.assert_close(found, reference(left, right), rtol=0, atol=0, equal_nan=True)


def test_an_unknown_operation_is_refused() -> None:
    """The error names those that there are."""
    assert "SUM" in NAMES
    with pytest.raises(LinkError, match=r"MEDIAN is not supported; use one of SUM, AVG"):
        combine_of("MEDIAN")
