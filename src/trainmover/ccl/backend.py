"""Registration of the ``trainmover`` backend with torch.distributed.

``torch.distributed`` makes a process group by calling the creator registered here.  In a job the
creator finds the process's communicator, which :func:`trainmover.join` has installed before; in any
other script the process gets one of its own (:mod:`trainmover.ccl.standalone`), which lives until its
last group is destroyed.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.group import TrainMoverGroup
from trainmover.ccl.standalone import Standalone

NAME = "trainmover"

_communicator: Communicator | None = None
_standalone: Standalone | None = None


def register() -> None:
    """Register the backend once; a second call does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def install(communicator: Communicator | None) -> None:
    """Name the communicator that new process groups of this process use."""
    global _communicator
    _communicator = communicator


def _create(options: Any, _backend_options: Any) -> TrainMoverGroup:
    ranks = tuple(int(rank) for rank in options.global_ranks_in_group) or tuple(range(options.group_size))
    name = str(options.group_id)
    communicator = _communicator or _own(options, ranks)
    communicator.add_group(name, ranks)
    group = TrainMoverGroup(communicator, name, ranks, on_shutdown=_left)
    group.setGroupName(name)
    return group


def _own(options: Any, ranks: tuple[int, ...]) -> Communicator:
    """The process's own communicator, acquainted with the group's members."""
    global _standalone
    if _standalone is None:
        store, rank, world_size = options.store, int(options.group_rank), int(options.group_size)
        if dist.is_initialized():  # the default group is another backend's
            store = dist.distributed_c10d._get_default_store()
            rank, world_size = dist.get_rank(), dist.get_world_size()
        _standalone = Standalone(store, rank, world_size, options.timeout.total_seconds())
    try:
        _standalone.meet(ranks)
    except BaseException:
        _left()
        raise
    return _standalone.communicator


def _left() -> None:
    """A group is gone; with the last one goes the process's own communicator."""
    global _standalone
    if _standalone is not None and not _standalone.communicator.groups:
        _standalone.close()
        _standalone = None
