"""What a checkpoint says of itself: where each tensor's chunks are, ours and torch's way.

What lives here: the manifest's tables, made of what ranks have said, and ``.metadata`` as
``torch.distributed.checkpoint`` has it.  What never lives here: files (``shelf``), who writes what when
(``checkpoint``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from trainmover.training.pieces import Piece, dtype_of


def file_of(rank: int) -> str:
    """The file of a rank's tensors."""
    return f"rank-{rank:05d}.distcp"


def values_of(indexes: Mapping[int, Any], absent: Mapping[int, bytes], rank: int) -> bytes:
    """A rank's values; an absent one's are those of the first that is there, but for the private ones."""
    if rank not in absent:
        own: bytes = indexes[rank]["values"]
        return own
    values = msgpack.unpackb(indexes[min(indexes)]["values"])
    packed: bytes = msgpack.packb({**values, "private": absent[rank] or values["private"]})
    return packed


def table_of(
    entries: Mapping[str, dict[str, Any]],
    writes: Mapping[int, Any],
    held: Mapping[int, list[Piece]],
    done: Mapping[int, Any],
) -> dict[str, dict[str, Any]]:
    """The manifest's table of tensors: where every chunk is."""
    table: dict[str, dict[str, Any]] = {key: {**entry, "chunks": []} for key, entry in entries.items()}
    for rank, rows in done.items():
        names = dict(writes[rank])
        own = {piece.name: piece for piece in held[rank]}
        for key, at, size, digest in rows:
            offsets, sizes = own[names[key]].chunk
            chunk = [list(offsets), list(sizes), file_of(rank), at, size, digest]
            table[key]["chunks"].append(chunk)
    return table


def metadata_of(tensors: dict[str, dict[str, Any]]) -> Metadata:
    """A manifest's table of tensors as torch.distributed.checkpoint has it."""
    known: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for key, entry in tensors.items():
        chunks = [
            ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
            for offsets, sizes, *_ in entry["chunks"]
        ]
        kind = TensorProperties(dtype=dtype_of(entry["dtype"]))
        known[key] = TensorStorageMetadata(properties=kind, size=torch.Size(entry["shape"]), chunks=chunks)
        for offsets, _, file, at, size, _ in entry["chunks"]:
            places[MetadataIndex(key, torch.Size(offsets))] = _StorageInfo(file, at, size)
    return Metadata(state_dict_metadata=known, storage_data=places)
