"""Frames: how a rank and its machine program talk over their local socket.

What lives here: event to frame, and a stream of bytes to events.  What never lives here: sockets,
threads, asyncio, NATS; a training process uses this file between two steps and must not wait.

A frame is a big-endian unsigned 32-bit length and that many bytes of msgpack: ``[type, data]``,
the event's type name and its fields.  There is no envelope: the socket belongs to one rank of one
job, and the machine program says ids and times when it publishes.
"""

from __future__ import annotations

import struct
from typing import Final

from trainmover.errors import BusError, DecodeError
from trainmover.events.catalogue import Event
from trainmover.events.codec import MAX_BODY, UNKNOWN_SENDER, model_named, pack, unpack, validate

MAX_FRAME: Final = MAX_BODY + 256
"""Largest payload of a frame in bytes: the largest body and its type name."""

_LENGTH = struct.Struct(">I")


class FrameError(DecodeError):
    """A frame broke the contract: close the connection, nothing after it can be trusted.

    Attributes:
        events: what had come whole before it in the same bytes.
    """

    def __init__(self, message: str, events: list[Event]) -> None:
        super().__init__(message)
        self.events = events


def encode_frame(event: Event) -> bytes:
    """The frame of one event.

    Raises:
        BusError: the event is too large or cannot be encoded.
    """
    try:
        payload = pack([event.type, event.model_dump()])
    except (ValueError, OverflowError, TypeError) as error:
        raise BusError(f"{event.type} cannot be encoded: {error}") from error
    if len(payload) > MAX_FRAME:
        raise BusError(f"{event.type} is {len(payload)} bytes, a frame may have at most {MAX_FRAME}")
    return _LENGTH.pack(len(payload)) + payload


class Decoder:
    """Turns bytes, cut anywhere, back into events.

    Args:
        sender: who is at the other end, for messages of errors.
    """

    def __init__(self, sender: str = UNKNOWN_SENDER) -> None:
        self._sender = sender
        self._buffer = bytearray()
        self._broken: str | None = None

    def __repr__(self) -> str:
        return f"Decoder({self._sender!r}, {len(self._buffer)} bytes waiting)"

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not whole yet; not 0 at the end of a stream: it was cut."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Event]:
        """Events that are whole now, in order.

        Raises:
            FrameError: a frame is too large or is not an event.  It holds the events before it;
                every later call raises again.
        """
        if self._broken is not None:
            raise FrameError(self._broken, [])
        self._buffer += data
        events: list[Event] = []
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, start)
                if length > MAX_FRAME:
                    raise DecodeError(
                        f"frame from {self._sender} announces {length} bytes, the limit is {MAX_FRAME}"
                    )
                end = start + _LENGTH.size + length
                if len(self._buffer) < end:
                    break
                events.append(self._event(bytes(self._buffer[start + _LENGTH.size : end])))
                start = end
        except DecodeError as error:
            self._broken = str(error)
            self._buffer.clear()
            raise FrameError(self._broken, events) from None
        del self._buffer[:start]
        return events

    def _event(self, payload: bytes) -> Event:
        value = unpack(payload, f"frame from {self._sender}", MAX_FRAME)
        if not isinstance(value, tuple) or len(value) != 2:
            raise DecodeError(f"frame from {self._sender} is not [type, data]")
        name, data = value
        model = model_named(name, self._sender)
        return validate(model, data, f"{model.type} from {self._sender}")
