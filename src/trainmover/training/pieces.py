"""What a checkpoint is made of: the pieces of tensors that ranks hold, and how they fit together.

A *piece* is what one rank holds of one tensor: a chunk of it (offsets and sizes), which for a tensor that
is not distributed is the whole.  Ranks name tensors alike, yet may mean different ones: every stage of a
pipeline has its own ``model.0.weight``, every data rank its own slice of the optimizer.  Content decides:
pieces whose owners hold the same are one *variant* of the name and stored once; a name with one variant is
stored under itself (and can be cut anew for another number of ranks), one with several as
``name@lowest rank``.

What lives here: taking the pieces of a rank, and the pure function :func:`merge`, by which one rank finds
out what is stored under which key and who writes it.  What never lives here: files, threads.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.planner_helpers import _create_write_items

from trainmover.training.state import TrackedState, local

MANY = 64
"""Of more ranks than this that hold the same, these many are considered for writing it."""

Chunk = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank holds of one tensor.

    Attributes:
        shape: of the whole tensor.
        chunk: the part that this rank holds.
        owner: whoever holds the other parts, as one word; the rank itself when there are none.
        sharded: the tensor is a distributed one.
        device: kind of device that it is on.
        digest: SHA-256 (hex) of its content; empty until it is known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunk: Chunk
    owner: str
    sharded: bool
    device: str
    digest: str = ""

    def row(self) -> list[Any]:
        """As plain data."""
        return [
            *(self.name, self.dtype, self.shape, *self.chunk),
            *(self.owner, self.sharded, self.device, self.digest),
        ]

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Piece:
        """From :meth:`row`."""
        name, dtype, shape, offsets, sizes, owner, sharded, device, digest = row
        chunk = (tuple(offsets), tuple(sizes))
        return cls(name, dtype, tuple(shape), chunk, owner, sharded, device, digest)

    @property
    def bytes(self) -> int:
        """Size of its content."""
        return int(torch.Size(self.chunk[1]).numel()) * dtype_of(self.dtype).itemsize


def dtype_of(name: str) -> torch.dtype:
    """The dtype of this name.

    Raises:
        ValueError: it is none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r:.40} is no dtype")
    return found


def named(tracked: TrackedState) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tracked tensor as it is (a distributed one whole), modules' first."""
    for name, module in tracked.modules.items():
        for key, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield f"{name}.{key}", tensor.detach()
    for name, parameters in optimized(tracked).items():
        state = tracked.optimizers[name].state
        for index, parameter in enumerate(parameters):
            for key, value in sorted(state.get(parameter, {}).items()):
                if isinstance(value, torch.Tensor):
                    yield f"{name}.{index}.{key}", value


