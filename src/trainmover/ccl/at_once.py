"""The short way of a small message: out on the caller's thread, without call, walk or future.

A message costs Python more than the kernel.  Where nobody watches calls go by, nothing is queued before
the message and its link is there, it is written to the socket at once; what the socket does not take is
waited for as always.  Everything else takes the long way, ``Communicator.run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.futures import Future

from trainmover.ccl.communicator import Call, Communicator
from trainmover.ccl.engine import Steps, Walk
from trainmover.ccl.tags import MESSAGE
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import as_bytes

AT_ONCE_BYTES = 64 * 1024
"""A message of up to this size tries the short way."""


def send_at_once(
    communicator: Communicator,
    name: str,
    flat: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    peer: int,
    tag: int,
    key: str,
) -> Future[Any] | bool:
    """Send a message of a live group now.

    Args:
        communicator: the process's.
        name: the group.
        flat: the content, in memory that stays.
        outputs: what the future gives, if there is one.
        peer: group rank of the receiver.
        tag: the frame's.
        key: queue of what is sent to this peer.

    Returns:
        True: it is out.  False: it must take the long way.  Else a future, as of a call.
    """
    info, engine = communicator.groups[name], communicator.engine
    if not communicator.takes_short_ways or len(info.ranks) == 1:
        return False
    transfer = Transfer(as_bytes(flat), tag, flat)
    futures: list[Future[Any]] = []

    def waiting() -> Walk:
        future: Future[Any] = Future()
        futures.append(future)
        call = Call(MESSAGE, "", list(outputs), True, lambda *_: _until(transfer), peer=peer)
        return Walk(
            f"{MESSAGE} of group {name!r}",
            lambda: _until(transfer),
            lambda result: communicator._finish(info, call, future, result),
            lambda reason: communicator._unanswered(info, call, future, reason),
            info.limit or communicator.limit,
        )

    link = communicator.view(name, info.ranks).pairs.link_to(peer)
    if not engine.send_at_once(key, link, transfer, waiting):
        return False
    info.calls += 1
    info.sends_to.add(peer)
    return futures[0] if futures else True


def _until(transfer: Transfer) -> Steps:
    yield [transfer]
