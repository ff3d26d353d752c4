"""One connection of a link: a non-blocking socket with a queue out and receives posted in.

Lives on the engine's thread only.  It moves bytes and fences epochs; what a broken connection or
a BREAK means is the engine's business, told through :class:`Listener`.

Receiving: a header is read, then its payload goes straight into the memory of the next posted
receive.  A frame of an older epoch is thrown away, one of a newer epoch waits until the engine
gets there, and one that nobody has posted a receive for waits in the kernel (back pressure).
When a receive is cancelled in the middle of a payload, the rest is thrown away, so the memory is
its owner's again while the connection stays in step.  A peer that says BYE and hangs up has left in
good order; only whoever still waits for it, or sends to it, has lost something.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Protocol

from trainmover.ccl import frames
from trainmover.ccl.secure import SecureSocket
from trainmover.ccl.shared import Window
from trainmover.ccl.tags import Mismatch
from trainmover.ccl.transfer import Buffer, Transfer
from trainmover.errors import LinkError

LEFT = "the peer has left the job"

READ_AHEAD = 16 * 1024
"""What is shorter than this is read with what follows it, in one go."""


class Listener(Protocol):
    """What a connection tells the engine."""

    @property
    def epoch(self) -> int:
        """The epoch whose frames are delivered."""

    @property
    def broken(self) -> bool:
        """True while frames of the current epoch are thrown away."""

    def lend(self) -> bytearray:
        """A buffer of ``READ_AHEAD`` bytes to read into for a moment."""

    def give_back(self, buffer: bytearray) -> None:
        """The lent buffer is free again."""

    def connection_lost(self, connection: Connection, reason: str) -> None:
        """The connection ended or its peer broke the protocol (see ``connection.fault``)."""

    def break_received(self, connection: Connection, epoch: int, tags: tuple[int, int]) -> None:
        """The peer says that its epoch is broken: for what we have called (its tag, ours), or (0, 0)."""

    def peer_waits(self, connection: Connection, epoch: int, tag: int, number: int) -> None:
        """The peer has been waiting for long in the call of this tag, the number-th of its group."""

    def interest_changed(self, connection: Connection) -> None:
        """``wants_read`` or ``wants_write`` may have changed."""


class Matcher(Protocol):
    """Finds the memory for messages, on a link where they may be received in another order than sent."""

    def expects(self, peer: int) -> bool:
        """True when somebody waits for this rank and no other."""

    def has_room(self, peer: int) -> bool:
        """True when the next message of this rank shall be read."""

    def claim(self, peer: int, frame: frames.Header) -> Transfer:
        """Memory for a message."""


class _Out:
    __slots__ = ("data", "epoch", "started", "transfer")

    def __init__(self, data: list[Buffer], epoch: int, transfer: Transfer | None) -> None:
        self.data = data
        self.epoch = epoch
        self.transfer = transfer
        self.started = False


class Connection:
    """A connection to one peer process for one link."""

    def __init__(
        self, sock: socket.socket | SecureSocket, peer: int, peer_life: str, listener: Listener
    ) -> None:
        self.sock = sock
        self._secure = sock if isinstance(sock, SecureSocket) else None
        self.fd = sock.fileno()
        self.peer = peer
        self.peer_life = peer_life
        self.closed = False
        self.said_bye = False
        self.peer_said_bye = False
        self.fault: LinkError | None = None
        """How the peer broke the protocol, once it has."""
        self.window: Window | None = None
        """What the peer lets us see of its memory, when it is beside us."""
        self.matcher: Matcher | None = None
        """Where receives are posted, instead of here in the order of the frames."""
        self._listener = listener
        self._out: deque[_Out] = deque()
        self._posted: deque[Transfer] = deque()
        self._sent = 0
        self._received = 0
        self._header = bytearray(frames.HEADER_SIZE)
        self._header_fill = 0
        self._frame: frames.Header | None = None
        self._target: Transfer | None = None
        self._fill = 0
        self._buffer: bytearray | None = None
        self._ahead = memoryview(b"")
        self._drained = False
        self._told: tuple[bool, bool] | None = None
        self._hung_up = False
        self._left = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<connection to rank {self.peer} ({self.peer_life}) {state}>"

    # -- what the engine asks ------------------------------------------------------------------

    @property
    def wants_write(self) -> bool:
        owes = self._secure is not None and self._secure.owes
        return (owes or bool(self._out)) and not self.closed and not self._hung_up

    @property
    def wants_read(self) -> bool:
        return not self.closed and not self._hung_up and not self._waiting_for_owner()

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
        """Queue one payload of the current epoch."""
        epoch = self._listener.epoch
        header = frames.pack(frames.DATA, epoch, self._sent, transfer.tag, len(transfer.view))
        self._sent += 1
        data = [memoryview(header)]
        if len(transfer.view):
            data.append(transfer.view)
        self._queue(_Out(data, epoch, transfer))

    def signal(self, kind: int, tags: tuple[int, int] = (0, 0)) -> None:
        """Queue a frame without payload; ``tags`` fill its tag and sequence."""
        if kind == frames.BYE:
            self.said_bye = True
        epoch = self._listener.epoch
        self._queue(_Out([memoryview(frames.pack(kind, epoch, tags[1], tags[0]))], epoch, None))

    def _queue(self, item: _Out) -> None:
        if self.closed:
            return
        if self._hung_up:
            if item.transfer is not None:
                self._lost(LEFT)
            return
        self._out.append(item)
        if len(self._out) == 1:
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
                    continue
                self._out.popleft()
                if item.transfer is not None:
                    item.transfer.finish()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lost(f"{error.strerror or error}")
            return
        self._tell()

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, transfer: Transfer) -> None:
        """Post memory for the next payload of the current epoch."""
        self._posted.append(transfer)
        self.read_on()

    def readable(self) -> None:
        """Read what is there and may be read."""
        self._drained = False
        self._pump_in()

    def read_on(self) -> None:
        """A receive was posted, here or with the matcher: look at what waited for one."""
        if self._frame is not None or self._ahead:
            self._pump_in()
        if self._starved:
            self._lost(LEFT)

    def hung_up(self) -> None:
        """The peer closed its side: take what is left, then say whether it was in good order."""
        if self._hung_up or self.closed:
            return
        rest = bytearray(self._ahead)
        try:
            while piece := self.sock.recv(1 << 20):
                rest += piece
        except OSError:
            pass
        self._ahead = memoryview(bytes(rest))
        self._hung_up = True
        self._pump_in()
        if not self._ends_with_bye():
            self._lost("the peer closed the connection")
        elif self._starved:
            self._lost(LEFT)
        else:
            self._left = True
            self._listener.interest_changed(self)

    @property
    def _starved(self) -> bool:
        """True when a receive waits for what can no longer come."""
        if not self._hung_up or self.closed:
            return False
        named = self.matcher is not None and self.matcher.expects(self.peer)
        return named or bool(self._posted or self._target)

    def _ends_with_bye(self) -> bool:
        if self.peer_said_bye:
            return True
        tail = self._ahead[-frames.HEADER_SIZE :]
        return len(tail) == frames.HEADER_SIZE and bytes(tail[:4]) == frames.pack(frames.BYE, 0)[:4]

    def _waiting_for_owner(self) -> bool:
        """True when the next payload has no memory to go to yet."""
        frame = self._frame
        if frame is None or self._target is not None or self._fill:
            return False
        current = self._listener.epoch
        if frame.epoch > current:
            return True
        if frame.epoch < current or self._listener.broken:
            return False
        return not (self._posted if self.matcher is None else self.matcher.has_room(self.peer))

    def _pump_in(self) -> None:
        self._move_in()
        if self._buffer is not None:
            if self._ahead:
                self._ahead = memoryview(bytes(self._ahead))
            self._listener.give_back(self._buffer)
            self._buffer = None
        self._tell()

    def _move_in(self) -> None:
        try:
            while not self.closed:
                if self._frame is None:
                    if not self._read_header():
                        break
                elif self._waiting_for_owner() or not self._read_payload(self._frame):
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except LinkError as error:
            self.fault = error
            self._lost(str(error))
        except OSError as error:
            self._lost(f"{error.strerror or error}")

    def _take(self, view: Buffer) -> int:
        """Read into ``view``; 0 means that nothing more will come for now."""
        if self._ahead or self._hung_up:
            size = min(len(view), len(self._ahead))
            view[:size] = self._ahead[:size]
            self._ahead = self._ahead[size:]
            return size
        if self._drained:
            return 0
        if len(view) >= READ_AHEAD:
            size = self.sock.recv_into(view)
            self._drained = size < len(view)
        else:
            if self._buffer is None:
                self._buffer = self._listener.lend()
            size = self.sock.recv_into(self._buffer)
            self._drained = size < READ_AHEAD
            self._ahead = memoryview(self._buffer)[:size]
            if size:
                return self._take(view)
        if size == 0:
            self.hung_up()
        return size

    def _read_header(self) -> bool:
        size = self._take(memoryview(self._header)[self._header_fill :])
        self._header_fill += size
        if self._header_fill < frames.HEADER_SIZE:
            return size > 0
        self._header_fill = 0
        frame = frames.unpack(self._header)
        if frame.kind == frames.BYE:
            self.peer_said_bye = True
        elif frame.kind == frames.BREAK:
            self._listener.break_received(self, frame.epoch, (frame.tag, frame.sequence))
        elif frame.kind == frames.WAITS:
            self._listener.peer_waits(self, frame.epoch, frame.tag, frame.sequence)
        else:
            self._frame, self._fill = frame, 0
        return True

    def _read_payload(self, frame: frames.Header) -> bool:
        if self._target is None and self._fill == 0:
            self._claim(frame)
        if self._fill < frame.length:
            target = self._target
            if target is not None:
                view = target.view[self._fill : frame.length]
            else:
                view = memoryview(bytearray(min(frame.length - self._fill, 1 << 20)))
            size = self._take(view)
            self._fill += size
            if self._fill < frame.length:
                return size > 0
        target, self._target, self._frame, self._fill = self._target, None, None, 0
        if target is not None:
            target.finish()
        return True

    def _claim(self, frame: frames.Header) -> None:
        """Give the frame to the next posted receive, or to nobody when its epoch is over."""
        if frame.epoch < self._listener.epoch or self._listener.broken:
            return
        if frame.sequence != self._received & 0xFFFFFFFF:
            raise LinkError(f"frame {frame.sequence} arrived where {self._received} was due")
        if self.matcher is not None:
            target = self.matcher.claim(self.peer, frame)
        else:
            target = self._posted.popleft()
            if 0 < frame.length <= target.most and frame.tag == target.tag:
                target.view = memoryview(bytearray(frame.length))
            if frame.tag != target.tag or frame.length != len(target.view):
                ours = target.most or len(target.view)
                raise Mismatch(self.peer, target.tag, ours, frame.tag, frame.length)
        self._received += 1
        self._target = target

    def _tell(self) -> None:
        """Tell the engine what this connection waits for, where that has changed."""
        if self.closed:
            return
        wants = (self.wants_read, self.wants_write)
        if wants != self._told:
            self._told = wants
            self._listener.interest_changed(self)

    def _lost(self, reason: str) -> None:
        if self.closed:
            return
        self.close()
        self._listener.connection_lost(self, reason)
