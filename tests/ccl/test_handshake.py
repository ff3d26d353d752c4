"""The handshake: who proves the job's secret gets in, everybody else is told why not; nobody hangs."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import GROUP, JOB, SECRET
from tests.waiting import wait_until
from trainmover.ccl.handshake import MAX_MESSAGE, Hello, accept, dial
from trainmover.errors import LinkError
from trainmover.topology.links import Link

HELLO = Hello(JOB, Link("g", "collective", 0, 1), 3, 0, "a", "b")


def anybody(_: Hello) -> str | None:
    """Refuse nobody."""
    return None


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, with a limit."""
    with contextlib.ExitStack() as stack:
        ends = socket.socketpair()
        for end in ends:
            end.settimeout(2.0)
            stack.enter_context(end)
        yield ends


def outcome(action: Callable[[], object]) -> object:
    """What an action returns, or the error that it raises."""
    try:
        return action()
    except (LinkError, OSError) as error:
        return error


def meet(
    pair: tuple[socket.socket, socket.socket],
    dialer: Callable[[socket.socket], object],
    acceptor: Callable[[socket.socket], object],
) -> tuple[object, object]:
    """Both sides at once; each closes its end when it is through, as its owner does on an error."""

    def side(action: Callable[[socket.socket], object], sock: socket.socket) -> object:
        found = outcome(lambda: action(sock))
        if isinstance(found, Exception):
            sock.close()
        return found

    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(side, acceptor, pair[1])
        return side(dialer, pair[0]), there.result(10)


def test_both_sides_agree_on_what_the_connection_is_for(pair) -> None:
    """With the same secret the acceptor learns the dialer's hello."""
    here, there = meet(pair, lambda s: dial(s, HELLO, SECRET), lambda s: accept(s, SECRET, anybody))
    assert (here, there) == (None, HELLO)


@pytest.mark.parametrize("who", ["dialer", "acceptor"])
def test_a_wrong_secret_is_refused_on_both_sides(pair, who: str) -> None:
    """Whichever side has another secret, both give up and say that it is the secret."""
    mine, theirs = (b"other", SECRET) if who == "dialer" else (SECRET, b"other")
    here, there = meet(pair, lambda s: dial(s, HELLO, mine), lambda s: accept(s, theirs, anybody))
    assert isinstance(here, LinkError)
    assert "does not know this job's secret" in str(here)
    assert isinstance(there, LinkError)
    assert "secret" in str(there)


def test_a_dialer_without_the_secret_cannot_get_in(pair) -> None:
    """A dialer that skips its own check and sends a made-up proof is refused."""

    def forge(sock: socket.socket) -> None:
        say(sock, opening())
        hear(sock)
        say(sock, {"proof": b"\0" * 32})
        assert hear(sock) == {"refused": "wrong secret"}

    here, there = meet(pair, forge, lambda s: accept(s, SECRET, anybody))
    assert here is None
    assert "does not know this job's secret" in str(there)


def test_a_proof_cannot_be_replayed(pair) -> None:
    """A recorded conversation is worth nothing against a fresh challenge."""
    heard: list[bytes] = []

    class Tapped:
        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def sendall(self, data: bytes) -> None:
            heard.append(data)
            self.sock.sendall(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self.sock, name)

    meet(pair, lambda s: dial(Tapped(s), HELLO, SECRET), lambda s: accept(s, SECRET, anybody))
    again = socket.socketpair()
    with again[0], again[1]:
        for end in again:
            end.settimeout(2.0)
        again[0].sendall(b"".join(heard))
        assert "does not know this job's secret" in str(outcome(lambda: accept(again[1], SECRET, anybody)))


def test_a_refusal_reaches_the_dialer_with_its_reason(pair) -> None:
    """What the acceptor's check says is in both errors, with the link and the epoch."""
    here, there = meet(
        pair, lambda s: dial(s, HELLO, SECRET), lambda s: accept(s, SECRET, lambda _: "no room")
    )
    for error in (here, there):
        assert "no room" in str(error)
        assert "link g/collective 0-1 of epoch 3 from rank 0" in str(error)


def test_strangers_are_not_told_why(pair) -> None:
    """The check runs only for authenticated dialers: others learn nothing about the job."""
    asked: list[Hello] = []

    def check(hello: Hello) -> str | None:
        asked.append(hello)
        return "no room"

    meet(pair, lambda s: dial(s, HELLO, b"other"), lambda s: accept(s, SECRET, check))
    assert asked == []


def opening(**changes: object) -> dict[str, object]:
    """A whole first message."""
    link = ["g", "collective", 0, 1]
    whole = {"job": JOB, "link": link, "epoch": 3, "sender": 0, "from": "a", "to": "b", "nonce": b"n"}
    return {**whole, **changes}


def say(sock: socket.socket, message: object) -> None:
    """Send one message."""
    body = msgpack.packb(message)
    sock.sendall(struct.pack("<I", len(body)) + body)


def hear(sock: socket.socket) -> object:
    """Receive one message."""
    (length,) = struct.unpack("<I", sock.recv(4, socket.MSG_WAITALL))
    return msgpack.unpackb(sock.recv(length, socket.MSG_WAITALL))


