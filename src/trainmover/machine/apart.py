"""A machine that was replaced because it and another did not reach each other: when it may join again.

It runs, and so does the other; which of them is at fault nobody knows.  As a spare it would only hold up the
next switch.  So it joins again once it reaches those that it did not reach, with large packets, too, or once
they have gone; and each time that this was not enough, it waits for longer first.

What lives here: whom it waits for, learnt from the log, and the dialling.  What never lives here: joining
(``agent``).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from typing import Final

from trainmover.events import catalogue as say

WAIT_SECONDS: Final = 5.0
"""How long it waits at least; twice as long each further time."""
MOST_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 2.0
DIAL_SECONDS: Final = 3.0
LARGE_BYTES: Final = 16384
"""A network that lets only small packets pass has been reached, and is not whole."""

log = logging.getLogger("trainmover.machine")


class Apart:
    """Who has to be reached before this machine joins.

    Args:
        machine: its name.
        life: the incarnation that was replaced; what was said before its end does not count.
        unreached: machines that it did not reach.
        times: how often this has happened in a row.
    """

    def __init__(self, machine: str, life: str, unreached: tuple[str, ...], times: int) -> None:
        self._machine, self._life = machine, life
        self._left = set(unreached)
        self._seconds = min(MOST_SECONDS, WAIT_SECONDS * 2 ** (times - 1)) if unreached else 0.0
        self._since = False
        self._addresses: dict[str, tuple[str, int]] = {}

    def note(self, event: say.Event) -> None:
        """Learn where machines are, and who has gone."""
        match event:
            case say.SwitchPrepare():
                ranks = event.endpoint_ranks or range(len(event.endpoints))
                for rank, end in zip(ranks, event.endpoints, strict=True):
                    self._addresses[event.machines[rank // event.ranks_per_machine]] = (end.host, end.port)
            case say.MachineFailed(machine=self._machine, incarnation=self._life):
                self._since = True
            case say.MachineFailed(machine=machine) | say.MachineLeft(machine=machine) if self._since:
                self._left.discard(machine)
            case say.SwitchCommitted(leavers=leavers) if self._since:
                self._left -= set(leavers)
            case _:
                pass

    async def over(self) -> None:
        """Wait until everybody is reached, or has gone."""
        await asyncio.sleep(self._seconds)
        while self._left:
            for name in sorted(self._left):
                if await self._reaches(name):
                    log.info("%s reaches %s again", self._machine, name)
                    self._left.discard(name)
            if self._left:
                await asyncio.sleep(LOOK_SECONDS)

    async def _reaches(self, name: str) -> bool:
        """Whether anything answers where a machine's ranks were, if only that they are gone."""
        address = self._addresses.get(name)
        if address is None:
            return False
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                _, writer = await asyncio.open_connection(*address)
                try:
                    return await _takes(writer)
                finally:
                    writer.transport.abort()
        except (ConnectionRefusedError, ConnectionResetError):
            return True
        except (OSError, TimeoutError):
            return False


async def _takes(writer: asyncio.StreamWriter) -> bool:
    """Wait until the other's kernel has acknowledged large packets, whatever its program makes of them."""
    writer.write(bytes(LARGE_BYTES))
    number = writer.get_extra_info("socket").fileno()
    while not writer.transport.is_closing():
        left = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)))[0]
        if not left and not writer.transport.get_write_buffer_size():
            break
        await asyncio.sleep(0.02)
    return True
