"""Collectives that move data without combining it, as torch calls them.

broadcast, all_gather, gather, scatter and all_to_all, each in the forms that torch has for lists of
tensors and for single ones, under the method names of both generations of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainmover.ccl import algorithms
from trainmover.ccl.arguments import (
    Tensors,
    equal_parts,
    fits,
    member,
    one,
    one_each,
    one_list,
    same_dtype,
    shape,
    split,
)
from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.launch import Launcher
from trainmover.ccl.memory import Memory
from trainmover.ccl.view import Group

Prepared = tuple[Call, Memory]


class Exchanges(Launcher):
    """The data-moving methods of a process group."""

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        tensor, memory = one(tensors, "broadcast"), Memory()
        root = member(int(opts.rootRank), self._count, "broadcast")
        flat = memory.read(tensor) if self._me == root else memory.update(tensor)

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.broadcast(group, flat, root, tag)

        return self._launch(
            Call("broadcast", f"{shape(tensor)}, root {root}", [tensor], True, walk), memory, opts
        )

    # -- all_gather ----------------------------------------------------------------------------

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        call, memory = self._all_gather(
            one_list(outputs, self._count, "all_gather"), one(inputs, "all_gather")
        )
        call.value = [outputs[0]]
        return self._launch(call, memory, opts)

    def allgather_coalesced(
        self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        """Several at once: ``output_lists`` has one list for each member, with an entry for each input."""
        by_input = zip(*output_lists, strict=True)
        calls = [
            self._all_gather(one_each([*outputs], self._count, "all_gather_coalesced"), tensor)
            for outputs, tensor in zip(by_input, inputs, strict=True)
        ]
        return self._launch_all(calls, output_lists)

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> dist.Work:
        return self._launch(*self._all_gather_into(output, mine), opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        calls = [
            self._all_gather_into(output, tensor) for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._launch_all(calls, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather(self, outputs: Tensors, mine: torch.Tensor) -> Prepared:
        memory = Memory()
        same_dtype("all_gather", mine, *outputs)
        counts = [output.numel() for output in outputs]
        fits("all_gather", "the own output", counts[self._me], mine.numel())
        flats, source = [memory.write(output) for output in outputs], memory.read(mine)
        return self._all_gather_call(source, flats, outputs, counts), memory

    def _all_gather_into(self, output: torch.Tensor, mine: torch.Tensor) -> Prepared:
        memory = Memory()
        same_dtype("all_gather", mine, output)
        fits("all_gather", "the output", output.numel(), self._count * mine.numel())
        flat, source = memory.write(output), memory.read(mine)
        flats = equal_parts(flat, self._count)
        return self._all_gather_call(source, flats, [output], [mine.numel()] * self._count), memory

    @staticmethod
    def _all_gather_call(source: torch.Tensor, flats: Tensors, outputs: Tensors, counts: list[int]) -> Call:
        def walk(group: Group, tag: int) -> Steps:
            return algorithms.all_gather(group, source, flats, tag)

        even = len(set(counts)) == 1
        detail = shape(source) if even else f"{counts} x {source.dtype}"
        return Call("all_gather", detail, list(outputs), False, walk)

    # -- one rank's -------------------------------------------------------------------------------

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        mine, memory = one(inputs, "gather"), Memory()
        root = member(int(opts.rootRank), self._count, "gather")
        parts: Tensors = []
        if self._me == root:
            parts = one_list(outputs, self._count, "gather")
            same_dtype("gather", mine, *parts)
            for part in parts:
                fits("gather", "an output", part.numel(), mine.numel())
        flats = [memory.write(part) for part in parts]
        call = self._gather(flats, memory.read(mine), root, parts)
        if parts:
            call.value = [parts]
        return self._launch(call, memory, opts)

    def gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> dist.Work:
        memory, root = Memory(), member(int(opts.rootRank), self._count, "gather")
        flats: Tensors = []
        if self._me == root:
            same_dtype("gather", mine, output)
            fits("gather", "the output", output.numel(), self._count * mine.numel())
            flats = equal_parts(memory.write(output), self._count)
        call = self._gather(flats, memory.read(mine), root, [output] if flats else [])
        return self._launch(call, memory, opts)

    gather_into_tensor = gather_single

    @staticmethod
    def _gather(flats: Tensors, source: torch.Tensor, root: int, outputs: Tensors) -> Call:
        def walk(group: Group, tag: int) -> Steps:
            return algorithms.gather(group, source, flats, root, tag)

        return Call("gather", f"{shape(source)}, root {root}", list(outputs), False, walk, peer=root)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        output, memory = one(outputs, "scatter"), Memory()
        root = member(int(opts.rootRank), self._count, "scatter")
        self._communicator.check_there(self._ranks[root], "scatter")
        parts: Tensors = []
        if self._me == root:
            parts = one_list(inputs, self._count, "scatter")
            same_dtype("scatter", output, *parts)
            for part in parts:
                fits("scatter", "an input", part.numel(), output.numel())
        sources, flat = [memory.read(part) for part in parts], memory.write(output)

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.scatter(group, sources, flat, root, tag)

        return self._launch(
            Call("scatter", f"{shape(output)}, root {root}", [output], False, walk), memory, opts
        )

    # -- all_to_all ----------------------------------------------------------------------------

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        memory = Memory()
        one_each(outputs, self._count, "all_to_all")
        one_each(inputs, self._count, "all_to_all")
        same_dtype("all_to_all", *outputs, *inputs)
        sources = [memory.read(tensor) for tensor in inputs]
        flats = [memory.write(tensor) for tensor in outputs]
        return self._all_to_all(list(outputs), flats, sources, memory, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        memory, size, name = Memory(), self._count, "all_to_all"
        same_dtype(name, output, whole)
        sources = split(memory.read(whole), whole, input_splits, size, name)
        flats = split(memory.write(output), output, output_splits, size, name)
        return self._all_to_all([output], flats, sources, memory, opts)

    alltoall_base = all_to_all_single

    def _all_to_all(
        self, outputs: Tensors, flats: Tensors, sources: Sequence[torch.Tensor], memory: Memory, opts: Any
    ) -> dist.Work:
        if self._communicator.player is None:
            # In the sandbox what others have sent is recorded, and what is sent to them may differ from it.
            fits("all_to_all", "the own output", flats[self._me].numel(), sources[self._me].numel())

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.all_to_all(group, sources, flats, tag)

        return self._launch(Call("all_to_all", str(sources[0].dtype), outputs, False, walk), memory, opts)
