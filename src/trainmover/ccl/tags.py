"""Frame tags: which call a frame belongs to, so that ranks which call different things are told so.

A tag is 32 bits: the call in the high byte, below it 24 bits that must be the same at both ends: a
checksum of what the call was given, or a point-to-point message's own tag.
"""

from __future__ import annotations

from trainmover.errors import LinkError


class Mismatch(LinkError):
    """Two ranks call different collectives.

    Attributes:
        me: own rank, once the engine has said it.
        peer: the other rank.
        our_tag, tag: what is called here and there.
    """

    def __init__(self, peer: int, our_tag: int, our_length: int | None, tag: int, length: int | None) -> None:
        super().__init__()
        self.me: int | None = None
        self.peer, self.our_tag, self.tag = peer, our_tag, tag
        self._here, self._there = our_length, length

    def __str__(self) -> str:
        mine = "the one made here" if self.me is None else f"rank {self.me} has made"
        return (
            f"rank {self.peer} has made another call than {mine} ({_called(self.tag, self._there)} there; "
            f"{_called(self.our_tag, self._here)} here); all ranks of a group must make the same calls in "
            "the same order"
        )


CALLS: tuple[str, ...] = (
    "none",
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "reduce",
    "send/recv",
    "barrier",
    "vote",
    "meeting",
    "mirror",
    "state copy",
)
"""Call names by the high byte of a frame's tag."""


_PLACES = {call: place << 24 for place, call in enumerate(CALLS)}

MESSAGE = "send/recv"
_MESSAGE = CALLS.index(MESSAGE)


def tag_of(call: str, detail: int = 0) -> int:
    """A frame tag: the call in the high byte, 24 bits of detail (a checksum of its arguments)."""
    return _PLACES[call] | detail & 0xFFFFFF


def message_tag(user_tag: int) -> int:
    """The frame tag of a point-to-point message; torch's tag is in its low 24 bits."""
    return tag_of(MESSAGE, user_tag)


def is_message(tag: int) -> bool:
    """True for a point-to-point message, False for a piece of a collective."""
    return tag >> 24 == _MESSAGE


def describe_tag(tag: int) -> str:
    """The tag in words."""
    index = tag >> 24
    name = CALLS[index] if index < len(CALLS) else f"call {index}"
    return f"{name} #{tag & 0xFFFFFF:06x}"


def _called(tag: int, length: int | None) -> str:
    return describe_tag(tag) if length is None else f"{describe_tag(tag)}, {length} bytes"
