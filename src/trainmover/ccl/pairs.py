"""Messages from one rank to another: links made on demand, and receives matched by source and tag.

Point-to-point calls, and collectives of groups too large to be a full mesh, need pairs of ranks that
no topology names.  Such a link is directed and its sender dials it when it first has something to
say (:class:`Pairs` holds the messages until it is there); it is then kept like any other, and a
rank that has used one prepares it for a coming epoch.

Messages on one link may be received in another order than they were sent in, by tag, and a receive
may name no source.  A :class:`Mailbox` holds a group's open receives, and the *letters*: messages that
arrived while a receive for something else from the same rank was open.  A message that nobody waits
for stays in the kernel (back pressure).

All state belongs to the engine's thread and to one epoch; the links stay.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmover.ccl.connection import Connection
from trainmover.ccl.frames import Header
from trainmover.ccl.tags import Mismatch, is_message
from trainmover.ccl.transfer import Transfer
from trainmover.topology.links import Link


class _Letter:
    """A message that arrived before its receive."""

    __slots__ = ("body", "reader", "source", "tag", "transfer", "whole")

    def __init__(self, source: int, tag: int, length: int) -> None:
        self.source, self.tag = source, tag
        self.body = bytearray(length)
        self.transfer = Transfer(memoryview(self.body), tag)
        self.transfer.waiter = self
        self.whole = False
        self.reader: Transfer | None = None

    def transfer_done(self) -> None:
        self.whole = True
        if self.reader is not None:
            self.hand_over(self.reader)

    def hand_over(self, reader: Transfer) -> None:
        reader.source = self.source
        if not self.whole:
            self.reader = reader
            return
        reader.view[:] = self.body
        reader.finish()


class Mailbox:
    """The open receives of one group at this rank, and the letters that wait for theirs."""

    def __init__(self) -> None:
        self._posted: list[Transfer] = []
        self._letters: list[_Letter] = []

    def post(self, transfer: Transfer) -> bool:
        """Open a receive from ``transfer.source`` (None: from anybody). True: a letter answers it.

        Raises:
            Mismatch: the message has another size.
        """
        for letter in self._letters:
            if transfer.source in (None, letter.source) and letter.tag == transfer.tag:
                _same_size(transfer, letter.source, letter.tag, len(letter.body))
                self._letters.remove(letter)
                letter.hand_over(transfer)
                return True
        self._posted.append(transfer)
        return False

    def clear(self) -> None:
        """The epoch is over."""
        self._posted.clear()
        self._letters.clear()

    # -- what connections ask (Matcher) ----------------------------------------------------------

    def expects(self, peer: int) -> bool:
        """True when a receive names this rank."""
        return any(transfer.source == peer for transfer in self._posted)

    def has_room(self, peer: int) -> bool:
        """True when the next message of this rank shall be read: for a receive, or past it as a letter."""
        return any(transfer.source in (None, peer) for transfer in self._posted)

    def fitting(self, peer: int, tag: int, length: int) -> Transfer | None:
        """The open receive for a message of this tag and length; None: see what :meth:`claim` says."""
        for transfer in self._posted:
            if transfer.tag == tag and transfer.source in (None, peer):
                if len(transfer.view) != length:
                    return None
                self._posted.remove(transfer)
                transfer.source = peer
                return transfer
        return None

    def due(self, peer: int) -> Transfer | None:
        """The open receive that the rank's next message is for, if it comes in the order of the receives."""
        first = next((transfer for transfer in self._posted if transfer.source in (None, peer)), None)
        return None if first is None or first.source is None else first

    def claim(self, peer: int, frame: Header) -> Transfer:
        """Memory for a message.

        Raises:
            Mismatch: the receive has another size, or belongs to another collective.
        """
        for transfer in self._posted:
            if transfer.source in (None, peer) and transfer.tag == frame.tag:
                _same_size(transfer, peer, frame.tag, frame.length)
                self._posted.remove(transfer)
                transfer.source = peer
                return transfer
        if not is_message(frame.tag):
            # Collectives have one order, the same on all ranks.
            for transfer in self._posted:
                if transfer.source == peer and not is_message(transfer.tag):
                    raise Mismatch(peer, transfer.tag, len(transfer.view), frame.tag, frame.length)
        letter = _Letter(peer, frame.tag, frame.length)
        self._letters.append(letter)
        return letter.transfer


def _same_size(transfer: Transfer, peer: int, tag: int, length: int) -> None:
    if len(transfer.view) != length:
        raise Mismatch(peer, transfer.tag, len(transfer.view), tag, length)


class Pairs:
    """The messages of one rank process.

    Args:
        connection: the connection that a link has now, or None.
        reach: begins to make a link's connection; :meth:`arrived` is called when it is there.
    """

    def __init__(
        self, connection: Callable[[Link], Connection | None], reach: Callable[[Link], None]
    ) -> None:
        self._connection = connection
        self._reach = reach
        self._outbox: dict[Link, list[Transfer]] = {}
        self._mailboxes: dict[str, Mailbox] = {}
        self._rooms: dict[tuple[str, int], bytearray] = {}

    def send(self, link: Link, transfer: Transfer) -> None:
        """Send a message, now or as soon as its link is there."""
        connection = self._connection(link)
        if connection is not None:
            connection.send(transfer)
            return
        self._outbox.setdefault(link, []).append(transfer)
        self._reach(link)

    def free(self, link: Link) -> Connection | None:
        """The connection on which a message of this link can be sent at once."""
        connection = self._connection(link)
        return None if connection is None or connection.wants_write else connection

    def receive(self, link: Link, transfer: Transfer) -> None:
        """Open a receive from the link's sender.

        Raises:
            Mismatch: the message has another size.
        """
        transfer.source = link.dialler
        if not self._mailbox(link.group).post(transfer):
            connection = self._connection(link)
            if connection is not None:
                connection.read_on()

    def receive_any(self, links: list[Link], transfer: Transfer) -> None:
        """Open a receive from any of the links' senders; ``transfer.source`` becomes its rank.

        Raises:
            Mismatch: the message has another size.
        """
        if self._mailbox(links[0].group).post(transfer):
            return
        for link in links:
            connection = self._connection(link)
            if connection is not None and transfer.source is None:
                connection.read_on()

    def wants(self, link: Link) -> bool:
        """True while messages wait for the link's connection."""
        return link in self._outbox

    def arrived(self, link: Link, connection: Connection) -> None:
        """A link has its connection: what waited for it goes out."""
        connection.matcher = self._mailbox(link.group)
        for transfer in self._outbox.pop(link, ()):
            connection.send(transfer)

    def room(self, group: str, peer: int, size: int) -> memoryview:
        """Staging memory for what comes from a rank; grows on first use and then stays."""
        room = self._rooms.get((group, peer))
        if room is None or len(room) < size:
            room = self._rooms[group, peer] = bytearray(size)
        return memoryview(room)[:size]

    def staging_bytes(self) -> int:
        """Bytes of staging memory."""
        return sum(len(room) for room in self._rooms.values())

    def clear(self) -> None:
        """The epoch is over: nothing of it is sent or received any more."""
        self._outbox.clear()
        for mailbox in self._mailboxes.values():
            mailbox.clear()

    def forget(self, group: str) -> None:
        """A group was destroyed."""
        self._mailboxes.pop(group, None)
        for key in [key for key in self._rooms if key[0] == group]:
            del self._rooms[key]

    def _mailbox(self, group: str) -> Mailbox:
        mailbox = self._mailboxes.get(group)
        if mailbox is None:
            mailbox = self._mailboxes[group] = Mailbox()
        return mailbox
