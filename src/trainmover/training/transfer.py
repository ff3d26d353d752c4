"""Copying state to a joiner: every member sends its share, all at once, straight into place.

The tensors' bytes, laid end to end, are cut into as many shares as there are members; each member
sends its own on a link that exists only for this switch.  The joiner receives into its parameter
and optimizer storages: no buffers, on either side.  The small state goes first: shared values from
the first member, private values from the joiner's guardian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainmover.ccl.engine import Steps
from trainmover.ccl.tags import tag_of
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.training.state import tensor_bytes

TAG = tag_of("state copy")
PIECE_BYTES = 4 << 20
MAX_SMALL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of one tensor."""

    tensor: int
    start: int
    end: int


def shares(sizes: Sequence[int], members: int) -> list[list[Piece]]:
    """Cut tensors of these byte sizes into one list of pieces per member, nearly equal in bytes."""
    total = sum(sizes)
    step = -(-total // members)
    step = max(64, -(-step // 64) * 64)
    found: list[list[Piece]] = [[] for _ in range(members)]
    at = 0
    for index, size in enumerate(sizes):
        done = 0
        while done < size:
            member = min((at + done) // step, members - 1)
            room = size - done if member == members - 1 else (member + 1) * step - (at + done)
            length = min(size - done, room, PIECE_BYTES)
            found[member].append(Piece(index, done, done + length))
            done += length
        at += size
    return found


def send(
    group: Group, joiner: int, pieces: Sequence[Piece], tensors: Sequence[torch.Tensor]
) -> list[Transfer]:
    """Start sending a share to a joiner."""
    return [
        group.send_bytes(joiner, tensor_bytes(tensors[p.tensor])[p.start : p.end], TAG, tensors[p.tensor])
        for p in pieces
    ]


def receive(
    group: Group, members: Sequence[int], cut: Sequence[Sequence[Piece]], tensors: Sequence[torch.Tensor]
) -> Steps:
    """Receive every member's share into the tensors."""
    transfers: list[Transfer] = []
    strided: dict[int, torch.Tensor] = {}
    views: dict[int, memoryview] = {}
    for member, pieces in zip(members, cut, strict=True):
        for p in pieces:
            if p.tensor not in views:
                tensor = tensors[p.tensor].detach()
                if not tensor.is_contiguous():
                    tensor = strided[p.tensor] = torch.empty(tensor.shape, dtype=tensor.dtype)
                views[p.tensor] = tensor_bytes(tensor)
            view = views[p.tensor][p.start : p.end]
            transfers.append(group.receive_bytes(member, view, TAG, tensors[p.tensor]))
    yield transfers
    for index, tensor in strided.items():
        tensors[index].detach().copy_(tensor)


def send_small(group: Group, member: int, data: bytes) -> list[Transfer]:
    """Start sending a small value."""
    return [group.send_bytes(member, memoryview(data), TAG, data)]


def receive_small(group: Group, member: int) -> Steps:
    """Receive a small value; the generator's result is its bytes.

    Raises:
        LinkError: it has more than ``MAX_SMALL_BYTES``.
    """
    transfer = group.receive_up_to(member, MAX_SMALL_BYTES, TAG)
    yield [transfer]
    return bytes(transfer.view)
