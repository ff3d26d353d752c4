"""One way out for every collective: from a torch call to the process's communicator and back.

What a process group and a backend have in common below torch's method names: who the members are,
and how a prepared call is handed over and becomes a Work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from trainmover.ccl.at_once import carry_out
from trainmover.ccl.communicator import Call, Communicator
from trainmover.ccl.memory import Memory
from trainmover.ccl.tags import MESSAGE
from trainmover.ccl.work import done, work_of


class Launcher:
    """A group's side towards the communicator; a base of both roads into torch."""

    _communicator: Communicator
    _key: str
    _ranks: tuple[int, ...]
    _on_shutdown: Callable[[], None]
    _window: list[tuple[Future[Any], torch.device | None]] | None

    def _join(
        self,
        communicator: Communicator,
        name: str,
        ranks: tuple[int, ...],
        on_shutdown: Callable[[], None] = lambda: None,
    ) -> None:
        """Become the group of this name; called once, by the constructors."""
        self._communicator = communicator
        self._key = name
        self._ranks = ranks
        self._on_shutdown = on_shutdown
        self._window = None
        if name in communicator.groups:
            communicator.groups[name].followers.add(self)

    def _renumber(self, ranks: tuple[int, ...]) -> None:
        """The group has these ranks now."""
        self._ranks = ranks

    @property
    def _me(self) -> int:
        """Own group rank. It follows the process's place, which a promotion sets."""
        return self._ranks.index(self._communicator.rank)

    @property
    def _count(self) -> int:
        """Number of members."""
        return len(self._ranks)

    def _leave(self) -> None:
        """Close the group's links."""
        self._communicator.remove_group(self._key)
        self._on_shutdown()

    # -- calls ---------------------------------------------------------------------------------

    def _launch(self, call: Call, memory: Memory, opts: Any = None, key: str | None = None) -> dist.Work:
        """Hand a call over; ``key`` names a queue of its own, else it waits for the group's earlier calls."""
        if key is not None:
            call.begins = "here"
        elif not getattr(opts, "asyncOp", True) and self._window is None:
            call.begins = "waits"
            if memory.device is None and call.name != MESSAGE:
                memory.fit(call)
                ended = carry_out(self._communicator, self._key, call)
                if ended is True:
                    return done(call.outputs if call.value is None else call.value)
                if ended is not False:
                    return work_of(ended, call)
        return work_of(self._begin(call, memory, key), call)

    def _launch_all(self, calls: Sequence[tuple[Call, Memory]], value: Any) -> dist.Work:
        """Hand over several calls that are one to torch; its value is ``value``."""
        futures = [self._begin(call, memory) for call, memory in calls]
        devices = {call.device for call, _ in calls if call.device is not None}
        return work_of(joined(futures, value, [*devices]))

    def _begin(self, call: Call, memory: Memory, key: str | None = None) -> Future[Any]:
        memory.fit(call)
        future = self._communicator.run(self._key, call, None if key is None else f"{self._key} {key}")
        if self._window is not None:
            self._window.append((future, call.device))
        return future

    # -- windows of coalesced calls --------------------------------------------------------------

    def _open_window(self) -> None:
        """From now on remember calls: they start as they come, and are waited for together."""
        self._window = []

    def _close_window(self) -> dist.Work:
        """One Work for all calls since the window was opened."""
        started, self._window = self._window or [], None
        devices = {device for _, device in started if device is not None}
        return work_of(joined([future for future, _ in started], [], [*devices]))


def joined(
    futures: Sequence[Future[Any]], value: Any, devices: list[str | int | torch.device]
) -> Future[Any]:
    """A future of several: it has ``value`` when all are done, or the error of the first that failed.

    Args:
        futures: what it waits for.
        value: what it gives.
        devices: accelerators that the value is on.
    """
    whole: Future[Any] = Future(devices=devices) if devices else Future()
    left, lock = len(futures), threading.Lock()

    def done(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            settle()

    def settle() -> None:
        try:
            for future in futures:
                future.value()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            whole.set_exception(error)
        else:
            whole.set_result(value)

    if not futures:
        settle()
    for future in futures:
        future.add_done_callback(done)
    return whole
