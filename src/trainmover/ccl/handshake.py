"""The first bytes of a connection: who is there, for which link, and proof of the job's secret.

Four messages, each a length-prefixed msgpack map of at most 4 KiB: the dialer says what it wants,
the acceptor answers with a challenge and its own proof, the dialer proves itself, the acceptor
agrees.  Both proofs are HMAC-SHA256 over the whole conversation with the job's secret, so neither
side can be replayed or impersonated.  Blocking sockets with a limit (the socket's timeout, for each
message as a whole): this runs on connector threads, beside training, never on the engine's thread.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from trainmover.ccl.secure import SecureSocket
from trainmover.errors import LinkError
from trainmover.topology.links import Link

MAX_MESSAGE = 4096
NONCE = 16


@dataclass(frozen=True, slots=True)
class Hello:
    """What a dialer wants: this link, in this epoch, from this process to that one."""

    job: str
    link: Link
    epoch: int
    sender: int
    sender_life: str
    receiver_life: str

    def __str__(self) -> str:
        return f"link {self.link} of epoch {self.epoch} from rank {self.sender}"


def dial(sock: socket.socket | SecureSocket, hello: Hello, secret: bytes) -> None:
    """Introduce ourselves on a fresh connection.

    Raises:
        LinkError: the other side refused, does not know the secret or broke the protocol.
    """
    nonce = os.urandom(NONCE)
    opening = {
        "job": hello.job,
        "link": [hello.link.group, hello.link.channel, hello.link.low, hello.link.high],
        "epoch": hello.epoch,
        "sender": hello.sender,
        "from": hello.sender_life,
        "to": hello.receiver_life,
        "nonce": nonce,
    }
    sent = _send(sock, opening)
    answer, raw = _receive(sock)
    if "refused" in answer:
        raise LinkError(f"{hello}: refused by the peer: {answer['refused']}")
    challenge = _field(answer, "nonce", bytes)
    if not hmac.compare_digest(_proof(secret, b"acceptor", sent, challenge), _field(answer, "proof", bytes)):
        _send(sock, {"refused": "wrong secret"})
        raise LinkError(f"{hello}: the peer does not know this job's secret")
    _send(sock, {"proof": _proof(secret, b"dialer", sent + raw, challenge)})
    verdict, _ = _receive(sock)
    if verdict.get("ok") is not True:
        raise LinkError(f"{hello}: refused by the peer: {verdict.get('refused', 'no reason given')}")


def accept(sock: socket.socket | SecureSocket, secret: bytes, check: Callable[[Hello], str | None]) -> Hello:
    """Hear a dialer out.

    Args:
        sock: the accepted connection, blocking, with a timeout.
        secret: the job's secret.
        check: gives a reason to refuse this (authenticated) hello, or None.

    Raises:
        LinkError: the dialer was refused or broke the protocol.
    """
    opening, raw = _receive(sock)
    hello = _hello(opening)
    challenge = os.urandom(NONCE)
    answer = _send(sock, {"nonce": challenge, "proof": _proof(secret, b"acceptor", raw, challenge)})
    proof, _ = _receive(sock)
    if "refused" in proof:
        raise LinkError(f"{hello}: the dialer gave up: {proof['refused']}")
    if not hmac.compare_digest(
        _proof(secret, b"dialer", raw + answer, challenge), _field(proof, "proof", bytes)
    ):
        _send(sock, {"refused": "wrong secret"})
        raise LinkError(f"{hello}: the dialer does not know this job's secret")
    if reason := check(hello):
        _send(sock, {"refused": reason})
        raise LinkError(f"{hello}: {reason}")
    _send(sock, {"ok": True})
    return hello


def _proof(secret: bytes, side: bytes, said: bytes, challenge: bytes) -> bytes:
    return hmac.new(secret, side + b"\0" + challenge + said, hashlib.sha256).digest()


def _hello(opening: dict[str, Any]) -> Hello:
    parts = _field(opening, "link", list)
    if len(parts) != 4 or not all(isinstance(p, t) for p, t in zip(parts, (str, str, int, int), strict=True)):
        raise LinkError(f"handshake: a link is [group, channel, low, high], not {parts!r:.80}")
    return Hello(
        job=_field(opening, "job", str),
        link=Link(*parts),
        epoch=_field(opening, "epoch", int),
        sender=_field(opening, "sender", int),
        sender_life=_field(opening, "from", str),
        receiver_life=_field(opening, "to", str),
    )


def _field(message: dict[str, Any], name: str, kind: type) -> Any:
    value = message.get(name)
    if type(value) is not kind:
        raise LinkError(f"handshake: field {name!r} must be {kind.__name__}, got {value!r:.80}")
    return value


def _send(sock: socket.socket | SecureSocket, message: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(message)
    sock.sendall(struct.pack("<I", len(body)) + body)
    return body


def _receive(sock: socket.socket | SecureSocket) -> tuple[dict[str, Any], bytes]:
    limit = sock.gettimeout()
    until = None if limit is None else time.monotonic() + limit
    try:
        (length,) = struct.unpack("<I", _exactly(sock, 4, until))
        if length > MAX_MESSAGE:
            raise LinkError(f"handshake: a message of {length} bytes (limit {MAX_MESSAGE})")
        body = _exactly(sock, length, until)
    finally:
        sock.settimeout(limit)
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except Exception as error:
        raise LinkError(f"handshake: not msgpack: {error}") from error
    if not isinstance(message, dict):
        raise LinkError(f"handshake: expected a map, got {type(message).__name__}")
    return message, body


def _exactly(sock: socket.socket | SecureSocket, size: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise LinkError("handshake: the peer does not finish its message")
            sock.settimeout(left)
        piece = sock.recv(size - len(data))
        if not piece:
            raise LinkError("handshake: the peer closed the connection")
        data += piece
    return bytes(data)
