"""Packets that the kernel drops on their way into a socket, which takes no privileges.

A listening socket gives what it is told to the connections that it accepts.
"""

from __future__ import annotations

import ctypes
import socket
import struct

SO_ATTACH_FILTER = 26  # Linux; not in Python's socket module
LOAD_LENGTH, JUMP_IF_GREATER, RETURN = 0x80, 0x25, 0x06


def drop_all(sock: socket.socket) -> None:
    """No packet gets into a socket any more."""
    _attach(sock, [(RETURN, 0, 0, 0)])


def drop_large(sock: socket.socket, larger_than: int) -> None:
    """Packets with more bytes than that, their TCP header included, do not get into a socket any more."""
    _attach(
        sock,
        [
            (LOAD_LENGTH, 0, 0, 0),
            (JUMP_IF_GREATER, 0, 1, larger_than),
            (RETURN, 0, 0, 0),
            (RETURN, 0, 0, 1 << 18),
        ],
    )


def _attach(sock: socket.socket, program: list[tuple[int, int, int, int]]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    sock.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(program), ctypes.addressof(code))
    )
