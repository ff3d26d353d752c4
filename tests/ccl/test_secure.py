"""Links under TLS: the same promises as without, and nobody who cannot prove the deployment's certificate."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import GROUP, JOB, SECRET
from tests.waiting import wait_until
from trainmover.access.certificates import make_certificates
from trainmover.ccl import frames
from trainmover.ccl.handshake import Hello, accept, dial
from trainmover.ccl.secure import RECORD, LinkTls, SecureSocket
from trainmover.errors import ConfigError, LinkError
from trainmover.topology.links import Link

Ends = tuple[SecureSocket, SecureSocket]


def written(folder: Path) -> Path:
    """Certificates of a deployment in a folder, as a machine's credentials have them."""
    made = make_certificates(["127.0.0.1"], days=1)
    for name, content in (
        ("ca.pem", made.authority),
        ("link.pem", made.link.certificate),
        ("link.key", made.link.key),
    ):
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> LinkTls:
    """Certificates of one deployment."""
    return LinkTls.read(written(tmp_path_factory.mktemp("certificates")))


def meet(left: LinkTls, right: LinkTls) -> tuple[object, object]:
    """A dialer and an acceptor over a socket pair; each has its end or its error."""
    one, other = socket.socketpair()
    for end in (one, other):
        end.settimeout(5.0)

    def outcome(action, sock: socket.socket) -> object:
        try:
            return action(sock)
        except OSError as error:
            sock.close()
            return error

    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(outcome, right.accept, other)
        return outcome(left.dial, one), there.result(10)


@pytest.fixture
def ends(tls: LinkTls) -> Iterator[Ends]:
    """Two ends of an encrypted connection, not blocking."""
    left, right = meet(tls, tls)
    assert isinstance(left, SecureSocket)
    assert isinstance(right, SecureSocket)
    for end in (left, right):
        end.setblocking(False)
    yield left, right
    left.close()
    right.close()


def test_what_goes_in_comes_out_whatever_the_sizes(ends: Ends) -> None:
    """Bytes arrive in order for buffers of any size, also when the kernel has no room for a while."""
    left, right = ends
    random = Random(1)
    sizes = [0, 1, 23, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD + 7, 1 << 20]
    pieces = [
        [random.randbytes(random.choice(sizes)) for _ in range(random.randint(1, 3))] for _ in range(40)
    ]
    expected = b"".join(b"".join(piece) for piece in pieces)
    waiting = [memoryview(b"".join(piece)) for piece in pieces]
    received, owed = bytearray(), 0
    room = bytearray(random.choice([RECORD, 5 * RECORD]))
    while len(received) < len(expected):
        with contextlib.suppress(BlockingIOError):
            while waiting:
                taken = left.sendmsg(
                    [waiting[0][:24], waiting[0][24:]] if len(waiting[0]) > 24 else [waiting[0]]
                )
                waiting[0] = waiting[0][taken:]
                if not waiting[0]:
                    waiting.pop(0)
            left.flush()
        owed += left.owes
        with contextlib.suppress(BlockingIOError):
            received += room[: right.recv_into(room)]
    assert bytes(received) == expected
    assert owed, "the kernel's buffer was never full: this test has shown nothing about it"


def test_no_decrypted_bytes_wait_out_of_the_pollers_sight(ends: Ends) -> None:
    """After any read there is nothing left inside OpenSSL."""
    left, right = ends
    for size in (1, 100, RECORD, 2 * RECORD, 5 * RECORD + 3):
        assert left.send(b"x" * size) == size
        missing = size
        while missing:
            with contextlib.suppress(BlockingIOError):
                missing -= right.recv_into(bytearray(RECORD if size % 2 else 4 * RECORD))
            assert right._tls.pending() == 0


def test_memory_that_was_taken_is_the_callers_again(ends: Ends) -> None:
    """A record that the kernel did not take is copied: what the caller writes there later does not travel."""
    left, right = ends
    block = bytearray(b"a" * RECORD)
    sent = 0
    while not left.owes:
        sent += left.sendmsg([memoryview(block)])
    block[:] = b"b" * RECORD
    received = bytearray()
    while len(received) < sent:
        with contextlib.suppress(BlockingIOError):
            left.flush()
        room = bytearray(RECORD)
        with contextlib.suppress(BlockingIOError):
            received += room[: right.recv_into(room)]
    assert set(received) == {ord("a")}


