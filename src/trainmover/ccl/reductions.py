"""Reductions as torch calls them: all_reduce, reduce, reduce_scatter, and the barrier.

Each becomes a :class:`~trainmover.ccl.communicator.Call` whose walk keeps the canonical bracketing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainmover.ccl import algorithms
from trainmover.ccl.arguments import (
    Operation,
    Tensors,
    fits,
    member,
    one,
    one_list,
    operation_of,
    runs,
    same_dtype,
    shape,
)
from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.launch import Launcher
from trainmover.ccl.memory import Memory
from trainmover.ccl.reduce import finish
from trainmover.ccl.view import Group
from trainmover.errors import LinkError
from trainmover.topology.bracket import reduce_along

Prepared = tuple[Call, Memory]


class Reductions(Launcher):
    """The reducing methods of a process group."""

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        tensor = one(tensors, "all_reduce")
        if tensor.layout is torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        return self._launch(*self._all_reduce(tensor, operation_of(opts)), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        operation = operation_of(opts)
        return self._launch_all([self._all_reduce(tensor, operation) for tensor in tensors], tensors)

    def allreduce_sparse(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """The sum of sparse tensors: everybody gets all parts and adds them in the canonical order."""
        tensor, operation = one(tensors, "all_reduce"), operation_of(opts)
        if operation.name != "SUM" or tensor.device.type != "cpu":
            found = f"{operation.name} on {tensor.device}"
            raise LinkError(f"all_reduce of sparse tensors works with SUM on the CPU, got {found}")
        mine = tensor.detach().coalesce()
        indices, values = mine.indices().contiguous(), mine.values().contiguous()

        def walk(group: Group, tag: int) -> Steps:
            counts = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size)]
            yield from algorithms.all_gather(group, torch.tensor([indices.shape[1]]), counts, tag)
            known = [int(count) for count in counts]
            places = [indices.new_empty(indices.shape[0], count) for count in known]
            yield from algorithms.all_gather(group, indices.view(-1), [p.view(-1) for p in places], tag)
            parts = [values.new_empty(count, *values.shape[1:]) for count in known]
            yield from algorithms.all_gather(group, values.view(-1), [p.view(-1) for p in parts], tag)
            pairs = zip(places, parts, strict=True)
            everybodys = [
                torch.sparse_coo_tensor(*pair, mine.shape, check_invariants=False) for pair in pairs
            ]
            here = [everybodys[member] for member in group.there]
            total = reduce_along(group.present.tree, here, torch.add)
            with torch.no_grad():
                tensor.copy_(total.coalesce())

        detail = f"SUM, sparse {tuple(tensor.shape)} x {tensor.dtype}"
        return self._launch(Call("all_reduce", detail, [tensor], True, walk), Memory(), opts)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        tensor, operation = one(tensors, "reduce"), operation_of(opts)
        root, size, memory = member(int(opts.rootRank), self._count, "reduce"), self._count, Memory()
        combine = operation.on(tensor.dtype, "reduce")
        mine = self._me == root
        flat = memory.update(tensor) if mine else memory.read(tensor)
        if operation.factor is not None and not mine:
            flat = flat.clone()  # what the others scale is not their tensor

        def walk(group: Group, tag: int) -> Steps:
            operation.scale(flat)
            yield from algorithms.reduce(group, flat, root, combine, tag)
            if mine:
                finish(operation.name, flat, size)

        detail = f"{operation.name}, {shape(tensor)}, root {root}"
        return self._launch(Call("reduce", detail, [tensor], True, walk), memory, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        output = one(outputs, "reduce_scatter")
        parts = one_list(inputs, self._count, "reduce_scatter")
        same_dtype("reduce_scatter", output, *parts)
        whole = torch.cat([part.detach().reshape(-1) for part in parts])
        counts = [part.numel() for part in parts]
        return self._launch(*self._reduce_scatter(output, whole, counts, operation_of(opts)), opts)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> dist.Work:
        counts = [output.numel()] * self._count
        return self._launch(*self._reduce_scatter(output, whole, counts, operation_of(opts)), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        operation = operation_of(opts)
        calls = [
            self._reduce_scatter(output, whole, [output.numel()] * self._count, operation)
            for output, whole in zip(outputs, inputs, strict=True)
        ]
        return self._launch_all(calls, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> dist.Work:
        token, memory = torch.zeros(1, dtype=torch.uint8), Memory()
        call, _ = self._all_reduce(token, Operation("MAX"))
        timeout = None if opts is None else opts.timeout
        limit = timeout.total_seconds() if timeout and timeout > timedelta(0) else None
        return self._launch(Call("barrier", "", [], True, call.walk, limit=limit), memory, opts)

    # -- calls ---------------------------------------------------------------------------------

    def _all_reduce(self, tensor: torch.Tensor, operation: Operation) -> Prepared:
        combine, size, memory = operation.on(tensor.dtype, "all_reduce"), self._count, Memory()
        flat = memory.update(tensor)

        def walk(group: Group, tag: int) -> Steps:
            operation.scale(flat)
            yield from algorithms.all_reduce(group, flat, combine, tag)
            finish(operation.name, flat, size)

        return Call("all_reduce", f"{operation.name}, {shape(tensor)}", [tensor], True, walk), memory

    def _reduce_scatter(
        self, output: torch.Tensor, whole: torch.Tensor, counts: list[int], operation: Operation
    ) -> Prepared:
        name, memory, size = "reduce_scatter", Memory(), self._count
        same_dtype(name, output, whole)
        fits(name, "the input", whole.numel(), sum(counts))
        fits(name, "the output", output.numel(), counts[self._me])
        combine, bounds = operation.on(output.dtype, name), runs(counts)
        source = memory.read(whole) if operation.factor is None else memory.copy(whole)
        flat = memory.write(output)

        def walk(group: Group, tag: int) -> Steps:
            operation.scale(source)
            yield from algorithms.reduce_scatter(group, source, flat, bounds, combine, tag)
            finish(operation.name, flat, size)

        detail = f"{operation.name}, {whole.dtype}, {counts}"
        return Call(name, detail, [output], False, walk), memory
