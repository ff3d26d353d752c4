"""Registration of the ``trainmover`` backend with torch.distributed.

``torch.distributed`` makes a process group by calling the creator registered here; the creator
finds the process's communicator, which :func:`trainmover.join` has installed before.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.group import TrainMoverGroup
from trainmover.errors import JobError

NAME = "trainmover"

_communicator: Communicator | None = None


def register() -> None:
    """Register the backend once; a second call does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def install(communicator: Communicator | None) -> None:
    """Name the communicator that new process groups of this process use."""
    global _communicator
    _communicator = communicator


def _create(options: Any, _backend_options: Any) -> TrainMoverGroup:
    if _communicator is None:
        raise JobError(
            "the trainmover backend needs a running job: call trainmover.join() instead of "
            "init_process_group(), and start the script with `trainmover run`"
        )
    ranks = tuple(int(rank) for rank in options.global_ranks_in_group) or tuple(range(options.group_size))
    name = str(options.group_id)
    _communicator.add_group(name, ranks)
    group = TrainMoverGroup(_communicator, name, ranks)
    group.setGroupName(name)
    return group
