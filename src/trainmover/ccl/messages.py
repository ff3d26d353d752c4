"""Point to point as torch calls it: send, recv, recv from any source; and the monitored barrier.

Messages are matched by sender and tag, in any order of tags.  The monitored barrier is made of them:
everybody reports to group rank 0, which answers with the list of those who did not.
"""

from __future__ import annotations

import itertools
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainmover.ccl import algorithms
from trainmover.ccl.arguments import Tensors, member, one
from trainmover.ccl.at_once import receive_at_once, send_at_once
from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.launch import Launcher
from trainmover.ccl.memory import Memory
from trainmover.ccl.tags import MESSAGE, message_tag
from trainmover.ccl.view import Group
from trainmover.ccl.work import MessageWork, done, work_of
from trainmover.errors import LinkError

TAGS = 1 << 24
"""Tags are below this number."""

MONITOR = TAGS - 1
"""The tag of the monitored barrier's messages."""

PATIENCE = timedelta(seconds=300)
"""How long a monitored barrier waits that was not told."""

_numbers = itertools.count()


class Messages(Launcher):
    """The point-to-point methods of a process group."""

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        tensor, memory = one(tensors, "send"), Memory()
        member(peer, self._count, "send")
        frame_tag, flat = message_tag(checked(tag)), memory.read(tensor)
        if memory.device is None and self._window is None:
            queue = f"{self._key} to {peer}"
            sent = send_at_once(self._communicator, self._key, flat, tensors, peer, frame_tag, queue)
            if sent is True:
                return done(tensors)
            if sent is not False:
                return work_of(*sent)

        def walk(group: Group, _: int) -> Steps:
            return algorithms.send(group, flat, peer, frame_tag)

        call = Call(MESSAGE, f"tag {tag}", [], True, walk, peer=peer)
        return self._launch(call, memory, key=f"to {peer}")

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> dist.Work:
        tensor, memory = one(tensors, "recv"), Memory()
        member(peer, self._count, "recv")
        frame_tag, flat = message_tag(checked(tag)), memory.write(tensor)

        def walk(group: Group, _: int) -> Steps:
            yield from algorithms.receive(group, flat, peer, frame_tag)
            return peer

        # Receives wait beside each other: the peer may send in another order, by tag.
        call, key = (
            Call(MESSAGE, f"tag {tag}", [tensor], False, walk, source=peer),
            f"receive {next(_numbers)}",
        )
        if memory.device is None and self._window is None:
            memory.fit(call)
            receiving = receive_at_once(
                self._communicator, self._key, flat, call, frame_tag, f"{self._key} {key}"
            )
            if receiving is not None:
                return MessageWork(receiving, self._communicator.engine)
        return self._launch(call, memory, key=key)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Receive from whoever sends with this tag; the Work's ``source_rank()`` says who it was."""
        tensor, memory = one(tensors, "recv"), Memory()
        frame_tag, flat = message_tag(checked(tag)), memory.write(tensor)

        def walk(group: Group, _: int) -> Steps:
            return algorithms.receive_any(group, flat, frame_tag)

        call = Call(MESSAGE, f"tag {tag}", [tensor], False, walk)
        return self._launch(call, memory, key=f"receive {next(_numbers)}")

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False, **_: Any
    ) -> None:
        """A barrier that says which ranks did not come.

        Args:
            timeout: how long group rank 0 waits for the others.
            wait_all_ranks: name all missing ranks instead of the first one.

        Raises:
            LinkError: on every rank that came, when others did not.
        """
        patience = PATIENCE if timeout is None or timeout < timedelta(0) else timeout
        limit, me, size = patience.total_seconds(), self._me, self._count
        if size == 1:
            return
        if me == 0:
            if limit == 0:
                raise LinkError(
                    f"Rank 0 timed out in monitoredBarrier of group {self._key!r} before it began"
                )
            missing = self._missing(limit, wait_all_ranks)
            answer = torch.tensor([rank in missing for rank in range(size)], dtype=torch.uint8)
            for rank in self._others_there():
                if rank not in missing:
                    self.send([answer], rank, MONITOR)
            if missing:
                names = ", ".join(str(self._ranks[rank]) for rank in missing)
                ranks = "Rank" if len(missing) == 1 else "Ranks"
                raise LinkError(f"{ranks} {names} failed to pass monitoredBarrier in {limit * 1000:.0f} ms")
            return
        self.send([torch.zeros(1, dtype=torch.uint8)], 0, MONITOR)
        answer = torch.zeros(size, dtype=torch.uint8)
        reached = (
            f"Rank {self._ranks[me]} successfully reached monitoredBarrier, but received errors while "
            f"waiting for send/recv from rank {self._ranks[0]}"
        )
        # Rank 0 may come last, and then still has its own patience with the others.
        if not _ends(self.recv([answer], 0, MONITOR), 2 * limit + 1.0):
            raise LinkError(f"{reached}: no answer within {2 * limit + 1.0:g} s")
        names = ", ".join(str(self._ranks[rank]) for rank in range(size) if answer[rank])
        if names:
            raise LinkError(f"{reached}: missing are {names}")

    def _others_there(self) -> list[int]:
        """The members but the first of those that are there."""
        absent = self._communicator.absent
        return [rank for rank in range(self._count) if self._ranks[rank] not in absent][1:]

    def _missing(self, limit: float, all_of_them: bool) -> list[int]:
        """Who did not report in time (on group rank 0)."""
        until = time.monotonic() + limit
        works = {
            rank: self.recv([torch.zeros(1, dtype=torch.uint8)], rank, MONITOR)
            for rank in self._others_there()
        }
        missing: list[int] = []
        for rank, work in works.items():
            if not _ends(work, until - time.monotonic()):
                missing.append(rank)
                if not all_of_them:
                    break
        return missing


def _ends(work: dist.Work, seconds: float) -> bool:
    """Wait for a Work; False when it does not end in time. Its own error is raised."""
    future, ended = work.get_future(), threading.Event()
    future.add_done_callback(lambda _: ended.set())
    if not ended.wait(max(seconds, 0.0)):
        return False
    future.value()
    return True


def checked(tag: int) -> int:
    """A tag that fits a frame."""
    if not 0 <= tag < TAGS:
        raise LinkError(f"a message's tag is between 0 and {TAGS - 1}, got {tag}")
    return tag
