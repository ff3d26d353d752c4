"""The receiving half of a connection: frames come off a socket and go to the receives that are posted.

A header is read, then its payload goes straight into the memory of the next posted receive.  A frame of an
older epoch is thrown away, one of a newer epoch waits until the engine gets there, and one that nobody has
posted a receive for waits in the kernel (back pressure).  When a receive is cancelled in the middle of a
payload, the rest is thrown away, so the memory is its owner's again while the connection stays in step.  A
peer that says BYE and hangs up has left in good order; only whoever still waits for it, or sends to it, has
lost something.

There are three ways.  The *long way* (``_move_in``) takes every frame in every state.  The *short way*
(``_read_small``) takes what comes nearly always: frames of this epoch with a receive that they fit.  The
*straight way* (``_read_straight``) is for large payloads: it bets on the next receive and reads header and
payload in one go, each where it belongs.  At anything else these two leave what they have read to the long
way, which says what is wrong.
"""

from __future__ import annotations

import socket
from collections import deque

from trainmover.ccl import frames
from trainmover.ccl.listener import READ_AHEAD, Listener, Matcher
from trainmover.ccl.secure import SecureSocket
from trainmover.ccl.tags import Mismatch
from trainmover.ccl.transfer import Buffer, Transfer
from trainmover.errors import LinkError

LEFT = "the peer has left the job"

STRAIGHT = 12 * 1024
"""Where a payload of this size is due, its header is read with it, and nothing that follows."""


