"""The short ways of calls: messages, and collectives whose caller waits.

A call costs Python more than the kernel.  Where nobody watches calls go by, what nearly always happens needs
less than a call may need.  A message with nothing queued before it and its link there is written to the
socket at once, without call, walk or future; what the socket does not take is waited for as always.  A
receive is one transfer, and its walk has no steps.  A collective whose caller waits for its end is carried
out on the caller's thread.  Both have a future only if somebody asks for it before they end.  Everything
else takes the long way, ``Communicator.run``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.futures import Future

from trainmover.ccl.communicator import Call, Communicator, GroupInfo
from trainmover.ccl.engine import Steps, Walk
from trainmover.ccl.tags import MESSAGE
from trainmover.ccl.transfer import Transfer
from trainmover.ccl.view import as_bytes
from trainmover.ccl.work import LOSES_WORKS


def send_at_once(
    communicator: Communicator,
    name: str,
    flat: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    peer: int,
    tag: int,
    key: str,
) -> tuple[Future[Any], Call] | bool:
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
        True: it is out.  False: it must take the long way.  Else some of it is out: the future and the call
        of the rest.
    """
    info, engine = communicator.groups[name], communicator.engine
    if not communicator.takes_short_ways or len(info.ranks) == 1:
        return False
    transfer = Transfer(as_bytes(flat), tag, flat)
    rest: list[tuple[Future[Any], Call]] = []

    def waiting() -> Walk:
        future: Future[Any] = Future()
        call = Call(MESSAGE, "", list(outputs), True, lambda *_: _until(transfer), peer=peer)
        call.drive = engine.drive
        rest.append((future, call))
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
    return rest[0] if rest else True


def _until(transfer: Transfer) -> Steps:
    yield [transfer]


class Ending:
    """How a call ends that mostly does so before anybody asks: a future is made only where it is needed."""

    __slots__ = ("_communicator", "_door", "_future", "_info", "call", "ended")

    def __init__(self, communicator: Communicator, info: GroupInfo, call: Call) -> None:
        self._communicator, self._info, self.call = communicator, info, call
        self._door = threading.Lock()
        self._future: Future[Any] | None = None
        self.ended = False
        """It has ended well, and nobody needs a future to know it."""

    def quietly(self) -> bool:
        """It ends now. True: nobody has asked for a future, and nothing is left to do."""
        with self._door:
            self.ended = self._future is None
            return self.ended

    def well(self, result: Any) -> None:
        """The walk has ended."""
        self.call.result = result
        if self.call.after is not None:
            self.call.after()
        if not self.quietly():
            self._communicator._deliver(self.call, self.future())

    def badly(self, reason: str) -> None:
        """The epoch has broken."""
        self._communicator._unanswered(self._info, self.call, self.future(), reason)

    def future(self) -> Future[Any]:
        """The call's future from now on."""
        with self._door:
            if self._future is None:
                self._future = Future()
            if self.ended:
                self.ended = False
                self._communicator._deliver(self.call, self._future)
            return self._future


class Receiving(Walk):
    """A receive that has been posted: a walk that has nothing more to do."""

    __slots__ = ("ending",)

    def __init__(self, communicator: Communicator, info: GroupInfo, call: Call) -> None:
        self.ending = Ending(communicator, info, call)
        super().__init__(
            lambda: f"{MESSAGE} ({call.detail}) of group {info.name!r}",
            lambda: iter(()),  # type: ignore[arg-type,return-value]
            self.ending.well,
            self.ending.badly,
            info.limit or communicator.limit,
        )

    def transfer_done(self) -> None:
        if self.schedule is None:
            return
        if self.ending.call.after is None and self.ending.quietly():
            self.schedule.retire(self)
        else:
            self.schedule.runnable(self)

    def advance(self) -> bool:
        raise StopIteration(self.ending.call.source)


def receive_at_once(
    communicator: Communicator, name: str, flat: torch.Tensor, call: Call, tag: int, key: str
) -> Receiving | None:
    """Post a receive of a live group now. None: it must take the long way.

    Args:
        communicator: the process's.
        name: the group.
        flat: memory of the CPU for the message; it is the output, or ``call.after`` copies it there.
        call: has the outputs and the source.
        tag: the frame's.
        key: queue of this receive alone.
    """
    info, engine = communicator.groups[name], communicator.engine
    if LOSES_WORKS or not communicator.takes_short_ways or len(info.ranks) == 1 or call.source is None:
        return None
    receiving = Receiving(communicator, info, call)
    link = communicator.view(name, info.ranks).pairs.link_from(call.source)
    if not engine.receive_at_once(key, link, Transfer(as_bytes(flat), tag, flat), receiving):
        return None
    info.calls += 1
    return receiving


def carry_out(communicator: Communicator, name: str, call: Call) -> Future[Any] | bool:
    """Carry a collective of a live group out for its caller, who waits for it.

    Args:
        communicator: the process's.
        name: the group.
        call: on memory of the CPU.

    Returns:
        True: it has ended well.  False: it must take the long way.  Else its future.
    """
    info, engine = communicator.groups[name], communicator.engine
    if not communicator.takes_short_ways or engine.broken or len(info.ranks) == 1:
        return False
    communicator.begin(info, call)
    ending = Ending(communicator, info, call)
    engine.carry_out(info.wire, communicator.walk_of(info, call, ending.well, ending.badly, call.tag))
    return True if ending.ended else ending.future()
