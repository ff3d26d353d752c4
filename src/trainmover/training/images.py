"""Images: a rank's tracked state as plain bytes in another machine's memory, and how a step changes it.

An *image* is the state after so many committed steps: the shared values, and all tensors' bytes laid
end to end in the order of :meth:`~trainmover.training.state.TrackedState.tensors`.  *Changes* are what
makes the next state of it: the shared values as of the vote, tensors that change before the vote (buffers,
and whatever no optimizer steps), and the gradients.  Whoever has both, and knows what was called after the
vote, has the next state: he lets his own optimizers and schedulers do what they did there.

What lives here: the two as bytes, and putting them in place.  What never lives here: links, who has
whose image, when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import torch

from trainmover.ccl.view import as_bytes
from trainmover.errors import JobError
from trainmover.training import plainly
from trainmover.training.guards import Calls
from trainmover.training.state import TrackedState, local, tensor_bytes

RUN_BYTES = 1 << 20
"""Small tensors travel together, in runs of about this size; a larger one is a run of its own."""


Tensors = Sequence[tuple[str, torch.Tensor]]
"""The tracked tensors with their names."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Something on its way: what it is, and its contents in runs.

    Attributes:
        head: plain data that says what the contents are; ``runs`` in it are their sizes.
        runs: the contents; memory that nobody changes until they are out.
        keep: owners of that memory.
    """

    head: bytes
    runs: list[memoryview]
    keep: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the contents."""
        return sum(len(run) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Held:
    """What was received: head and contents.

    Attributes:
        rank: whose it is.
        step: committed steps of the state that it is, or makes.
        head: see :class:`Bytes`.
        memory: holds the contents, at its beginning.
        size: bytes of the contents.
    """

    rank: int
    step: int
    head: bytes
    memory: torch.Tensor
    size: int

    @property
    def contents(self) -> memoryview:
        """The contents."""
        return as_bytes(self.memory)[: self.size] if self.size else memoryview(b"")


def loose(tracked: TrackedState) -> set[int]:
    """Indexes, among the tracked tensors, of those that no optimizer steps: anything may change them."""
    stepped = {
        id(p) for o in tracked.optimizers.values() for group in o.param_groups for p in group["params"]
    }
    found, index = set(), 0
    for module in tracked.modules.values():
        for _, parameter in module.named_parameters():
            if id(parameter) not in stepped:
                found.add(index)
            index += 1
        for _ in module.named_buffers():
            found.add(index)
            index += 1
    return found


def image(
    tracked: TrackedState, named: Tensors, rank: int, step: int, snapshot: set[int], schema: str
) -> Bytes:
    """The state now, after ``step`` committed steps.

    Args:
        named: the tracked tensors.
        snapshot: indexes of tensors that may change while the image is on its way: they are copied.
        schema: of the tracked tensors.
    """
    tensors = [tensor for _, tensor in named]
    runs, keep = _runs([tensor_bytes(tensor) for tensor in tensors], snapshot)
    head = {
        "rank": rank,
        "step": step,
        "sizes": [tensor.nbytes for tensor in tensors],
        "schema": schema,
        "shared": tracked.values(),
        "runs": [len(run) for run in runs],
    }
    return Bytes(msgpack.packb(head), runs, [*keep, tensors])


def changes(tracked: TrackedState, tensors: Tensors, rank: int, step: int, moved: Sequence[int]) -> Bytes:
    """What makes the state after ``step`` steps of the one before; at the vote on it, with whole gradients.

    Args:
        tensors: the tracked ones.
        moved: indexes of tensors that have changed since the boundary, or may have.

    Raises:
        JobError: a gradient is not dense.
    """
    parts = [tensor_bytes(tensors[index][1]) for index in moved]
    gradients, keep = [], [tensor for _, tensor in tensors]
    for name, optimizer in tracked.optimizers.items():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            if parameter.grad is None:
                continue
            if parameter.grad.layout is not torch.strided:
                raise JobError(
                    f"the gradient of parameter {index} of {name!r} is {parameter.grad.layout}: only dense "
                    "gradients can be mirrored; run with --state checkpoint"
                )
            gradient = local(parameter.grad)
            gradients.append([name, index, str(gradient.dtype).removeprefix("torch."), gradient.nbytes])
            parts.append(tensor_bytes(gradient))
            keep.append(gradient)
    runs, more = _runs(parts, set())
    head = {
        "rank": rank,
        "step": step,
        "moved": list(moved),
        "gradients": gradients,
        "shared": tracked.values(),
        "runs": [len(run) for run in runs],
    }
    return Bytes(msgpack.packb(head), runs, [*more, keep])


def _runs(parts: Sequence[memoryview], snapshot: set[int]) -> tuple[list[memoryview], list[Any]]:
    """The parts in order as runs: a large one as it stands, small and copied ones packed together."""
    runs: list[memoryview] = []
    packed: list[memoryview] = []
    size = 0

    def pack() -> None:
        nonlocal size
        if packed:
            runs.append(memoryview(b"".join(packed)))
            packed.clear()
            size = 0

    for index, part in enumerate(parts):
        if len(part) >= RUN_BYTES and index not in snapshot:
            pack()
            runs.append(part)
            continue
        packed.append(part)
        size += len(part)
        if size >= RUN_BYTES:
            pack()
    pack()
    return [run for run in runs if len(run)], [parts]


def load(tracked: TrackedState, values: bytes) -> None:
    """Put shared values of an image or of changes in place."""
    shared = plainly.unpack(values)
    tracked.load_shared_values(plainly.pack({**shared, "schema": tracked.schema()}, "job"))


def check(tracked: TrackedState, schema: str) -> None:
    """Whether an image is one of these tensors.

    Raises:
        JobError: its tensors differ from this rank's in name, dtype or shape.
    """
    if schema != tracked.schema():
        raise JobError(
            "this rank's model and optimizer do not have the tensors of the rank it replaces; does the "
            "script build something else on this machine?"
        )


def apply(tracked: TrackedState, head: bytes, contents: memoryview, made: Calls) -> None:
    """Make the next state: put changes in place and let the optimizers and schedulers do their step.

    Args:
        head, contents: the changes.
        made: what was called after the vote.
    """
    told = msgpack.unpackb(head)
    load(tracked, told["shared"])
    tensors = [tensor for _, tensor in tracked.tensors()]
    at = 0
    with torch.no_grad():
        for index in told["moved"]:
            _fill(tensors[index], contents[at : at + tensors[index].nbytes])
            at += tensors[index].nbytes
    parameters = {
        name: [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for name, optimizer in tracked.optimizers.items()
    }
    before = [(p, p.grad) for some in parameters.values() for p in some]
    try:
        for parameter, _ in before:
            parameter.grad = None
        for name, index, dtype, size in told["gradients"]:
            parameter = parameters[name][index]
            parameter.grad = torch.empty_like(parameter, dtype=getattr(torch, dtype), requires_grad=False)
            with torch.no_grad():
                _fill(local(parameter.grad), contents[at : at + size])
            at += size
        made.repeat(tracked)
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def _fill(tensor: torch.Tensor, data: memoryview) -> None:
    """A tensor's content from its bytes."""
    if len(data) != tensor.nbytes:
        raise JobError(f"a mirrored tensor has {len(data)} bytes where {tensor.nbytes} belong")
    if tensor.nbytes:
        flat = torch.frombuffer(data, dtype=tensor.dtype)
        tensor.detach().copy_(flat.view(tensor.shape))