def test_changed_bytes_end_the_connection(tls: LinkTls) -> None:
    """Who flips one bit on the way is found out before any of it is used."""
    near, tapped = socket.socketpair()
    tapping, far = socket.socketpair()
    for end in (near, far, tapped, tapping):
        end.settimeout(5.0)
    with ThreadPoolExecutor(3) as pool, near, far, tapped, tapping:
        flip = [False]

        def carry(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := bytearray(source.recv(1 << 16)):
                    if flip[0]:
                        data[-1] ^= 1
                    sink.sendall(data)
            sink.close()

        pool.submit(carry, tapped, tapping)
        pool.submit(carry, tapping, tapped)
        there = pool.submit(tls.accept, far)
        left, right = tls.dial(near), there.result(10)
        left.send(b"hello")
        assert right.recv(100) == b"hello"
        flip[0] = True
        left.send(b"hello")
        with pytest.raises(OSError, match=r"(?i)mac|decrypt"):
            right.recv(100)
        left.close()
        right.close()


def test_a_stranger_in_between_is_refused(tls: LinkTls, tmp_path: Path) -> None:
    """A certificate of another deployment, for the same name, is not believed."""
    stranger = LinkTls.read(written(tmp_path))
    here, there = meet(tls, stranger)
    assert isinstance(here, ssl.SSLCertVerificationError)
    assert isinstance(there, OSError)


def test_the_bus_certificate_does_not_open_links(tls: LinkTls, tmp_path: Path) -> None:
    """The same authority signed it, but for another purpose."""
    made = make_certificates(["bus.example"], days=1)
    (tmp_path / "ca.pem").write_bytes(made.authority)
    (tmp_path / "link.pem").write_bytes(made.bus.certificate)
    (tmp_path / "link.key").write_bytes(made.bus.key)
    impostor = LinkTls.read(tmp_path)
    here, _ = meet(impostor, impostor)
    assert isinstance(here, ssl.SSLCertVerificationError)
    assert "link.trainmover" in str(here)


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    """The folder is in the message."""
    with pytest.raises(ConfigError, match=str(tmp_path)):
        LinkTls.read(tmp_path)


@pytest.mark.parametrize("size", [2, 3])
def test_a_world_computes_the_same_over_encrypted_links(
    make_world: MakeWorld, tls: LinkTls, size: int
) -> None:
    """All sizes of sums, over a switch, bit for bit as over plain links."""
    results = []
    for wanted in (None, tls):
        world = make_world(size, tls=wanted)
        world.switch()
        found = []
        for count in (1, 1000, 70_000, 1_500_000):
            generator = torch.Generator().manual_seed(count)
            tensors = [torch.randn(count, generator=generator) for _ in range(size)]
            futures = [
                member.all_reduce(tensor) for member, tensor in zip(world.members, tensors, strict=True)
            ]
            for future in futures:
                future.wait()
            found.append([tensor.numpy().tobytes() for tensor in tensors])
            world.switch()
        secure = [isinstance(c.sock, SecureSocket) for m in world.members for c in m.connections().values()]
        assert secure
        assert all(secure) == (wanted is not None)
        results.append(found)
        world.check()
    assert results[0] == results[1]


def test_a_death_is_seen_as_fast_over_encrypted_links(make_world: MakeWorld, tls: LinkTls) -> None:
    """A rank that is killed in a sum breaks the epoch for the others."""
    world = make_world(3, tls=tls)
    world.switch()
    future = world[0].all_reduce(torch.ones(1000))
    world[2].kill()
    future.wait()
    wait_until(lambda: bool(world[0].breaks), "the break is told", 2.0)


def test_a_plain_dialer_does_not_get_in(make_world: MakeWorld, tls: LinkTls) -> None:
    """Who knows the secret and speaks no TLS is not let in, and the links stay as they are."""
    world = make_world(2, tls=tls)
    world.switch()
    table = world[1].table
    hello = Hello(JOB, Link(GROUP, "collective", 0, 1), 2, 0, "me", table.life)
    with socket.create_connection((table.host, table.port), 5.0) as sock, pytest.raises((LinkError, OSError)):
        dial(sock, hello, SECRET)
    world.check()


# -- fuzzing: what any bytes do ------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), encrypted=st.booleans())
def test_any_bytes_at_the_door_are_refused_in_time(tls: LinkTls, data: bytes, encrypted: bool) -> None:
    """A stranger's bytes end in LinkError or OSError, never in another exception, and in no hello."""
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(2.0)
        other.settimeout(0.2)
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises((LinkError, OSError)):
            accept(tls.accept(other) if encrypted else other, SECRET, lambda _: None)


@pytest.mark.parametrize("seed", range(4))
def test_any_frames_of_a_peer_end_its_own_link_only(make_world: MakeWorld, seed: int) -> None:
    """A peer that knows the secret and then sends garbage loses its connection; the other ranks go on."""
    random = Random(seed)
    world = make_world(3)
    world.switch()
    for _ in range(12):
        table = world[1].table
        hello = Hello(
            JOB, Link(GROUP, "collective", 0, 1), world.epoch + 1, 0, os.urandom(4).hex(), table.life
        )
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.create_connection((table.host, table.port), 5.0))
            dial(sock, hello, SECRET)
            with contextlib.suppress(OSError):
                sock.sendall(_garbage(random))
    world.check()
    world.switch()
    world.check()


def _garbage(random: Random) -> bytes:
    """Frames that are nearly right: headers of any field, cut, repeated, with payloads that do not fit."""
    data = b""
    for _ in range(random.randint(1, 6)):
        header = bytearray(
            frames.pack(
                random.choice([frames.DATA, frames.BREAK, frames.BYE, frames.WAITS]),
                # Not the epoch that goes on: who knows the secret may say that it is broken.
                random.choice([0, 2**32 - 1]),
                random.choice([0, 1, 2**32 - 1]),
                random.getrandbits(32),
                random.choice([0, 1, 100, 2**40]),
            )
        )
        if random.random() < 0.5:
            header[random.randrange(len(header))] = random.getrandbits(8)
        data += bytes(header) + random.randbytes(random.choice([0, 0, 1, 100]))
    return data[: random.randint(1, len(data))]
