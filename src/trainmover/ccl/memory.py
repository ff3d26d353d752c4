"""The memory that a call works on: flat, contiguous, in the CPU's memory.

Most tensors are that already, and the walk reads and writes them in place.  Others get a copy: a
tensor with gaps an ordinary one, a CUDA tensor one in pinned memory.  Copies to and from a CUDA device
go over a side stream: the copy out of the device waits for what the caller has queued so far, the walk
waits for the copy without holding up the caller, and the result's copy back is what the call's future
marks on the device, so that a caller's ``wait`` makes its stream wait, not its thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import Group
from trainmover.errors import LinkError

IDLE_SECONDS = 1.0
"""A thread that waits for copies ends after this time without any."""


class Memory:
    """The host memory of one call's tensors, and the way of its results back to them."""

    def __init__(self) -> None:
        self.device: torch.device | None = None
        self._back: list[Callable[[], object]] = []
        self._arrived: torch.cuda.Event | None = None

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory with the tensor's content, which the walk must leave as it is."""
        return self._flat(tensor, fill=True, back=False)

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for the tensor's new content."""
        return self._flat(tensor, fill=False, back=True)

    def update(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory with the tensor's content, for its new content."""
        return self._flat(tensor, fill=True, back=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory with the tensor's content, which the walk may use up."""
        flat = self.read(tensor)
        return flat.clone() if flat.data_ptr() == tensor.data_ptr() else flat

    def fit(self, call: Call) -> Call:
        """Tie the call to its memory: when it may begin, and what follows it."""
        if self._back:
            call.after = self._bring_back
        if self.device is not None:
            call.device = self.device
            call.stream = partial(on_side_stream, self.device)
            call.walk = self._after_arrival(call.walk)
        return call

    def _flat(self, tensor: torch.Tensor, fill: bool, back: bool) -> torch.Tensor:
        plain = tensor.detach()
        if plain.layout is not torch.strided:
            raise LinkError(f"a tensor of layout {plain.layout} cannot be sent; use .to_dense() before")
        if plain.device.type != "cpu":
            return self._staged(plain, fill, back)
        if plain.is_contiguous() and not (plain.is_conj() or plain.is_neg()):
            return plain.view(-1)
        copy = torch.empty(plain.shape, dtype=plain.dtype)
        if fill:
            copy.copy_(plain)
        if back:
            self._back.append(partial(plain.copy_, copy))
        return copy.view(-1)

    def _bring_back(self) -> None:
        for action in self._back:
            action()

    # -- CUDA ----------------------------------------------------------------------------------

    def _staged(self, plain: torch.Tensor, fill: bool, back: bool) -> torch.Tensor:
        if plain.device.type != "cuda":
            raise LinkError(f"tensors on {plain.device} are not supported; move them to the CPU or to CUDA")
        stream = side_stream(plain.device)
        if self.device is None:
            self.device = plain.device
            stream.wait_stream(torch.cuda.current_stream(plain.device))
        elif self.device != plain.device:
            raise LinkError(f"one call got tensors on {self.device} and on {plain.device}")
        host = torch.empty(plain.shape, dtype=plain.dtype, pin_memory=True)
        plain.record_stream(stream)
        if fill:
            with torch.cuda.stream(stream):
                host.copy_(plain, non_blocking=True)
            self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._arrived.record(stream)
        if back:
            self._back.append(partial(plain.copy_, host, non_blocking=True))
        return host.view(-1)

    def _after_arrival(self, walk: Callable[[Group, int], Steps]) -> Callable[[Group, int], Steps]:
        arrived = self._arrived
        if arrived is None:
            return walk

        def body(group: Group, tag: int) -> Steps:
            if group.size == 1:
                arrived.synchronize()
            elif not arrived.query():  # type: ignore[no-untyped-call]
                gate = Transfer(memoryview(b""), 0)
                lane.when(arrived.synchronize, lambda: group.engine.call(gate.finish))
                yield [gate]
            return (yield from walk(group, tag))

        return body


class Lane:
    """A thread that waits for copies one after the other; it is there only while there are some."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], object]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._runs = False

    def when(self, wait: Callable[[], None], action: Callable[[], object]) -> None:
        """Run ``action`` on the lane's thread when ``wait`` returns; earlier ones come first."""
        with self._lock:
            self._todo.put((wait, action))
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="trainmover-copies", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                wait, action = self._todo.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._todo.empty():
                        self._runs = False
                        return
                continue
            wait()
            action()


lane = Lane()

_streams: dict[torch.device, torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device on which tensors are copied out and in."""
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
    return stream


def on_side_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Make the side stream the current one."""
    return torch.cuda.stream(side_stream(device))
