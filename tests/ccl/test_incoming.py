"""Large payloads are read with their headers, straight into their memory; whatever comes instead is no worse.

A rank has received a small broadcast and waits for a large one.  Its only peer is a wire, over which
the tests send what they like, byte by byte where that matters.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.test_pairs import arrived, number, receive, send
from tests.ccl.worlds import PROMPT, Member, Wire, by_hand, done_within
from tests.waiting import wait_until
from trainmover.ccl import frames, walks
from trainmover.ccl.communicator import Call
from trainmover.ccl.incoming import STRAIGHT
from trainmover.ccl.tags import tag_of

COUNT = STRAIGHT
"""Elements of the large payload: four times the size from which one is read straight."""
BYTES = 4 * COUNT
TAG = tag_of("broadcast", 0)
PAYLOAD = torch.arange(COUNT, dtype=torch.float32)

Waiting = tuple[Member, Wire, torch.Tensor, torch.futures.Future]


def listen(member: Member, tensor: torch.Tensor) -> torch.futures.Future:
    """Wait for a broadcast of the wire's."""
    return member.start(
        Call("broadcast", "", [tensor], True, lambda g, tag: walks.broadcast(g, tensor, 0, tag))
    )


def data(sequence: int, payload: bytes = PAYLOAD.numpy().tobytes(), tag: int = TAG, epoch: int = 1) -> bytes:
    """A frame."""
    return frames.pack(frames.DATA, epoch, sequence, tag, len(payload)) + payload


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    """A rank that waits for its second frame, which is large."""
    with by_hand() as (member, wire):
        first, second = torch.zeros(2), torch.zeros(COUNT)
        future = listen(member, first)
        wire.send(data(0, struct.pack("<2f", 1.0, 2.0)))
        done_within([future], PROMPT)
        assert first.tolist() == [1.0, 2.0]
        yield member, wire, second, listen(member, second)


@pytest.mark.parametrize("cut", [1, 23, 24, 25, 5000, BYTES, BYTES + 23])
def test_it_may_come_in_any_two_parts(waiting: Waiting, cut: int) -> None:
    """Whether the first part ends in the header, with it or in the payload, all of it arrives."""
    member, wire, tensor, future = waiting
    frame = data(1)
    wire.send(frame[:cut])
    member.engine.ask(lambda: None)
    connection = member.connection(0)
    wait_until(
        lambda: connection._header_fill + (connection._frame is not None) > 0, "the first part is read"
    )
    wire.send(frame[cut:])
    done_within([future], PROMPT)
    assert torch.equal(tensor, PAYLOAD)


@pytest.mark.parametrize("before", [frames.pack(frames.WAITS, 1, 1, TAG), data(0, b"old", TAG, epoch=0)])
def test_what_comes_before_it_is_taken_for_what_it_is(waiting: Waiting, before: bytes) -> None:
    """A frame without payload, or one of an epoch that is over, in the same read."""
    member, wire, tensor, future = waiting
    wire.send(before + data(1) + data(2))
    done_within([future], PROMPT)
    assert torch.equal(tensor, PAYLOAD)
    again = torch.zeros(COUNT)
    done_within([listen(member, again)], PROMPT)
    assert torch.equal(again, PAYLOAD)
    assert not member.engine.broken


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (b"\0" * 64, "garbage on the link"),
        (data(5), "frame 5 arrived where 1 was due"),
        (data(1, PAYLOAD.numpy().tobytes()[:-4]), f"{BYTES - 4} bytes there.*{BYTES} bytes here"),
        (data(1, tag=TAG + 1), "rank 0 has made another call"),
        (frames.pack(frames.BREAK, 1), "rank 0 says that epoch 1 is broken"),
        (frames.pack(frames.BYE, 1), "the peer has left the job"),
        (data(1)[:5000], "closed the connection"),
    ],
)
def test_what_is_wrong_is_named(waiting: Waiting, instead: bytes, said: str) -> None:
    """Garbage, another frame or call, BREAK and goodbyes end the epoch with their reasons, as anywhere."""
    member, wire, _, future = waiting
    wire.send(instead)
    if "closed" in said or "left" in said:
        wire.sock.close()
    done_within([future], PROMPT)
    assert re.search(said, member.breaks[0].reason), member.breaks[0].reason


def test_large_messages_are_matched_by_tag_all_the_same(make_world: MakeWorld) -> None:
    """One of another tag that comes first is kept for its own receive, in whole."""
    world = make_world(2)
    world.switch()
    got = [torch.zeros(COUNT) for _ in range(3)]
    small = receive(world[1], got[0][:1], 0, tag=1)
    done_within([send(world[0], number(1, 1), 1, tag=1)], PROMPT)
    arrived(small)
    one = receive(world[1], got[1], 0, tag=2)
    done_within([send(world[0], number(3, COUNT), 1, tag=3), send(world[0], number(2, COUNT), 1, tag=2)], 5.0)
    two = receive(world[1], got[2], 0, tag=3)
    arrived(one, two)
    assert (torch.equal(got[1], number(2, COUNT)), torch.equal(got[2], number(3, COUNT))) == (True, True)
