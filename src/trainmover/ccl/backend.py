"""Registration of the ``trainmover`` backend with torch.distributed.

``torch.distributed`` makes a process group by calling the creator registered here.  In a job the
creator finds the process's communicator, which :func:`trainmover.join` has installed before; in any
other script the process gets one of its own (:mod:`trainmover.ccl.standalone`), which lives until its
last group is destroyed.

There are two roads into torch: a ``ProcessGroup`` subclass (*group*) and, since torch 2.14, a ``Backend``
subclass (*backend*).  The group road is the default with every version: its rank can follow a standby that
is promoted, and its Works are asked themselves whether they are done and whom a message came from, which
torch does not pass on to a Work behind a backend.  The backend road has torch's own group in front of it:
one backend for each device, ``dist.monitored_barrier``, the debug wrapper and the flight recorder.
``TRAINMOVER_ROAD`` chooses.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from trainmover.ccl.communicator import Communicator
from trainmover.ccl.group import TrainMoverGroup
from trainmover.ccl.membership import Membership
from trainmover.ccl.plugin import TrainMoverBackend, backend_road
from trainmover.ccl.standalone import Standalone
from trainmover.errors import ConfigError

NAME = "trainmover"

ROAD = "TRAINMOVER_ROAD"
"""Environment variable: ``group`` or ``backend``, the road into torch."""

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


def road() -> str:
    """The road to take.

    Raises:
        ConfigError: the one asked for does not exist.
    """
    wanted = os.environ.get(ROAD) or "group"
    if wanted not in ("group", "backend"):
        raise ConfigError(f"{ROAD} is {wanted!r}; it can be 'group' or 'backend'")
    if wanted == "backend" and not backend_road():
        raise ConfigError(f"{ROAD}=backend needs torch 2.14 or newer; this is {torch.__version__}")
    return wanted


def _create(options: Any, _backend_options: Any) -> Any:
    ranks = tuple(int(rank) for rank in options.global_ranks_in_group) or tuple(range(options.group_size))
    name = str(options.group_id)
    chosen = road()
    # With torch's enable_reconfigure a group has no members before it is reconfigured.
    later = bool(getattr(options, "enable_reconfigure", False))
    place = int(options.group_rank), int(options.group_size)
    if later:
        ranks = (ranks[place[0]],)
    communicator = _communicator or _own(options, ranks)
    # A job has a limit of its own for its calls: torch's default of half an hour is none.
    limit = options.timeout.total_seconds() if _communicator is None else None
    communicator.add_group(name, ranks, limit)
    group: TrainMoverBackend | TrainMoverGroup
    if chosen == "backend":
        group = TrainMoverBackend(communicator, name, ranks, _left, options.timeout, place)
    else:
        group = TrainMoverGroup(communicator, name, ranks, _left)
        group.setGroupName(name)
    if _standalone is not None:
        fixed = place if chosen == "backend" else None
        group._membership = Membership(_standalone, group, place if later else None, fixed)
    return group


def _own(options: Any, ranks: tuple[int, ...]) -> Communicator:
    """The process's own communicator, acquainted with the group's members."""
    global _standalone
    if _standalone is not None and not dist.is_initialized():
        # Torch has dropped its groups after an abort, without a word.
        _standalone.close()
        _standalone = None
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
