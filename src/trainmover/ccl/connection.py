"""One connection of a link: a non-blocking socket with a queue out and receives posted in.

Lives on the engine's thread only.  It moves bytes and fences epochs; what a broken connection or
a BREAK means is the engine's business, told through ``Listener``.  How it reads is
:mod:`trainmover.ccl.incoming`'s.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque

from trainmover.ccl import frames
from trainmover.ccl.incoming import LEFT, Incoming
from trainmover.ccl.listener import READ_AHEAD, Listener, Matcher
from trainmover.ccl.secure import SecureSocket
from trainmover.ccl.shared import Window
from trainmover.ccl.transfer import Buffer, Transfer

__all__ = ["LEFT", "READ_AHEAD", "Connection", "Listener", "Matcher"]

JOINED_BYTES = 8 * 1024
"""A payload up to this size is copied behind its header: that costs less than to send two pieces."""


class _Out:
    __slots__ = ("data", "epoch", "started", "transfer")

    def __init__(self, data: list[Buffer], epoch: int, transfer: Transfer | None) -> None:
        self.data = data
        self.epoch = epoch
        self.transfer = transfer
        self.started = False


class Connection(Incoming):
    """A connection to one peer process for one link."""

    def __init__(
        self, sock: socket.socket | SecureSocket, peer: int, peer_life: str, listener: Listener
    ) -> None:
        super().__init__(sock, peer, listener)
        self.fd = sock.fileno()
        self.peer_life = peer_life
        self.said_bye = False
        self.window: Window | None = None
        """What the peer lets us see of its memory, when it is beside us."""
        self.unanswered_since: float | None = None
        """When it was first seen that what was sent is not acknowledged (``reach``)."""
        self._out: deque[_Out] = deque()
        self._sent = 0
        self._told = select.EPOLLRDHUP | select.EPOLLIN

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<connection to rank {self.peer} ({self.peer_life}) {state}>"

    # -- what the engine asks ------------------------------------------------------------------

    @property
    def wants_write(self) -> bool:
        owes = self._secure is not None and self._secure.owes
        return (owes or bool(self._out)) and not self.closed and not self._hung_up

    @property
    def ended(self) -> bool:
        """True when the peer has left in good order, or the connection is closed: nothing more will move."""
        return self._left or self.closed

    def close(self) -> None:
        """Close at once; transfers that were posted are dropped."""
        if not self.closed:
            self.closed = True
            self.sock.close()
        self.window = None
        self._out.clear()
        self._posted.clear()
        self._target = None

    def leave(self) -> None:
        """Close a link that is over, in good order: the peer is told, unless a frame is partly out."""
        if not (self.closed or self._hung_up or (self._out and self._out[0].started)):
            with contextlib.suppress(OSError):
                self.sock.send(frames.pack(frames.BYE, self._listener.epoch))
        self.close()

    def new_epoch(self) -> None:
        """The engine moved on: drop what belonged to the old epoch, look at what waited for this one."""
        self.cancel()
        self._sent = self._received = 0
        if self._frame is not None or self._ahead:
            self._pump_in()  # what is still in the socket, the poller tells

    def cancel(self) -> None:
        """Forget posted receives and unsent frames; signals and a frame that is partly out still go."""
        self._posted.clear()
        self._target = None
        self._out = deque(item for item in self._out if item.started or item.transfer is None)
        self._tell()

    # -- sending -------------------------------------------------------------------------------

    def send(self, transfer: Transfer) -> None:
        """Send one payload of the current epoch, or queue what the socket does not take at once."""
        epoch, view = self._listener.epoch, transfer.view
        header = frames.pack(frames.DATA, epoch, self._sent, transfer.tag, len(view))
        self._sent += 1
        sent = 0
        if self._secure is None and not (self._out or self.closed or self._hung_up):
            try:
                if len(view) <= JOINED_BYTES:
                    sent = self.sock.send(header + view)
                else:
                    sent = self.sock.sendmsg((header, view))
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._lost(f"{error.strerror or error}")
                return
            if sent == frames.HEADER_SIZE + len(view):
                transfer.finish()
                return
        data = [memoryview(header)[sent:]] if sent < frames.HEADER_SIZE else []
        if len(view):
            data.append(view[max(0, sent - frames.HEADER_SIZE) :])
        item = _Out(data, epoch, transfer)
        item.started = sent > 0
        self._queue(item, full=sent > 0)

    def signal(self, kind: int, tags: tuple[int, int] = (0, 0)) -> None:
        """Queue a frame without payload; ``tags`` fill its tag and sequence."""
        if kind == frames.BYE:
            self.said_bye = True
        epoch = self._listener.epoch
        self._queue(_Out([memoryview(frames.pack(kind, epoch, tags[1], tags[0]))], epoch, None))

    def _queue(self, item: _Out, *, full: bool = False) -> None:
        """Write it after what is queued; ``full``: the socket takes nothing for now."""
        if self.closed:
            return
        if self._hung_up:
            if item.transfer is not None:
                self._lost(LEFT)
            return
        self._out.append(item)
        if len(self._out) == 1 and not full:
            self.writable()
        else:
            self._tell()

    def writable(self) -> None:
        """Write as much as the socket takes."""
        try:
            if self._secure is not None:
                self._secure.flush()
            while self._out:
                item = self._out[0]
                sent = self.sock.sendmsg(item.data)
                item.started = True
                while item.data and sent >= len(item.data[0]):
                    sent -= len(item.data.pop(0))
                if item.data:
                    item.data[0] = item.data[0][sent:]
                    break  # the socket takes no more for now
                self._out.popleft()
                if item.transfer is not None:
                    item.transfer.finish()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lost(f"{error.strerror or error}")
            return
        self._tell()

    # -- what the engine is told ----------------------------------------------------------------

    def _tell(self) -> None:
        """Tell the engine what this connection waits for, where it would wait in vain otherwise.

        That it would not read for now is told when there is something to read (:meth:`pause`): mostly
        its owner is quicker.
        """
        told = self._told
        if self.wants_write != bool(told & select.EPOLLOUT) or not (
            told & select.EPOLLIN or self._waiting_for_owner()
        ):
            self.pause()

    def pause(self) -> None:
        """Tell the engine exactly what this connection waits for."""
        if self.closed:
            return
        mask = self.mask
        if mask != self._told:
            self._told = mask
            self._listener.interest_changed(self, mask)

    @property
    def mask(self) -> int:
        """What it waits for, as bits of ``epoll``."""
        mask = select.EPOLLRDHUP
        if self.wants_read:
            mask |= select.EPOLLIN
        if self.wants_write:
            mask |= select.EPOLLOUT
        return mask

    def give_up(self, reason: str) -> None:
        """The peer is not reached any more."""
        self._lost(reason)

    def _lost(self, reason: str) -> None:
        if self.closed:
            return
        self.close()
        self._listener.connection_lost(self, reason)

    def _left_well(self) -> None:
        self._listener.interest_changed(self, self.mask)

    def _signalled(self, frame: frames.Header) -> None:
        if frame.kind == frames.BREAK:
            self._listener.break_received(self, frame.epoch, (frame.tag, frame.sequence))
        elif frame.kind == frames.WAITS:
            self._listener.peer_waits(self, frame.epoch, frame.tag, frame.sequence)
