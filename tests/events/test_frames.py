"""Frames between a rank and its machine."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from random import Random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.examples import example, left
from trainmover.errors import BusError
from trainmover.events.catalogue import EVENTS, JobSubmitted
from trainmover.events.frames import MAX_FRAME, Decoder, FrameError, encode_frame

LEFT = left(1).event


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_any_cutting_gives_the_same_events(seed, cuts):
    """However the bytes are cut, the same events come out in the same order."""
    random = Random(seed)
    events = [example(EVENTS[random.choice(sorted(EVENTS))], random) for _ in range(6)]
    data = b"".join(encode_frame(event) for event in events)
    decoder = Decoder("rank 3")
    found, start, turn = [], 0, 0
    while start < len(data):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(data[start : start + step])
        start, turn = start + step, turn + 1
    assert found == events
    assert decoder.waiting == 0


def test_a_cut_stream_shows():
    """Bytes of an unfinished frame are counted, so that an end inside a frame is seen."""
    decoder = Decoder("rank 3")
    assert decoder.feed(encode_frame(LEFT)[:-1]) == []
    assert decoder.waiting == len(encode_frame(LEFT)) - 1
    assert "rank 3" in repr(decoder)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (struct.pack(">I", MAX_FRAME + 1), "announces"),
        (framed(b"\xc1"), "not msgpack"),
        (framed(b""), "not msgpack"),
        (framed(msgpack.packb({"type": 1})), r"not \[type, data\]"),
        (framed(msgpack.packb(["machine.left"])), r"not \[type, data\]"),
        (framed(msgpack.packb(["machine.exploded", {}])), "unknown event type 'machine.exploded'"),
        (framed(msgpack.packb([7, {}])), "unknown event type"),
        (framed(msgpack.packb(["machine.left", {"x": 1}])), "machine.left from rank 3: field"),
        (framed(msgpack.packb(["machine.left", [1]])), "not a map"),
    ],
)
def test_a_bad_frame_ends_the_stream(bad, words):
    """A bad frame is an error that holds the events before it, and nothing comes after it."""
    decoder = Decoder("rank 3")
    with pytest.raises(FrameError, match=words) as caught:
        decoder.feed(encode_frame(LEFT) + bad + encode_frame(LEFT))
    assert caught.value.events == [LEFT]
    with pytest.raises(FrameError, match=words) as again:
        decoder.feed(encode_frame(LEFT))
    assert again.value.events == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_frame_errors(data):
    """Whatever the bytes, the decoder waits for more or raises FrameError, nothing else."""
    for stream in (data, framed(data)):
        with contextlib.suppress(FrameError):
            Decoder().feed(stream)


def test_what_cannot_be_sent_is_refused():
    """Too large or not encodable is a BusError at the sender."""
    plain = {"script": "s", "cwd": "/", "python": "p", "machines": 1, "run_dir": "/"}
    with pytest.raises(BusError, match="cannot be encoded"):
        encode_frame(JobSubmitted(**plain, seed=1 << 70))
    with pytest.raises(BusError, match="a frame may have"):
        encode_frame(JobSubmitted(**plain, args=("x" * 1000,) * 1100))


def test_a_training_process_loads_no_asyncio_client():
    """Using frames and the package's surface loads neither nats nor torch."""
    code = (
        "import sys, trainmover.events, trainmover.events.frames;"
        "assert not {'nats', 'torch', 'uvloop'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
