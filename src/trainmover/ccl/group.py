"""The group road into torch: a subclass of ``torch.distributed.ProcessGroup``, for torch 2.6 and newer.

This is what a job uses with every version, because here the group's rank can follow the process when
a standby is promoted.  The collectives are in :mod:`trainmover.ccl.collectives`; here is only what
torch wants of the group object itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.plugin import TrainMoverBackend, backend_road
from trainmover.ccl.reconfigurable import Reconfigurable


class TrainMoverGroup(Reconfigurable, dist.ProcessGroup):
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
        dist.ProcessGroup.__init__(self, ranks.index(communicator.rank), len(ranks))
        self._join(communicator, name, ranks, on_shutdown)
        self._name = name
        self._description = "undefined"
        self._inner: TrainMoverBackend | None = None
        if backend_road():
            # Torch asks newer groups for what is behind them: devices, and who serves them in C++.
            self._inner = TrainMoverBackend(communicator, name, ranks)
            self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            for device in ("cpu", "cuda"):
                self._register_backend(
                    torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._inner
                )

    def rank(self) -> int:
        """Own group rank. It follows the process's place, which a promotion or a reconfigure sets."""
        given = None if self._membership is None else self._membership.given
        return self._me if given is None else given[0]

    getRank = rank

    def size(self) -> int:
        """Number of members."""
        given = None if self._membership is None else self._membership.given
        return self._count if given is None else given[1]

    getSize = size

    def getBackendName(self) -> str:
        return "trainmover"

    def name(self) -> str:
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

    def shutdown(self) -> None:
        """Close the group's links."""
        self._leave()

    # -- what newer versions of torch ask of the backend behind a group -----------------------------

    def _renumber(self, ranks: tuple[int, ...]) -> None:
        super()._renumber(ranks)
        if self._inner is not None:
            self._inner._renumber(ranks)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> TrainMoverGroup:
        return self

    @property
    def supports_coalescing(self) -> bool:
        """False: batches of messages start as they come."""
        return False

    @property
    def supports_splitting(self) -> bool:
        return True

    def split_group(
        self, ranks: list[int], *_: Any, group_name: str = "", group_desc: str | None = None, **__: Any
    ) -> TrainMoverGroup | None:
        """A group of some of this group's members, by their group ranks; None where this is none of them.

        Every member of the new group makes it at the same time. For ``dist.split_group``, which takes
        this road on CPU tensors since torch 2.15.
        """
        chosen = tuple(self._ranks[rank] for rank in ranks)
        if self._communicator.rank not in chosen:
            return None
        parent = self._communicator.groups[self._key]
        name = group_name or f"{self._key} {chosen}"
        self._communicator.add_group(name, chosen, parent.limit)
        child = TrainMoverGroup(self._communicator, name, chosen, self._on_shutdown)
        child.setGroupName(name)
        child.setGroupDesc(group_desc or "undefined")
        return child

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing to do where this process is not in the new group."""

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Nothing to do: links are there since the group is."""

    def _start_coalescing(self, device: torch.device) -> None:
        self._open_window()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return self._close_window()

    def _get_sequence_number_for_group(self) -> int:
        return self._communicator.groups[self._key].calls

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to set: every group counts its calls from its start."""
