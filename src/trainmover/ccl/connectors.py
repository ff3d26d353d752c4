"""How connections come to be: two doors to knock at, threads that shake hands, shared windows.

Every process listens at a TCP port and, for processes of its own machine, at a *door*: a unix socket
whose abstract name follows from the job and the process, so that nothing in the file system is left
behind.  Whoever dials a peer beside it tries the door first and else takes the network.  Links of
collectives that go through a door also exchange the windows of their group, as open files.

Connecting and shaking hands happens on connector threads, which hand finished connections to the
link table on the engine's thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address

from trainmover.ccl import reach
from trainmover.ccl.forks import own
from trainmover.ccl.handshake import Hello, accept, dial
from trainmover.ccl.plan import Peer, Plan
from trainmover.ccl.secure import LinkTls, SecureSocket
from trainmover.ccl.shared import Window, Windows, swap_windows
from trainmover.errors import TrainMoverError
from trainmover.topology.links import COLLECTIVE, Link

log = logging.getLogger(__name__)

LOOPBACK_CONTROL = b"reno"
"""Congestion control where no network lies between: it never comes into play, while others (BBR) pace."""

BESIDE_BUFFER = 1024 * 1024
"""What a unix socket may hold. The system adapts those of the network, and leaves these at a fifth of it."""

CONNECT_SECONDS = 5.0
"""Limit of one attempt to connect and shake hands."""
CONNECTORS = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A connection whose handshake is done, and the peer's window where there is one."""

    sock: socket.socket | SecureSocket
    window: Window | None = None


Dialled = Callable[[Arrival | None, str, bool], None]
"""What became of an attempt: the connection, or why there is none; and whether anything answered."""


def door_of(job: str, life: str) -> str:
    """The abstract name of a process's unix socket."""
    digest = hashlib.sha256(f"{job}\0{life}".encode()).hexdigest()
    return f"\0trainmover/{digest[:40]}"


