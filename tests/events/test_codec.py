"""Bodies: what goes through, and that nothing else does."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from random import Random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.examples import envelope, example, left
from trainmover.errors import BusError, DecodeError
from trainmover.events.catalogue import EVENTS, DeadLetter, JobSubmitted, MachineFailed, StandbyParked
from trainmover.events.codec import MAX_BODY, decode, decode_message, encode, encode_message
from trainmover.events.envelope import to_headers

GOOD = {"machine": "m1", "incarnation": "i1", "reason": "gone"}


def said(body: bytes, model: type = MachineFailed) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(model, body, "machine/m9")
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_event_comes_back(name):
    """For every model, decode(encode(event)) is the event."""
    for seed in range(20):
        event = example(EVENTS[name], Random(seed))
        assert decode(EVENTS[name], encode(event)) == event
        sent = envelope(event, Random(seed))
        headers, body = encode_message(sent)
        assert decode_message(headers, body, sent.subject) == sent


def test_whole_numbers_are_fine_for_seconds():
    """A sender whose language has one kind of number may write 1 for 1.0."""
    fields = {"machine": "m", "incarnation": "i", "slot": 0, "generation": 0, "shadow_steps": 0}
    body = msgpack.packb(fields | {"seconds": {"start": 1}})
    assert decode(StandbyParked, body).seconds == {"start": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": 7}, ["machine.failed", "field machine", "machine/m9"]),
        ({"machine": b"m1"}, ["field machine"]),
        ({"machine": "a b"}, ["field machine"]),
        ({"reason": "x" * 9000}, ["field reason"]),
        ({"evidence": "abc"}, ["field evidence"]),
        ({"evidence": [1]}, ["field evidence.0"]),
        ({"colour": "red"}, ["field colour"]),
        ({"evidence": {"a": 1}}, ["field evidence"]),
        ({"reason": None}, ["field reason"]),
        ({"reason": msgpack.Timestamp(1)}, ["field reason"]),
        ({"reason": msgpack.ExtType(5, b"x")}, ["extension type 5"]),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, ["and 1 more"]),
    ],
)
def test_wrong_fields_are_named(change, words):
    """An unknown field, a wrong type or value: the error names type, field and sender."""
    text = said(msgpack.packb(GOOD | change))
    assert all(word in text for word in words), text


def test_missing_fields_are_named():
    """A field without a default must be there."""
    assert "field reason" in said(msgpack.packb({"machine": "m1", "incarnation": "i1"}))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (msgpack.packb(GOOD)[:-1], "not msgpack"),
        (msgpack.packb(GOOD) + b"\x00", "bytes after its end"),
        (msgpack.packb([1, 2]), "not a map"),
        (msgpack.packb(None), "not a map"),
        (b"\x81\xa1\xff\x01", "not msgpack"),
        (b"\x81\x01\x01", "not msgpack"),
        (b"\x82\xa1a\x01\xa1a\x02", "given twice"),
        (b"\x81\xc4\x01a\x01", "machine.failed"),
        (msgpack.packb(GOOD | {"evidence": [[[[[[[[[[1]]]]]]]]]]}), "nested deeper"),
        (b"\x91" * 5000 + b"\x01", "machine.failed"),
        (b"\xd4\x05x", "extension type"),
        (b"x" * (MAX_BODY + 1), "the limit is"),
    ],
)
def test_bad_shapes_are_refused(body, words):
    """Bytes that are not one plain map of fields are a DecodeError, whatever they are."""
    assert words in said(body)


@pytest.mark.parametrize(
    "header", [b"\xdd" + struct.pack(">I", 1 << 20), b"\xdf" + struct.pack(">I", 1 << 19)]
)
def test_announced_sizes_are_not_believed(header):
    """Nested headers that announce millions of elements cost no memory."""
    body = (header + b"\xa0" * (header[0] == 0xDF)) * 500
    tracemalloc.start()
    try:
        said(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_bytes_and_text_are_different():
    """A dead letter's body is bytes; text in its place is refused."""
    letter = DeadLetter(subject="s", reason="r", body=b"\x00\xff")
    assert decode(DeadLetter, encode(letter)) == letter
    assert "field body" in said(msgpack.packb({"subject": "s", "reason": "r", "body": "x"}), DeadLetter)


def test_what_cannot_be_sent_is_refused_at_the_sender():
    """Too large, or a number that msgpack does not have: a BusError that names the event."""
    plain = {"script": "s", "cwd": "/", "python": "p", "machines": 1, "run_dir": "/"}
    with pytest.raises(BusError, match=r"job\.submitted cannot be encoded"):
        encode(JobSubmitted(**plain, seed=1 << 70))
    with pytest.raises(BusError, match=r"job\.submitted is \d+ bytes"):
        encode(JobSubmitted(**plain, args=("x" * 1000,) * 1100))


def test_a_message_must_be_on_its_own_subject():
    """Permissions are by subject, so an event on another's subject is refused."""
    headers, body = encode_message(left(1))
    with pytest.raises(DecodeError, match="belongs on"):
        decode_message(headers, body, "trainmover.job.switch.committed")
    with pytest.raises(DecodeError, match="ce-type is missing"):
        decode_message(None, body)


@settings(max_examples=500, deadline=None)
@given(body=st.binary(max_size=300), name=st.sampled_from(sorted(EVENTS)))
def test_arbitrary_bytes_are_decode_errors(body, name):
    """Whatever the bytes, decoding gives an event or a DecodeError, nothing else."""
    with contextlib.suppress(DecodeError):
        decode(EVENTS[name], body)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.binary(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1000), name=st.sampled_from(sorted(EVENTS)), field=st.integers(0, 30), value=PLAIN)
def test_arbitrary_fields_are_decode_errors(seed, name, field, value):
    """An event with one field replaced by anything is an event or a DecodeError, nothing else."""
    fields = example(EVENTS[name], Random(seed)).model_dump()
    fields[sorted(fields)[field % len(fields)]] = value
    try:
        body = msgpack.packb(fields)
    except UnicodeEncodeError:
        return
    with contextlib.suppress(DecodeError):
        decode(EVENTS[name], body)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(sorted(to_headers(left(0)))), st.text(max_size=40) | st.none(), max_size=4
    ),
    body=st.binary(max_size=60) | st.just(encode(left(0).event)),
    cut=st.integers(0, 60),
)
def test_arbitrary_messages_are_decode_errors(changes, body, cut):
    """Headers and body replaced or cut anywhere: an envelope or a DecodeError, nothing else."""
    headers = to_headers(left(0)) | changes
    with contextlib.suppress(DecodeError):
        decode_message(headers, body[:cut] if cut else body, "trainmover.job.machine.left")
