"""The process group that torch sees: a subclass of ``torch.distributed.ProcessGroup``.

It turns torch's calls into :class:`~trainmover.ccl.communicator.Call` objects and hands them to
the process's communicator; it knows nothing of links, epochs or recordings.  Method names of both
generations of torch are defined (2.6 to 2.12 and 2.13 on).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainmover.ccl import algorithms
from trainmover.ccl.communicator import Call, Communicator
from trainmover.ccl.engine import Steps
from trainmover.ccl.reduce import combine_of, finish
from trainmover.ccl.work import work_of
from trainmover.ccl.tags import MESSAGE, message_tag
from trainmover.ccl.view import Group
from trainmover.errors import LinkError

Tensors = list[torch.Tensor]

_NUMBERS = itertools.count()


class TrainMoverGroup(dist.ProcessGroup):
    """A process group whose links can be changed beneath it.

    Args:
        communicator: the process's communicator.
        name: group name, the same on every member.
        ranks: global ranks by group rank; this process is one of them.
        on_shutdown: called when the group has closed its links.
    """

    def __init__(
        self,
        communicator: Communicator,
        name: str,
        ranks: tuple[int, ...],
        on_shutdown: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(ranks.index(communicator.rank), len(ranks))
        self._communicator = communicator
        self._key = name
        self._name = name
        self._description = "undefined"
        self._ranks = ranks
        self._on_shutdown = on_shutdown

    # -- identity ------------------------------------------------------------------------------

    def rank(self) -> int:
        """Own group rank. It follows the process's place, which a promotion sets."""
        return self._ranks.index(self._communicator.rank)

    getRank = rank

    def size(self) -> int:
        """Number of members; never changes."""
        return len(self._ranks)

    getSize = size

    def getBackendName(self) -> str:
        return "trainmover"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def abort(self) -> None:
        """Nothing to abort: a broken epoch ends its calls by itself."""

    def shutdown(self) -> None:
        """Close the group's links."""
        self._communicator.remove_group(self._key)
        self._on_shutdown()

    # -- reductions ----------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        (tensor,) = _one(tensors, "all_reduce")
        return self._reduction("all_reduce", tensor, _operation(opts), None)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        operation = _operation(opts)
        futures = [self._start(self._reduction_call("all_reduce", t, operation, None)) for t in tensors]
        return _joined(futures, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        (tensor,) = _one(tensors, "reduce")
        return self._reduction("reduce", tensor, _operation(opts), int(opts.rootRank))

    def _reduction(self, name: str, tensor: torch.Tensor, operation: str, root: int | None) -> dist.Work:
        return _work(self._start(self._reduction_call(name, tensor, operation, root)))

    def _reduction_call(self, name: str, tensor: torch.Tensor, operation: str, root: int | None) -> Call:
        combine, size = combine_of(operation), self.size()
        flat, back = _flat(tensor)

        def walk(group: Group, tag: int) -> Steps:
            if root is not None:
                yield from algorithms.reduce(group, flat, root, combine, tag)
            else:
                yield from algorithms.all_reduce(group, flat, combine, tag)
            if root is None or group.me == root:
                finish(operation, flat, size)

        detail = f"{operation}, {_shape(tensor)}" + ("" if root is None else f", root {root}")
        return Call(name, detail, [tensor], True, walk, back)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        (output,), (parts,) = _one(outputs, "reduce_scatter"), inputs
        whole = torch.cat([part.detach().reshape(-1) for part in parts])
        counts = [part.numel() for part in parts]
        return _work(self._start(self._reduce_scatter_call(output, whole, counts, _operation(opts))))

    def reduce_scatter_single(
        self, output: torch.Tensor, inputs: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        counts = [output.numel()] * self.size()
        whole = inputs.detach().reshape(-1).clone()
        return _work(self._start(self._reduce_scatter_call(output, whole, counts, _operation(opts))))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        futures = []
        for output, whole in zip(outputs, inputs, strict=True):
            counts, copy = [output.numel()] * self.size(), whole.detach().reshape(-1).clone()
            futures.append(self._start(self._reduce_scatter_call(output, copy, counts, _operation(opts))))
        return _joined(futures, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_call(
        self, output: torch.Tensor, whole: torch.Tensor, counts: list[int], operation: str
    ) -> Call:
        combine, size = combine_of(operation), self.size()
        flat, back = _flat(output, fill=False)
        bounds = _runs(counts)
        if bounds[-1][1] != whole.numel() or counts[self.rank()] != flat.numel():
            raise LinkError(
                f"reduce_scatter: {whole.numel()} elements in and {flat.numel()} out do not fit "
                f"a group of {size}"
            )

        def walk(group: Group, tag: int) -> Steps:
            yield from algorithms.reduce_scatter(group, whole, flat, bounds, combine, tag)
            finish(operation, flat, size)

        return Call("reduce_scatter", f"{operation}, {whole.dtype}, {counts}", [output], False, walk, back)

    # -- moving data ---------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        (tensor,) = _one(tensors, "broadcast")
        flat, back = _flat(tensor)
        root = int(opts.rootRank)

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.broadcast(group, flat, root, tag)

        return _work(
            self._start(Call("broadcast", f"{_shape(tensor)}, root {root}", [tensor], True, walk, back))
        )

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        (mine,), (parts,) = _one(inputs, "all_gather"), outputs
        return _work(self._start(self._all_gather_call(parts, mine), [parts]))

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> dist.Work:
        return _work(self._start(self._all_gather_into(output, mine)))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        futures = [self._start(self._all_gather_into(o, i)) for o, i in zip(outputs, inputs, strict=True)]
        return _joined(futures, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_into(self, output: torch.Tensor, mine: torch.Tensor) -> Call:
        flat, back = _flat(output, fill=False)
        if flat.numel() != self.size() * mine.numel():
            raise LinkError(
                f"all_gather: {self.size()} x {mine.numel()} elements do not fit an output of {flat.numel()}"
            )
        parts = _equal_parts(flat, self.size())
        return self._all_gather_call(parts, mine, [output], back)

    def _all_gather_call(
        self,
        parts: Sequence[torch.Tensor],
        mine: torch.Tensor,
        outputs: Tensors | None = None,
        back: Callable[[], None] | None = None,
    ) -> Call:
        flats, after = _flats(parts)
        source, _ = _flat(mine)

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.all_gather(group, source, flats, tag)

        return Call("all_gather", _shape(mine), list(outputs or parts), False, walk, _chain(after, back))

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        (mine,) = _one(inputs, "gather")
        root = int(opts.rootRank)
        parts = outputs[0] if outputs else []
        flats, after = _flats(parts)
        source, _ = _flat(mine)

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.gather(group, source, flats, root, tag)

        return _work(
            self._start(
                Call("gather", f"{_shape(mine)}, root {root}", list(parts), False, walk, after, peer=root)
            )
        )

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        (output,) = _one(outputs, "scatter")
        root = int(opts.rootRank)
        sources = [_flat(tensor)[0] for tensor in inputs[0]] if inputs else []
        flat, back = _flat(output, fill=False)

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.scatter(group, sources, flat, root, tag)

        return _work(
            self._start(Call("scatter", f"{_shape(output)}, root {root}", [output], False, walk, back))
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        flats, after = _flats(outputs)
        return _work(self._start(self._all_to_all_call(list(outputs), flats, inputs, after)))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        flat, back = _flat(output, fill=False)
        outputs = _split(flat, output, output_splits, self.size())
        inputs = _split(_flat(whole)[0], whole, input_splits, self.size())
        return _work(self._start(self._all_to_all_call([output], outputs, inputs, back)))

    alltoall_base = all_to_all_single

    def _all_to_all_call(
        self,
        outputs: Tensors,
        flats: Tensors,
        inputs: Sequence[torch.Tensor],
        after: Callable[[], None] | None,
    ) -> Call:
        sources = [_flat(tensor)[0] for tensor in inputs]

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.all_to_all(group, sources, flats, tag)

        return Call("all_to_all", str(sources[0].dtype), outputs, False, walk, after)

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        (tensor,) = _one(tensors, "send")
        flat, _ = _flat(tensor)

        def walk(group: Group, _: int) -> Steps:
            return algorithms.send(group, flat, peer, message_tag(tag))

        call = Call(MESSAGE, f"tag {tag}", [], True, walk, peer=peer)
        return _work(self._start(call, key=f"to {peer}"))

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        (tensor,) = _one(tensors, "recv")
        flat, back = _flat(tensor, fill=False)

        def walk(group: Group, _: int) -> Steps:
            return algorithms.receive(group, flat, peer, message_tag(tag))

        # Receives wait beside each other: the peer may send in another order, by tag.
        call = Call(MESSAGE, f"tag {tag}", [tensor], False, walk, back)
        return _work(self._start(call, key=f"receive {next(_NUMBERS)}"))

    def barrier(self, opts: Any = None) -> dist.Work:
        token = torch.zeros(1, dtype=torch.uint8)
        call = self._reduction_call("all_reduce", token, "MAX", None)
        return _work(self._start(Call("barrier", "", [], True, call.walk)))

    # -- one way out ---------------------------------------------------------------------------

    def _start(self, call: Call, value: Any = None, key: str | None = None) -> torch.futures.Future[Any]:
        for tensor in call.outputs:
            if tensor.device.type != "cpu":
                raise LinkError(
                    f"{call.name}: tensors on {tensor.device} are not supported yet by the trainmover "
                    "backend; move them to the CPU"
                )
        future = self._communicator.run(self._key, call, None if key is None else f"{self._key} {key}")
        return future if value is None else _then(future, value)


def _one(tensors: Tensors, name: str) -> Tensors:
    if len(tensors) != 1:
        raise LinkError(f"{name} takes one tensor per rank, got {len(tensors)}")
    return tensors


def _operation(opts: Any) -> str:
    if opts is None:
        return "SUM"
    operation = opts.reduceOp
    kind = getattr(operation, "op", operation)
    return str(kind).rsplit(".", maxsplit=1)[-1].upper()


def _shape(tensor: torch.Tensor) -> str:
    return f"{tensor.numel()} x {str(tensor.dtype).removeprefix('torch.')}"


def _flat(tensor: torch.Tensor, fill: bool = True) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """The tensor as flat contiguous memory, and how to bring the result back if that is a copy."""
    plain = tensor.detach()
    if plain.is_contiguous():
        return plain.view(-1), None
    copy = plain.contiguous() if fill else torch.empty(plain.shape, dtype=plain.dtype)
    return copy.view(-1), lambda: _copy(plain, copy)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _flats(tensors: Sequence[torch.Tensor]) -> tuple[Tensors, Callable[[], None] | None]:
    pairs = [_flat(tensor, fill=False) for tensor in tensors]
    return [flat for flat, _ in pairs], _chain(*(back for _, back in pairs))


def _chain(*actions: Callable[[], None] | None) -> Callable[[], None] | None:
    todo = [action for action in actions if action is not None]
    if not todo:
        return None

    def run() -> None:
        for action in todo:
            action()

    return run


def _runs(counts: list[int]) -> list[tuple[int, int]]:
    found, at = [], 0
    for count in counts:
        found.append((at, at + count))
        at += count
    return found


def _equal_parts(flat: torch.Tensor, size: int) -> Tensors:
    return list(flat.view(size, flat.numel() // size).unbind(0))


def _split(flat: torch.Tensor, shaped: torch.Tensor, splits: list[int], size: int) -> Tensors:
    if not splits:
        return _equal_parts(flat, size)
    row = shaped.numel() // max(1, shaped.shape[0])
    return [flat[a:b] for a, b in _runs([count * row for count in splits])]


def _then(future: torch.futures.Future[Any], value: Any) -> torch.futures.Future[Any]:
    return future.then(lambda _: value)


def _work(future: torch.futures.Future[Any]) -> dist.Work:
    return work_of(future, "a call")


def _joined(futures: list[torch.futures.Future[Any]], value: Any) -> dist.Work:
    return _work(torch.futures.collect_all(futures).then(lambda _: value))