class Connectors:
    """The doors of one process and the threads behind them.

    Args:
        job: job id; connections of another job are refused.
        life: name of this process.
        secret: the job's secret.
        host: address to listen on; the port is the system's choice.
        epoch: tells the current epoch, from any thread; older ones are refused.
        hand_over: runs an action on the engine's thread; False when the engine has stopped.
        tls: encrypts what goes over the network; doors beside us never leave the machine. None: plain.
    """

    def __init__(
        self,
        job: str,
        life: str,
        secret: bytes,
        host: str,
        epoch: Callable[[], int],
        hand_over: Callable[[Callable[[], None]], bool],
        tls: LinkTls | None = None,
    ) -> None:
        self.windows = Windows()
        self._tls = tls
        self._job, self._life, self._secret = job, life, secret
        self._epoch, self._hand_over = epoch, hand_over
        self._listener = own(socket.create_server((host, 0), backlog=1024))
        self._doors = [self._listener]
        self.host, self.port = host, int(self._listener.getsockname()[1])
        with contextlib.suppress(OSError):  # a system without abstract names: all links use the network
            door = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                door.bind(door_of(job, life))
                door.listen(1024)
            except OSError:
                door.close()
                raise
            self._doors.append(door)
        for item in self._doors:
            item.setblocking(False)
        self._threads = ThreadPoolExecutor(CONNECTORS, thread_name_prefix="trainmover-connect")

    def trust(self, secret: bytes) -> None:
        """From now on let in, and call on, those who know this secret instead."""
        self._secret = secret

    def files(self) -> list[int]:
        """Descriptors that are readable when somebody is at a door."""
        return [item.fileno() for item in self._doors]

    def close(self) -> None:
        """Close the doors and give up the windows; threads that are shaking hands end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for item in self._doors:
            item.close()
        self.windows.close()

    def join(self) -> None:
        """Wait for the threads, after :meth:`close`."""
        self._threads.shutdown(wait=True)

    # -- going out -----------------------------------------------------------------------------

    def dial(self, plan: Plan, link: Link, done: Dialled) -> None:
        """Make a link's connection; ``done`` is called on the engine's thread."""
        self._threads.submit(self._dial, plan, link, done)

    def _dial(self, plan: Plan, link: Link, done: Dialled) -> None:
        peer = plan.peers[link.other(plan.rank)]
        hello = Hello(self._job, link, plan.epoch, plan.rank, self._life, peer.life)
        arrival, reason, reached = None, "", False
        sock: socket.socket | SecureSocket | None = None
        try:
            sock = self._reach(peer)
            reached = True
            if sock.family != socket.AF_UNIX and self._tls is not None:
                sock = self._tls.dial(sock)
            dial(sock, hello, self._secret)
            arrival = Arrival(sock, self._swap_windows(sock, link, first=True))
        except (OSError, TrainMoverError) as error:
            reason = str(error) or type(error).__name__
            if sock is not None:
                sock.close()
        finished = arrival
        if not self._hand_over(lambda: done(finished, reason, reached)) and finished is not None:
            finished.sock.close()

    def _reach(self, peer: Peer) -> socket.socket:
        if peer.beside:
            sock = own(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(CONNECT_SECONDS)
            try:
                sock.connect(door_of(self._job, peer.life))
                _set_up(sock)
                return sock
            except OSError as error:
                sock.close()
                log.debug("%s is not reached by its door (%s); using the network", peer.life, error)
        sock = own(socket.create_connection((peer.host, peer.port), CONNECT_SECONDS))
        _set_up(sock)
        return sock

    # -- letting in ----------------------------------------------------------------------------

    def at_door(self, fd: int, heard: Callable[[Hello, Arrival], None]) -> None:
        """Somebody knocks; ``heard(hello, arrival)`` is called on the engine's thread once they are known."""
        for item in self._doors:
            if item.fileno() == fd:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sock, _ = item.accept()
                        hearing = self._threads.submit(self._hear, own(sock), heard)
                        hearing.add_done_callback(partial(_not_heard, sock))

    def _hear(self, sock: socket.socket, heard: Callable[[Hello, Arrival], None]) -> None:
        found: socket.socket | SecureSocket = sock
        try:
            sock.settimeout(CONNECT_SECONDS)
            _set_up(sock)
            if sock.family != socket.AF_UNIX and self._tls is not None:
                found = self._tls.accept(sock)
            hello = accept(found, self._secret, self._refusal)
            arrival = Arrival(found, self._swap_windows(found, hello.link, first=False))
        except (OSError, TrainMoverError) as error:
            log.info("a connection was not accepted: %s", error)
            found.close()
            return
        if not self._hand_over(lambda: heard(hello, arrival)):
            found.close()

    def _refusal(self, hello: Hello) -> str | None:
        if hello.job != self._job:
            return f"this is job {self._job}, not {hello.job}"
        if hello.receiver_life != self._life:
            return "the process that was dialled is gone; this is another one"
        if hello.epoch < self._epoch():
            return f"epoch {hello.epoch} is over; this is epoch {self._epoch()}"
        return None

    def _swap_windows(self, sock: socket.socket | SecureSocket, link: Link, *, first: bool) -> Window | None:
        if isinstance(sock, SecureSocket) or sock.family != socket.AF_UNIX or link.channel != COLLECTIVE:
            return None
        return swap_windows(sock, self.windows.own(link.group), first=first)


def new_life(machine: str, slot: int) -> str:
    """A name for this process that no other process has."""
    return f"{machine}.{slot}.{os.getpid()}.{os.urandom(4).hex()}"


def _not_heard(sock: socket.socket, hearing: Future[None]) -> None:
    """Close a connection whose turn never came, because the doors were closed before."""
    if hearing.cancelled():
        sock.close()


def _set_up(sock: socket.socket) -> None:
    """Send at once, do not pace where no network lies between, and ask whether the other end is there."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BESIDE_BUFFER)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reach.ask_when_idle(sock)
    if ip_address(sock.getpeername()[0]).is_loopback:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOOPBACK_CONTROL)
