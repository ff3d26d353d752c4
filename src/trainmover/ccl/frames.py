"""The bytes on a link: one fixed header, then the payload.

Every frame carries the epoch that it belongs to (the fence), its sequence number on the link and
a tag that names the call, so that a frame of a void epoch is thrown away and two ranks that call
different collectives are told so instead of hanging.  A void step always moves to a new epoch, so
the epoch is also the number of the attempt.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from trainmover.errors import LinkError

MAGIC: Final = b"TM"
VERSION: Final = 1
MAX_PAYLOAD: Final = 1 << 40

DATA: Final = 1
"""A piece of a collective."""
BREAK: Final = 2
"""The sender's epoch is broken; no payload. Where the reason is that two ranks call different things, the tag
says what the sender has called and the sequence what the receiver has."""
BYE: Final = 3
"""The sender is done and will close in good order; no payload."""
WAITS: Final = 4
"""The sender waits for long in the call of this tag, the sequence-th of its group; no payload."""

_KINDS: Final = frozenset((DATA, BREAK, BYE, WAITS))
_HEADER: Final = struct.Struct("<2sBBIIIQ")
HEADER_SIZE: Final = _HEADER.size

FIELDS: Final = struct.Struct("<IIIIQ")
"""A header with its first four bytes as one number, which is ``DATA_MARK`` in a frame with a payload."""
DATA_MARK: Final = int.from_bytes(_HEADER.pack(MAGIC, VERSION, DATA, 0, 0, 0, 0)[:4], "little")


class Header(NamedTuple):
    """One frame's header. ``length`` is the payload's size in bytes."""

    kind: int
    epoch: int
    sequence: int
    tag: int
    length: int


def pack(kind: int, epoch: int, sequence: int = 0, tag: int = 0, length: int = 0) -> bytes:
    """The header's bytes."""
    return _HEADER.pack(MAGIC, VERSION, kind, epoch, sequence & 0xFFFFFFFF, tag, length)


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Read a header.

    Raises:
        LinkError: not a header of this protocol, version or size.
    """
    magic, version, kind, epoch, sequence, tag, length = _HEADER.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise LinkError(f"garbage on the link: header starts with {bytes(data[:3])!r}")
    if kind not in _KINDS:
        raise LinkError(f"unknown frame kind {kind}")
    if length > MAX_PAYLOAD or (kind != DATA and length):
        raise LinkError(f"frame of kind {kind} claims {length} bytes")
    return Header(kind, epoch, sequence, tag, length)
