"""The backend road into torch: a subclass of ``Backend``, which torch lets Python write since 2.14.

Torch then keeps a process group of its own in front of it, with its dispatcher, hooks, debug
wrapper and flight recorder, and a group can have one backend for each device.  The collectives are in
:mod:`trainmover.ccl.collectives`; here is only what torch wants of the backend object itself.  Its rank
and size are fixed in C++, so a reconfigure can replace members here but not change their number.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.reconfigurable import Reconfigurable


@cache
def backend_road() -> bool:
    """True when this torch lets Python write a ``Backend``."""
    try:
        Backend(0, 1)
    except TypeError:
        return False
    return True


class TrainMoverBackend(Reconfigurable, Backend):
    """A backend whose links can be changed beneath it.

    Args:
        communicator: the process's communicator.
        name: group name, the same on every member.
        ranks: global ranks by group rank; this process is one of them.
        on_shutdown: called when the group has closed its links.
        timeout: what torch shall say that the group's timeout is.
        place: rank and size that torch shall be told, where they are not those of ``ranks``.
    """

    def __init__(
        self,
        communicator: Communicator,
        name: str,
        ranks: tuple[int, ...],
        on_shutdown: Callable[[], None] = lambda: None,
        timeout: timedelta = dist.default_pg_timeout,
        place: tuple[int, int] | None = None,
    ) -> None:
        Backend.__init__(self, *(place or (ranks.index(communicator.rank), len(ranks))))
        self._join(communicator, name, ranks, on_shutdown)
        self._timeout = timeout

    @property
    def options(self) -> Any:
        return Backend.Options("trainmover", timeout=self._timeout)

    def getBackendName(self) -> str:
        return "trainmover"

    @property
    def supports_coalescing(self) -> bool:
        """False: batches of messages start as they come."""
        return False

    @property
    def supports_splitting(self) -> bool:
        return False

    def start_coalescing(self) -> None:
        self._open_window()

    def end_coalescing(self) -> dist.Work:
        return self._close_window()

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False, **_: Any) -> None:
        """A barrier that says which ranks did not come (see :class:`~trainmover.ccl.messages.Messages`)."""
        super().monitored_barrier(getattr(opts, "timeout", opts), wait_all_ranks)

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Nothing to do: links are there since the group is."""

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        super().set_timeout(timeout)

    def shutdown(self) -> None:
        """Close the group's links."""
        self._leave()

    def _get_sequence_number_for_group(self) -> int:
        return self._communicator.groups[self._key].calls

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: every group counts its calls from its start."""
