"""What torch hands to a collective, read and checked: operations, sizes, splits.

A call that cannot be right is refused here, where it was made and before anything moves, with an
error that says what does not fit.  What only the peers can know (that they call the same thing) is
in the frames' tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from trainmover.ccl.reduce import Combine, combine_of, finish
from trainmover.errors import LinkError

Tensors = list[torch.Tensor]

PREMUL_SUM = "PREMUL_SUM"


@dataclass(frozen=True, slots=True)
class Operation:
    """A reduce operation; ``factor`` is what PREMUL_SUM multiplies the own input with."""

    name: str
    factor: Any = None

    def on(self, dtype: torch.dtype, call: str) -> Combine:
        """Its combination for a dtype.

        Raises:
            LinkError: the operation means nothing for the dtype.
        """
        why = _why_not(self.name, dtype)
        if why:
            raise LinkError(f"{call}: reduce operation {self.name} is not defined for {dtype}: {why}")
        if self.name == PREMUL_SUM and not (dtype.is_floating_point or dtype.is_complex):
            raise LinkError(f"{call}: PREMUL_SUM needs a floating-point tensor, got {dtype}")
        return combine_of(self.name)

    def scale(self, flat: torch.Tensor) -> None:
        """What is done to the own input before it is combined with others."""
        if self.name == PREMUL_SUM:
            flat.mul_(self.factor.to(flat.device) if isinstance(self.factor, torch.Tensor) else self.factor)


@cache
def _why_not(name: str, dtype: torch.dtype) -> str:
    """Why an operation cannot be applied to a dtype; empty when it can."""
    probe = torch.ones(1).to(dtype)
    combine = combine_of(name)
    try:
        combine(probe, probe, torch.empty_like(probe))
        finish(name, probe, 1)
    except (RuntimeError, TypeError) as error:
        return str(error).partition("\n")[0]
    return ""


def operation_of(options: Any) -> Operation:
    """The reduce operation in torch's options; SUM where there are none."""
    if options is None:
        return Operation("SUM")
    given = options.reduceOp
    operation = _plain_operation(getattr(given, "op", given))
    # Torch tells the factor to nobody but pickle.
    return Operation(PREMUL_SUM, given.__getstate__()[1]) if operation.name == PREMUL_SUM else operation


@cache
def _plain_operation(kind: Any) -> Operation:
    return Operation(str(kind).rsplit(".", maxsplit=1)[-1].upper())


def one(tensors: Tensors, call: str) -> torch.Tensor:
    """The only tensor of a list."""
    if len(tensors) != 1:
        raise LinkError(f"{call} takes one tensor per rank, got {len(tensors)}")
    return tensors[0]


def one_list(lists: list[Tensors], size: int, call: str) -> Tensors:
    """The only list of a list of lists, with one tensor for each member."""
    if len(lists) != 1:
        raise LinkError(f"{call} takes one list of tensors, got {len(lists)}")
    return one_each(lists[0], size, call)


def one_each(tensors: Tensors, size: int, call: str) -> Tensors:
    """A list with one tensor for each member."""
    if len(tensors) != size:
        raise LinkError(f"{call} takes one tensor for each of the group's {size} ranks, got {len(tensors)}")
    return tensors


def same_dtype(call: str, *tensors: torch.Tensor) -> None:
    """All tensors of one call have one dtype."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1:
        raise LinkError(f"{call} got tensors of different dtypes: {', '.join(sorted(map(str, kinds)))}")


def fits(call: str, what: str, found: int, wanted: int) -> None:
    """A number of elements is the one that the call needs."""
    if found != wanted:
        raise LinkError(f"{call}: {what} has {found} elements; it needs {wanted}")


def member(rank: int, size: int, call: str) -> int:
    """A group rank that exists."""
    if not 0 <= rank < size:
        raise LinkError(f"{call}: there is no rank {rank} in a group of {size}")
    return rank


def shape(tensor: torch.Tensor) -> str:
    """What must be the same on all ranks, in words."""
    return f"{tensor.numel()} x {str(tensor.dtype).removeprefix('torch.')}"


def runs(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive runs of these lengths, as ``(start, end)``."""
    found, at = [], 0
    for count in counts:
        found.append((at, at + count))
        at += count
    return found


def equal_parts(flat: torch.Tensor, size: int) -> Tensors:
    """A flat tensor cut into ``size`` parts of one length."""
    return list(flat.view(size, flat.numel() // size).unbind(0))


def split(flat: torch.Tensor, shaped: torch.Tensor, splits: Sequence[int], size: int, call: str) -> Tensors:
    """A flat tensor cut by rows of the shaped one: ``splits`` rows for each member, or equal parts.

    Raises:
        LinkError: the rows cannot be cut like that.
    """
    rows = shaped.shape[0] if shaped.dim() else 1
    if not splits:
        if rows % size:
            raise LinkError(f"{call}: {rows} rows cannot be cut into {size} equal parts; give split sizes")
        return equal_parts(flat, size)
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise LinkError(f"{call}: splits {list(splits)} do not cut {rows} rows for a group of {size}")
    width = shaped.numel() // max(1, rows)
    return [flat[a:b] for a, b in runs([count * width for count in splits])]