class Incoming:
    """The receiving half of a connection.

    Args:
        sock: non-blocking from now on.
        peer: rank at the other end.
        listener: what it tells the engine.
    """

    def __init__(self, sock: socket.socket | SecureSocket, peer: int, listener: Listener) -> None:
        self.sock = sock
        self.peer = peer
        self.closed = False
        self.peer_said_bye = False
        self.fault: LinkError | None = None
        """How the peer broke the protocol, once it has."""
        self.matcher: Matcher | None = None
        """Where receives are posted, instead of here in the order of the frames."""
        self._secure = sock if isinstance(sock, SecureSocket) else None
        self._listener = listener
        self._posted: deque[Transfer] = deque()
        self._received = 0
        self._header = bytearray(frames.HEADER_SIZE)
        self._header_fill = 0
        self._frame: frames.Header | None = None
        self._target: Transfer | None = None
        self._fill = 0
        self._buffer: bytearray | None = None
        self._ahead = memoryview(b"")
        self._drained = False
        self._hung_up = False
        self._left = False

    # -- what the other half does ------------------------------------------------------------------

    def pause(self) -> None:
        """Tell the engine exactly what this connection waits for."""
        raise NotImplementedError

    def _tell(self) -> None:
        raise NotImplementedError

    def _lost(self, reason: str) -> None:
        raise NotImplementedError

    def _left_well(self) -> None:
        raise NotImplementedError

    def _signalled(self, frame: frames.Header) -> None:
        raise NotImplementedError

    @property
    def wants_read(self) -> bool:
        """True when it would read."""
        return not self.closed and not self._hung_up and not self._waiting_for_owner()

    # -- receiving -----------------------------------------------------------------------------

    def receive(self, transfer: Transfer) -> None:
        """Post memory for the next payload of the current epoch."""
        self._posted.append(transfer)
        if self._frame is not None or self._ahead or self._hung_up:
            self.read_on()

    def readable(self) -> None:
        """Read what is there and may be read."""
        self._drained = False
        if self._fill and self._target is not None and self._may_read_on(self._target):
            self._read_rest(self._target)
        elif self._frame is not None or self._ahead or self._header_fill or self._hung_up:
            if self.wants_read:
                self._pump_in()
            else:
                self.pause()
        elif self._posted:
            self._read(self._posted[0])
        elif self.matcher is not None:
            self._read(self.matcher.due(self.peer))
        else:
            self._pump_in()

    def _read(self, due: Transfer | None) -> None:
        """Begin a frame. What an earlier epoch has left behind comes first, and never the straight way."""
        if due is None or len(due.view) < STRAIGHT or not self._received or self._secure is not None:
            self._read_small()
        else:
            self._read_straight(due)

    def _read_straight(self, due: Transfer) -> None:
        """Read a header and, where it is the one that is expected, its payload into its memory.

        Until a receive has ended its memory may be written to, so a bet that is lost costs a copy.
        """
        try:
            # Encrypted sockets, which cannot do this, do not come here.
            size = self.sock.recvmsg_into((self._header, due.view))[0]  # type: ignore[union-attr]
        except OSError:
            self._pump_in()  # which meets the same error, if it is one
            return
        there, listener, matcher = size - frames.HEADER_SIZE, self._listener, self.matcher
        if there >= 0 and not listener.broken:
            mark, epoch, sequence, tag, length = frames.FIELDS.unpack(self._header)
            if (
                mark == frames.DATA_MARK
                and epoch == listener.epoch
                and sequence == self._received & 0xFFFFFFFF
                and tag == due.tag
                and length == len(due.view)
            ):
                if matcher is None:
                    self._posted.popleft()
                else:
                    matcher.fitting(self.peer, tag, length)
                self._received += 1
                if there == length:
                    due.finish()
                else:
                    self._frame = frames.Header(frames.DATA, epoch, sequence, tag, length)
                    self._target, self._fill = due, there
                return
        self._ahead = memoryview(bytes(self._header[:size]) + bytes(due.view[: max(0, there)]))
        self._drained = there < len(due.view)
        if size == 0:
            self.hung_up()
        self._pump_in()

    def _read_small(self) -> None:
        """The short way where receives are posted and nothing is half read: small frames come whole."""
        listener, matcher = self._listener, self.matcher
        buffer = listener.lend()
        try:
            size = self.sock.recv_into(buffer)
        except OSError:
            listener.give_back(buffer)
            self._pump_in()  # which meets the same error, if it is one
            return
        at = 0
        while size - at >= frames.HEADER_SIZE and not listener.broken:
            mark, epoch, sequence, tag, length = frames.FIELDS.unpack_from(buffer, at)
            start = at + frames.HEADER_SIZE
            if mark != frames.DATA_MARK or epoch != listener.epoch or sequence != self._received & 0xFFFFFFFF:
                break  # the long way says what is wrong with it, if anything is
            target = (
                self._fitting(tag, length) if matcher is None else matcher.fitting(self.peer, tag, length)
            )
            if target is None:
                break
            self._received += 1
            if target.most:
                target.view = memoryview(bytearray(length))
            if length:
                there = min(length, size - start)
                target.view[:there] = memoryview(buffer)[start : start + there]
            at = start + length
            if at > size:  # a larger one: the rest goes straight into its memory
                listener.give_back(buffer)
                self._frame = frames.Header(frames.DATA, epoch, sequence, tag, length)
                self._target, self._fill = target, size - start
                if size == len(buffer) and self._may_read_on(target):
                    self._read_rest(target)
                return
            target.finish()
        if at == size > 0:
            listener.give_back(buffer)
            return
        self._drained = size < READ_AHEAD
        self._buffer, self._ahead = buffer, memoryview(buffer)[at:size]
        if size == 0:
            self.hung_up()
        self._pump_in()

    def _may_read_on(self, target: Transfer) -> bool:
        """Whether the rest of a payload can be read without what follows it."""
        if self._ahead or self._hung_up:
            return False
        return self._secure is None or len(target.view) - self._fill >= READ_AHEAD

    def _read_rest(self, target: Transfer) -> None:
        """Read on in a payload whose begin is there."""
        try:
            size = self.sock.recv_into(target.view[self._fill :])
        except OSError:
            size = 0
        if not size:
            self._pump_in()  # finds out why
            return
        self._fill += size
        if self._fill == len(target.view):
            self._target, self._frame, self._fill = None, None, 0
            target.finish()

    def _fitting(self, tag: int, length: int) -> Transfer | None:
        """Take the next posted receive, if a frame of this tag and length is what it waits for."""
        if not self._posted:
            return None
        target = self._posted[0]
        fits = 0 < length <= target.most if target.most else length == len(target.view)
        return self._posted.popleft() if fits and tag == target.tag else None

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
            self._left_well()

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
        elif frame.kind != frames.DATA:
            self._signalled(frame)
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