def optimized(tracked: TrackedState) -> dict[str, list[torch.Tensor]]:
    """By optimizer, its parameters in order."""
    return {
        name: [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for name, optimizer in tracked.optimizers.items()
    }


def pieces(tracked: TrackedState, rank: int) -> Iterator[tuple[Piece, torch.Tensor]]:
    """What a rank holds, with the tensors themselves (its own parts of them)."""
    for name, tensor in named(tracked):
        items = _create_write_items(name, tensor)
        assert len(items) == 1, f"{name} is in {len(items)} parts on one rank"
        assert items[0].tensor_data is not None
        chunk = items[0].tensor_data.chunk
        mesh = getattr(tensor, "device_mesh", None)
        owner = str(rank)
        if mesh is not None:
            ranks = mesh.mesh.flatten().tolist()
            owner = f"{min(ranks)}:{hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]}"
        piece = Piece(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            chunk=(tuple(chunk.offsets), tuple(chunk.sizes)),
            owner=owner,
            sharded=mesh is not None,
            device=tensor.device.type,
        )
        yield piece, local(tensor)


@dataclass
class Variant:
    """One content of a name: by chunk its digest and who holds it; and all ranks that have this variant."""

    sample: Piece
    chunks: dict[Chunk, str]
    holders: dict[Chunk, list[int]]
    ranks: list[int]


@dataclass
class Merged:
    """How the pieces of all ranks fit together.

    Attributes:
        entries: by key what it is (see :class:`trainmover.training.shelf.Manifest`), without chunks.
        variants: by name the ranks of each variant, for names that have several.
        writes: by rank the keys that it writes, each with the name of its piece.
        period: ranks at this distance have equal state.
    """

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    variants: dict[str, list[list[int]]] = field(default_factory=dict)
    writes: dict[int, list[list[str]]] = field(default_factory=lambda: defaultdict(list))
    period: int = 1


def merge(held: Sequence[Sequence[Piece]]) -> Merged:
    """Find out what is stored and by whom.

    Args:
        held: by rank its pieces, with digests.
    """
    by_name: dict[str, list[tuple[int, Piece]]] = defaultdict(list)
    for rank, own in enumerate(held):
        for piece in own:
            by_name[piece.name].append((rank, piece))
    merged, load = Merged(), [0] * len(held)
    jobs: list[tuple[int, str, Chunk, Variant]] = []
    for name, rows in by_name.items():
        found = _variants(rows)
        if len(found) > 1:
            merged.variants[name] = [variant.ranks for variant in found]
        for variant in found:
            key = name if len(found) == 1 else f"{name}@{variant.ranks[0]}"
            sample = variant.sample
            merged.entries[key] = {
                "dtype": sample.dtype,
                "shape": list(sample.shape),
                "sharded": sample.sharded,
                "device": sample.device,
            }
            size = dtype_of(sample.dtype).itemsize
            jobs += [(torch.Size(chunk[1]).numel() * size, key, chunk, variant) for chunk in variant.chunks]
    for size, key, chunk, variant in sorted(jobs, key=lambda job: (-job[0], job[1], job[2])):
        writer = min(variant.holders[chunk][:MANY], key=lambda rank: (load[rank], rank))
        load[writer] += size
        if size:
            merged.writes[writer].append([key, variant.sample.name])
    merged.period = _period(len(held), merged.variants)
    return merged


def _variants(rows: Sequence[tuple[int, Piece]]) -> list[Variant]:
    """The different contents of one name, by lowest rank."""
    copies: dict[str, list[tuple[int, Piece]]] = defaultdict(list)
    for rank, piece in rows:
        copies[piece.owner].append((rank, piece))
    apart: list[list[tuple[int, Piece]]] = []
    for copy in copies.values():
        told = {(piece.chunk, piece.digest) for _, piece in copy}
        # Parts that should be equal and are not (a parameter that only seems to be replicated): each its own.
        apart += [copy] if len(told) == len({chunk for chunk, _ in told}) else [[row] for row in copy]
    found: dict[tuple[object, ...], Variant] = {}
    for copy in apart:
        sample = copy[0][1]
        chunks = {piece.chunk: piece.digest for _, piece in copy}
        key = (sample.dtype, sample.shape, *sorted(chunks.items()))
        variant = found.setdefault(key, Variant(sample, chunks, defaultdict(list), []))
        for rank, piece in copy:
            variant.holders[piece.chunk].append(rank)
            variant.ranks.append(rank)
    for variant in found.values():
        variant.ranks.sort()
    return sorted(found.values(), key=lambda variant: variant.ranks[0])


def _period(size: int, variants: dict[str, list[list[int]]]) -> int:
    """The smallest distance at which ranks have the same variant of everything."""
    kinds: list[list[int]] = []
    for groups in variants.values():
        kind = [-1] * size
        for number, ranks in enumerate(groups):
            for rank in ranks:
                kind[rank] = number
        kinds.append(kind)
    for period in range(1, size):
        if size % period == 0 and all(kind[period:] == kind[:-period] for kind in kinds):
            return period
    return size
