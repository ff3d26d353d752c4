"""Frame headers: what goes in comes out, and nothing else is accepted."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.ccl import frames
from trainmover.errors import LinkError

U32 = st.integers(0, 2**32 - 1)


@given(U32, U32, U32, st.integers(0, frames.MAX_PAYLOAD))
def test_a_data_header_survives_the_wire(epoch: int, sequence: int, tag: int, length: int) -> None:
    """Unpacking gives what was packed."""
    header = frames.unpack(frames.pack(frames.DATA, epoch, sequence, tag, length))
    assert header == frames.Header(frames.DATA, epoch, sequence, tag, length)


@pytest.mark.parametrize("kind", [frames.BREAK, frames.BYE])
def test_signals_carry_their_epoch(kind: int) -> None:
    """BREAK and BYE name an epoch and have no payload."""
    assert frames.unpack(frames.pack(kind, 7)) == frames.Header(kind, 7, 0, 0, 0)


def test_the_sequence_number_wraps() -> None:
    """A link may carry more frames than a sequence number can count."""
    assert frames.unpack(frames.pack(frames.DATA, 1, 2**32 + 5)).sequence == 5


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"XX" + frames.pack(frames.DATA, 1)[2:], "garbage on the link"),
        (b"TM\x09" + frames.pack(frames.DATA, 1)[3:], "garbage on the link"),
        (frames.pack(9, 1), "unknown frame kind 9"),
        (frames.pack(frames.DATA, 1, 0, 0, frames.MAX_PAYLOAD + 1), "claims"),
        (frames.pack(frames.BREAK, 1, 0, 0, 1), "claims 1 bytes"),
        (frames.pack(frames.BYE, 1, 0, 0, 8), "claims 8 bytes"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes, said: str) -> None:
    """A wrong magic, version, kind or size is a LinkError that says which."""
    with pytest.raises(LinkError, match=said):
        frames.unpack(data)


@given(st.binary(min_size=frames.HEADER_SIZE, max_size=frames.HEADER_SIZE))
def test_any_bytes_are_a_header_or_a_link_error(data: bytes) -> None:
    """No 24 bytes raise anything but LinkError, and what is accepted packs to the same bytes."""
    try:
        header = frames.unpack(data)
    except LinkError:
        return
    assert frames.pack(header.kind, header.epoch, header.sequence, header.tag, header.length) == data


def test_the_header_has_the_documented_size() -> None:
    """The size is part of the protocol's version 1."""
    assert frames.HEADER_SIZE == struct.calcsize("<2sBBIIIQ") == 24
