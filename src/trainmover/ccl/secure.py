"""TLS on a link: a socket that encrypts, with the few methods that links use.

What lives here: certificates read into contexts, and :class:`SecureSocket`, which a connection uses in
place of a plain one.  What never lives here: frames, threads; and who the peer is.  That both sides
know the job's secret is shown by the handshake (``handshake``), which runs inside.  The certificate
shows the dialer that nobody sits in between.

Two promises make such a socket behave like a plain one beside a poller:

- *Nothing is kept back on the way in.*  OpenSSL decrypts a whole record at a time, of at most
  :data:`RECORD` bytes; every read offers room for one, so no decrypted bytes wait where the poller
  cannot see them.
- *What is accepted on the way out is copied.*  A record that the kernel does not take yet is owed: it
  counts as sent, its memory is the caller's again, and :meth:`SecureSocket.flush` goes on with it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmover.ccl.forks import own
from trainmover.ccl.transfer import Buffer
from trainmover.errors import ConfigError
from trainmover.topology.links import CERTIFICATE_NAME

RECORD: Final = 1 << 14
"""Most plain bytes in one record of TLS (RFC 8446, 5.1)."""

_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SecureSocket:
    """An encrypted connection whose TLS handshake is done."""

    __slots__ = ("__weakref__", "_owed", "_tls", "family")

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self._owed = b""
        self.family = tls.family

    @property
    def owes(self) -> bool:
        """True while a record waits for room in the kernel; wait until the socket is writable, then flush."""
        return bool(self._owed)

    def fileno(self) -> int:
        return self._tls.fileno()

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """What the kernel says of the connection below."""
        return self._tls.getsockopt(level, option, size)

    def close(self) -> None:
        """Close at once; links say goodbye in a frame of their own."""
        self._tls.close()

    def setblocking(self, flag: bool) -> None:
        self._tls.setblocking(flag)

    def settimeout(self, seconds: float | None) -> None:
        self._tls.settimeout(seconds)

    def gettimeout(self) -> float | None:
        return self._tls.gettimeout()

    def getpeername(self) -> tuple[str, int]:
        name = self._tls.getpeername()
        return str(name[0]), int(name[1])

    # -- out -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is owed.

        Raises:
            BlockingIOError: the kernel still has no room.
            OSError: the connection is lost.
        """
        if self._owed:
            with _plain_errors():
                # The same bytes again, as OpenSSL wants it: the record is made already.
                self._tls.send(self._owed)
            self._owed = b""

    def sendmsg(self, buffers: Sequence[Buffer | bytes]) -> int:
        """Send some of these bytes, in order; returns how many are taken.

        Raises:
            BlockingIOError: none are.
            OSError: the connection is lost.
        """
        self.flush()
        taken = 0
        for record in _records(buffers):
            taken += len(record)
            try:
                self._tls.send(record)
            except _LATER:
                self._owed = bytes(record)
                break
        return taken

    def send(self, data: Buffer | bytes) -> int:
        """See :meth:`sendmsg`."""
        return self.sendmsg([data])

    def sendall(self, data: bytes) -> None:
        """Send everything; for a socket with a timeout."""
        self._tls.sendall(data)

    # -- in ------------------------------------------------------------------------------------

    def recv_into(self, view: Buffer | bytearray) -> int:
        """Read what is there, a whole record at a time where the view has room for it; 0 at the end.

        Raises:
            BlockingIOError: nothing is there.
            OSError: the connection is lost, or somebody has changed what was sent.
        """
        room = memoryview(view)
        filled = 0
        while True:
            try:
                size = self._tls.recv_into(room[filled:])
            except _LATER:
                if filled:
                    return filled
                raise BlockingIOError from None
            filled += size
            if size == 0 or len(room) - filled < RECORD:
                return filled

    def recv(self, size: int) -> bytes:
        """Read up to so many bytes; for short messages, or to the end."""
        with _plain_errors():
            return self._tls.recv(size)


@dataclass(frozen=True, slots=True)
class LinkTls:
    """How this process proves itself on links, and what it trusts."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext

    @classmethod
    def read(cls, folder: str | Path) -> LinkTls:
        """From a folder with ``link.pem``, ``link.key`` and ``ca.pem``.

        Raises:
            ConfigError: they are not there, or do not belong together.
        """
        home = Path(folder)
        try:
            accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            accepting.load_cert_chain(home / "link.pem", home / "link.key")
            dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            dialling.load_verify_locations(home / "ca.pem")
        except OSError as error:
            raise ConfigError(f"the certificates for links in {home} cannot be read: {error}") from None
        accepting.num_tickets = 0  # nobody resumes a session of a link
        for context in (accepting, dialling):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        return cls(accepting, dialling)

    def dial(self, sock: socket.socket) -> SecureSocket:
        """Encrypt a connection that we made; its timeout is the limit. The plain socket is used up.

        Raises:
            OSError: the other side speaks no TLS, or has no certificate for links of this deployment.
        """
        return _shake(self.dialling, sock, server_side=False)

    def accept(self, sock: socket.socket) -> SecureSocket:
        """Encrypt a connection that was made to us; see :meth:`dial`."""
        return _shake(self.accepting, sock, server_side=True)


def _shake(context: ssl.SSLContext, sock: socket.socket, *, server_side: bool) -> SecureSocket:
    name = None if server_side else CERTIFICATE_NAME
    try:
        tls = context.wrap_socket(
            sock, server_side=server_side, server_hostname=name, do_handshake_on_connect=False
        )
    except BaseException:
        sock.close()
        raise
    own(tls)
    try:
        tls.do_handshake()  # the socket's timeout is the limit of the whole of it
    except BaseException:
        tls.close()
        raise
    return SecureSocket(tls)


def _records(buffers: Sequence[Buffer | bytes]) -> Iterator[Buffer | bytes]:
    """The bytes of all buffers in pieces of one record; what is short travels with what follows it."""
    start = b""
    for buffer in buffers:
        view = memoryview(buffer)
        if start:
            room = RECORD - len(start)
            start, view = start + bytes(view[:room]), view[room:]
            if len(start) < RECORD:
                continue
            yield start
            start = b""
        whole = len(view) - len(view) % RECORD
        for begin in range(0, whole, RECORD):
            yield view[begin : begin + RECORD]
        start = bytes(view[whole:])
    if start:
        yield start


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """ "Not now" in the words of a plain socket."""
    try:
        yield
    except _LATER:
        raise BlockingIOError from None
