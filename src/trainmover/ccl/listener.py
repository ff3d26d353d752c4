"""Whom a connection talks to: the engine, which it tells what happens, and what finds memory for messages.

Two ports, so that a connection knows neither engine nor mailboxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainmover.ccl import frames
from trainmover.ccl.transfer import Transfer

if TYPE_CHECKING:
    from trainmover.ccl.connection import Connection

READ_AHEAD = 20 * 1024
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

    def interest_changed(self, connection: Connection, mask: int) -> None:
        """What a connection waits for may have changed: it is this now, as bits of ``epoll``."""


class Matcher(Protocol):
    """Finds the memory for messages, on a link where they may be received in another order than sent."""

    def expects(self, peer: int) -> bool:
        """True when somebody waits for this rank and no other."""

    def has_room(self, peer: int) -> bool:
        """True when the next message of this rank shall be read."""

    def claim(self, peer: int, frame: frames.Header) -> Transfer:
        """Memory for a message."""

    def fitting(self, peer: int, tag: int, length: int) -> Transfer | None:
        """The open receive for a message of this tag and length, taken; None where that is not simple."""

    def due(self, peer: int) -> Transfer | None:
        """The open receive that this rank's next message is probably for."""
