"""Handing a mirror over: a lost rank's state from the guardian that keeps it to the joiner in its place.

The guardian has an image of the state, or the image of a step before and the changes of that step.  The
image is received straight into the joiner's tensors.  With changes the joiner then does what was called
after the vote, with its own optimizers and schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import torch

from trainmover.ccl.engine import Engine, Steps
from trainmover.ccl.view import Group, as_bytes
from trainmover.errors import JobError
from trainmover.training import images, transfer
from trainmover.training.guards import Calls
from trainmover.training.mirror import Mirrors
from trainmover.training.state import TrackedState
from trainmover.training.transfer import TAG

KEY = "boundary"
COPY_SECONDS = 3600.0
"""Limit of one copy, however large."""


def give(engine: Engine, group: Group, joiner: int, mirrors: Mirrors, committed: int) -> int:
    """Send a joiner the state that this rank holds for it; returns its bytes.

    Args:
        committed: number of steps that are committed.

    Raises:
        JobError: this rank does not hold that state.
        EpochBroken: the epoch broke meanwhile.
    """
    held = mirrors.held(joiner, committed)
    if held is None:
        raise JobError(
            f"the state of rank {joiner} after {committed} steps is lost: its machine is gone, and rank "
            f"{group.me}, which mirrors it, does not have the mirror of that step; start again from a "
            "checkpoint (--checkpoint-every, --resume)"
        )
    image, changes = held
    calls = mirrors.tracked.calls().pack() if changes is not None else b""
    head = msgpack.packb([image.head, b"" if changes is None else changes.head, calls])
    pieces = transfer.shares(msgpack.unpackb(image.head)["sizes"], 1)[0]

    def giving() -> Steps:
        started = transfer.send_small(group, joiner, head)
        at = 0
        for piece in pieces:
            view = image.contents[at : at + piece.end - piece.start]
            started.append(group.send_bytes(joiner, view, TAG, image))
            at += len(view)
        if changes is not None and changes.size:
            started.append(group.send_bytes(joiner, changes.contents, TAG, changes))
        yield started

    engine.run(KEY, "mirror copy", giving, COPY_SECONDS)
    return image.size + (0 if changes is None else changes.size)


def take(engine: Engine, group: Group, source: int, tracked: TrackedState) -> tuple[int, str]:
    """Receive this rank's state from the one that keeps its mirror; returns its bytes, and what it was.

    Raises:
        JobError: it is not a state of this rank's model and optimizer.
        EpochBroken: the epoch broke meanwhile.
    """
    told = engine.run(KEY, "mirror copy", lambda: transfer.receive_small(group, source), COPY_SECONDS)
    image_head, changes_head, calls = msgpack.unpackb(told)
    image = msgpack.unpackb(image_head)
    images.check(tracked, image["schema"])
    tensors = [tensor for _, tensor in tracked.tensors()]
    size = sum(msgpack.unpackb(changes_head)["runs"]) if changes_head else 0
    changes = torch.empty(size, dtype=torch.uint8)
    cut = [transfer.shares(image["sizes"], 1)[0]]
    engine.run(KEY, "mirror copy", lambda: _taking(group, source, cut, tensors, changes), COPY_SECONDS)
    images.load(tracked, image["shared"])
    if changes_head:
        images.apply(tracked, changes_head, _bytes(changes), Calls.unpack(calls))
    kind = f"mirror at rank {source}" + (", and the step that followed" if changes_head else "")
    return sum(image["sizes"]) + size, kind


def _taking(
    group: Group,
    source: int,
    cut: Sequence[Sequence[transfer.Piece]],
    tensors: Sequence[torch.Tensor],
    changes: torch.Tensor,
) -> Steps:
    yield from transfer.receive(group, [source], cut, tensors)
    if changes.numel():
        yield [group.receive(source, changes, TAG)]


def _bytes(tensor: torch.Tensor) -> memoryview:
    return as_bytes(tensor) if tensor.numel() else memoryview(b"")
