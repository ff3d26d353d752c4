"""Works: what torch's callers wait on.

A Work is a Python subclass over a future, because the wrapper that torch offers for futures keeps
their errors to itself in ``wait`` and cannot name the source of a message.  C++ callers (DDP,
functional collectives) reach ``wait`` and ``get_future``; everything else is for Python callers.
Torch 2.6 loses the Python half of a Work that it got in C++, and waits for ever; there the wrapper is what
everybody gets but ``torch.distributed``'s own functions.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _create_work_from_future
from torch.futures import Future

from trainmover.ccl.communicator import Call
from trainmover.ccl.untraced import untraced
from trainmover.errors import LinkError

if TYPE_CHECKING:
    from trainmover.ccl.at_once import Receiving
    from trainmover.ccl.engine import Engine

LOSES_WORKS = torch.__version__.startswith("2.6.")
"""True for the torch that keeps no Python object of a Work alive."""

KEEPS_WORKS = "torch.distributed.distributed_c10d"
"""The module whose functions hold on to a Work in Python."""


@untraced
class TrainMoverWork(Work):
    """One call under way. A thread that waits may carry it out itself, which no compiler shall trace.

    Args:
        future: completes with the call; its value is what ``get_future`` promises.
        call: the call, or None for several that are waited for together.
    """

    def __init__(self, future: Future[Any], call: Call | None = None) -> None:
        super().__init__()
        self._future = future
        self._call = call

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call's end, and raise what it ended with.

        Raises:
            LinkError: the call failed, or did not end within the timeout.
        """
        if timeout is not None and timeout > timedelta(0) and not self._future.done():
            ended = threading.Event()
            self._future.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                name = "a call" if self._call is None else f"{self._call.name} ({self._call.detail})"
                raise LinkError(f"{name} did not end within {timeout.total_seconds():g} s")
        if self._call is not None and self._call.drive is not None:
            self._call.drive(self._future.done)
        self._future.wait()
        return True

    def get_future(self) -> Future[Any]:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that the call ended with, if it has."""
        if not self._future.done():
            return None
        try:
            self._future.value()
        except Exception as error:  # noqa: BLE001 - it is the answer
            return error
        return None

    def result(self) -> Any:
        """The outputs of a call that has ended."""
        return self._future.value()

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """Group rank that a message from any source came from; -1 where nobody said."""
        found = None if self._call is None else self._call.result
        return found if isinstance(found, int) else -1

    _source_rank = source_rank


@untraced
class MessageWork(TrainMoverWork):
    """A receive that has been posted. It has a future only if somebody asks for it before its end.

    Args:
        receiving: the receive.
        engine: who carries it out.
    """

    def __init__(self, receiving: Receiving, engine: Engine) -> None:
        Work.__init__(self)
        self._receiving, self._engine = receiving, engine
        self._call = receiving.ending.call
        self._call.drive = engine.drive

    @property
    def _future(self) -> Future[Any]:
        return self._receiving.ending.future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is None or timeout <= timedelta(0):
            self._engine.drive(self._receiving.is_over)
            if self._receiving.ending.ended:
                return True
        return super().wait(timeout)

    def is_completed(self) -> bool:
        return self._receiving.ending.ended or (self._receiving.is_over() and super().is_completed())

    def source_rank(self) -> int:
        assert self._call is not None
        return -1 if self._call.source is None else self._call.source

    _source_rank = source_rank


@untraced
class DoneWork(Work):
    """A call that has ended already. It has a future only if somebody asks for it.

    Args:
        outputs: the call's result.
    """

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._outputs)
        return future

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> Any:
        return self._outputs

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank


def done(outputs: Any) -> dist.Work:
    """The Work of a call that has ended."""
    if LOSES_WORKS and _caller() != KEEPS_WORKS:
        future: Future[Any] = Future()
        future.set_result(outputs)
        return _create_work_from_future(future)
    return DoneWork(outputs)


def work_of(future: Future[Any], call: Call | None = None) -> dist.Work:
    """The Work of a call whose end the future tells."""
    if LOSES_WORKS and _caller() != KEEPS_WORKS:
        return _create_work_from_future(future)
    return TrainMoverWork(future, call)


def _caller() -> str:
    """Name of the module that has called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("trainmover."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))