def packed(message: object) -> bytes:
    """One message's bytes."""
    body = msgpack.packb(message)
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "closed the connection"),
        (b"\x01\x02", "closed the connection"),
        (packed(opening())[:40], "closed the connection"),
        (struct.pack("<I", MAX_MESSAGE + 1), "limit 4096"),
        (b"\xff" * 64, "limit 4096"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "not msgpack"),
        (packed([1, 2]), "expected a map"),
        (packed({}), "'link' must be list"),
        (packed(opening(link=["g", "c", 0])), "a link is"),
        (packed(opening(link=["g", "c", "0", 1])), "a link is"),
        (packed(opening(epoch="3")), "'epoch' must be int"),
        (packed(opening(epoch=True)), "'epoch' must be int"),
        (packed(opening(job=None)), "'job' must be str"),
        (packed(opening()) + packed({"proof": "text"}), "'proof' must be bytes"),
    ],
)
def test_garbage_is_refused_with_a_reason(pair, data: bytes, said: str) -> None:
    """Nothing that a stranger sends raises anything but a LinkError that says what was wrong."""
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(LinkError, match=said):
        accept(pair[1], SECRET, anybody)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda d: struct.pack("<I", len(d)) + d))
def test_any_first_bytes_are_a_link_error(data: bytes) -> None:
    """Random bytes, framed or not, never get in and never raise anything else, on either side."""
    for side in (lambda s: accept(s, SECRET, anybody), lambda s: dial(s, HELLO, SECRET)):
        ends = socket.socketpair()
        with ends[0], ends[1]:
            ends[1].settimeout(2.0)
            ends[0].sendall(data)
            ends[0].shutdown(socket.SHUT_WR)
            with pytest.raises(LinkError):
                side(ends[1])


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["job", "link", "epoch", "sender", "from", "to", "nonce", "proof", "refused", "ok"]),
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.binary(max_size=40)
        | st.lists(st.text(max_size=3) | st.integers(-2, 2), max_size=5),
    )
)  # fmt: skip
def test_any_fields_are_a_link_error(fields: dict[str, object]) -> None:
    """Well-formed messages with the right names and the wrong content are refused too."""
    for side in (lambda s: accept(s, SECRET, anybody), lambda s: dial(s, HELLO, SECRET)):
        ends = socket.socketpair()
        with ends[0], ends[1]:
            ends[1].settimeout(2.0)
            ends[0].sendall(packed(fields) + packed(fields))
            ends[0].shutdown(socket.SHUT_WR)
            with pytest.raises(LinkError):
                side(ends[1])


@pytest.mark.parametrize("pace", ["silent", "dripping"])
def test_a_slow_stranger_is_given_up_on(pace: str) -> None:
    """A peer that says nothing, or a byte now and then, holds a connector no longer than the limit."""
    ends = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            ends[0].sendall(struct.pack("<I", 1000))
            while not over.wait(0.05):
                ends[0].sendall(b"\x80")

    with ends[0], ends[1], ThreadPoolExecutor(1) as pool:
        ends[1].settimeout(0.3)
        if pace == "dripping":
            pool.submit(drip)
        started = time.monotonic()
        found = outcome(lambda: accept(ends[1], SECRET, anybody))
        over.set()
        assert isinstance(found, (LinkError, TimeoutError))
        assert time.monotonic() - started < 5.0
        assert ends[1].gettimeout() == 0.3


class TestAtTheDoor:
    """What a link table refuses, seen from a dialer that knows the secret."""

    def refusal(self, make_world: MakeWorld, epoch: int = 2, **changes: object) -> str:
        """How rank 1 (in epoch 1) answers a hello."""
        world = make_world(2)
        world.switch()
        table = world[1].table
        hello = Hello(JOB, Link(GROUP, "collective", 0, 1), epoch, 0, "me", table.life)
        with socket.create_connection((table.host, table.port), 5.0) as sock:
            found = outcome(lambda: dial(sock, replace(hello, **changes), SECRET))
        world.check()
        return "" if found is None else str(found)

    def test_another_job_is_refused(self, make_world: MakeWorld) -> None:
        """A machine of another job with the same secret does not get in."""
        assert "this is job test-job, not other" in self.refusal(make_world, job="other")

    def test_an_old_epoch_is_refused(self, make_world: MakeWorld) -> None:
        """Whoever was declared dead and comes back with its old epoch is fenced out."""
        assert "epoch 0 is over; this is epoch 1" in self.refusal(make_world, epoch=0)

    def test_another_life_is_refused(self, make_world: MakeWorld) -> None:
        """A dialer that means the process that had this port before is told so."""
        assert "the process that was dialled is gone" in self.refusal(make_world, receiver_life="old")

    def test_a_coming_epoch_is_welcome(self, make_world: MakeWorld) -> None:
        """A hello for the next epoch is heard before the prepare message has come."""
        assert self.refusal(make_world) == ""

    def test_strangers_do_not_hold_up_a_switch(self, make_world: MakeWorld) -> None:
        """Garbage at every rank's door leaves the links and the next switch as they are."""
        world = make_world(3)
        world.switch()
        with contextlib.ExitStack() as stack:
            for member in world.members:
                for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, packed({"job": 1})):
                    sock = stack.enter_context(
                        socket.create_connection((member.table.host, member.table.port), 5.0)
                    )
                    sock.sendall(data)
            world.check()
            world.switch()
            world.check()

    def test_a_dialer_that_vanishes_after_the_handshake_leaves_nothing(self, make_world: MakeWorld) -> None:
        """A connection put aside for a coming epoch is forgotten once its peer is gone."""
        world = make_world(2)
        world.switch()
        table = world[1].table
        hello = Hello(JOB, Link(GROUP, "collective", 0, 1), 2, 0, "ghost", table.life)
        with socket.create_connection((table.host, table.port), 5.0) as sock:
            dial(sock, hello, SECRET)
            wait_until(lambda: len(world[1].engine.ask(lambda: dict(table._aside))) == 1, "put aside")
        wait_until(lambda: not world[1].engine.ask(lambda: dict(table._aside)), "forgotten")
        wait_until(lambda: world[1].lost == ["0: the peer closed the connection"], "said so")
        world.check()
