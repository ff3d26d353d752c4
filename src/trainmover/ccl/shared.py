"""Shared windows: memory of one rank that the other ranks of its machine can read.

A process has one window for each group that has other members on its machine.  It is a sealed memory
file without a name, passed to the neighbours as an open file over the unix link of the two, so nothing
is left behind, whoever is killed.  It has a fixed size, its pages exist from their first use, and it
stays when links change: a newcomer beside us gets the same one.

The one rule that makes windows safe without locks: **a process writes only into its own window**, on
its engine's thread.  A peer that is late in an epoch that is over can read something odd, for a step that is
void; it cannot spoil anything of a newer call.  What may be read, and when a place may be written again,
follows from the frames that members send each other (:mod:`trainmover.ccl.shared_walks`).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import threading

import torch

from trainmover.ccl import sizes
from trainmover.errors import LinkError

INPUT_BYTES = sizes.SHARED_PIECE_BYTES
"""What a place has room for of what a rank shows its neighbours."""

RESULT_BYTES = INPUT_BYTES // 2
"""Room for the part of a result that a rank owns: at most half, with two members."""

PLACE_BYTES = INPUT_BYTES + RESULT_BYTES

PLACES = 4
"""So many places take turns: some are written while others are read."""

NAME_BYTES = 16
NAME_AT = PLACES * PLACE_BYTES
WINDOW_BYTES = NAME_AT + 4096
"""The places, and a page that holds the window's name."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Window:
    """One window, own or a neighbour's, mapped into this process.

    Attributes:
        step: how many times a place has been used in this epoch, in turn; the same on all members.
        epoch: the epoch that ``step`` belongs to.
        usable: whether all members on this machine have each other's windows, in this epoch.
    """

    __slots__ = ("_data", "_fd", "_spare", "epoch", "step", "usable")

    def __init__(self, fd: int) -> None:
        """Map an open window file, and own its descriptor."""
        self._fd: int | None = fd
        try:
            if os.fstat(fd).st_size != WINDOW_BYTES or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise LinkError("the peer's window is not a sealed memory file of the agreed size")
            self._data = torch.frombuffer(mmap.mmap(fd, WINDOW_BYTES), dtype=torch.uint8)
        except BaseException:
            self.close()
            raise
        self._spare: list[torch.Tensor] = []
        self.epoch, self.step, self.usable = 0, 0, False

    @classmethod
    def new(cls, label: str) -> Window:
        """A fresh window of this process."""
        fd = os.memfd_create(f"trainmover {label}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, WINDOW_BYTES)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        window = cls(fd)
        window._data[NAME_AT : NAME_AT + NAME_BYTES].copy_(
            torch.frombuffer(bytearray(os.urandom(NAME_BYTES)), dtype=torch.uint8)
        )
        return window

    @property
    def name(self) -> bytes:
        """What tells this window from any other; its owner has written it there."""
        return bytes(self._data[NAME_AT : NAME_AT + NAME_BYTES].numpy())

    def fileno(self) -> int:
        """The descriptor to pass on.

        Raises:
            LinkError: the window has been given up.
        """
        if self._fd is None:
            raise LinkError("the window has been given up")
        return self._fd

    def close(self) -> None:
        """Give up the descriptor. The memory goes with the last tensor that shows it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def input(self, step: int, like: torch.Tensor, count: int, offset: int = 0) -> torch.Tensor:
        """``count`` elements of what is shown in this step, from byte ``offset`` on."""
        return self._view(step % PLACES * PLACE_BYTES + offset, like, count)

    def result(self, step: int, like: torch.Tensor, count: int) -> torch.Tensor:
        """``count`` elements of the owner's part of the result of this step."""
        return self._view(step % PLACES * PLACE_BYTES + INPUT_BYTES, like, count)

    def spare(self, like: torch.Tensor, count: int, places: int) -> list[torch.Tensor]:
        """Pieces of memory of this process alone, for what is in between while parts are combined."""
        size = count * like.element_size()
        if len(self._spare) < places or any(len(piece) < size for piece in self._spare):
            self._spare = [torch.empty(size, dtype=torch.uint8) for _ in range(places)]
        return [self._spare[place][:size].view(like.dtype) for place in range(places)]

    def _view(self, start: int, like: torch.Tensor, count: int) -> torch.Tensor:
        return self._data[start : start + count * like.element_size()].view(like.dtype)


class Windows:
    """The windows of this process, one per group; made when they are first asked for, on any thread."""

    def __init__(self) -> None:
        self._own: dict[str, Window] = {}
        self._door = threading.Lock()
        self._closed = False

    def own(self, group: str) -> Window:
        """This process's window in a group.

        Raises:
            LinkError: the windows have been given up.
        """
        with self._door:
            if self._closed:
                raise LinkError("the process is giving up its windows")
            if group not in self._own:
                self._own[group] = Window.new(group)
            return self._own[group]

    def drop(self, group: str) -> None:
        """Give up a group's window."""
        with self._door:
            window = self._own.pop(group, None)
        if window is not None:
            window.close()

    def close(self) -> None:
        """Give up all windows."""
        with self._door:
            self._closed = True
            windows, self._own = list(self._own.values()), {}
        for window in windows:
            window.close()

    def __len__(self) -> int:
        return len(self._own)


def swap_windows(sock: socket.socket, own: Window, *, first: bool) -> Window:
    """Give a neighbour our window and take its own, over a fresh unix connection.

    Args:
        sock: blocking, with a timeout.
        own: our window.
        first: we speak first (the dialler does).

    Raises:
        LinkError: the peer gave no window.
    """
    if first:
        socket.send_fds(sock, [b"W"], [own.fileno()])
    said, files, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if said != b"W" or len(files) != 1:
        for fd in files:
            with contextlib.suppress(OSError):
                os.close(fd)
        raise LinkError("the neighbour gave no window")
    window = Window(files[0])
    window.close()  # mapped: the descriptor is not needed any more
    if not first:
        socket.send_fds(sock, [b"W"], [own.fileno()])
    return window
