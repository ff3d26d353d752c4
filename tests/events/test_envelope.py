"""The envelope and its headers."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.examples import envelope, example, left
from trainmover.errors import DecodeError
from trainmover.events.catalogue import EVENTS, Heartbeat, JobFailed, MachineFailed
from trainmover.events.envelope import (
    Envelope,
    check_job,
    check_source,
    format_time,
    from_headers,
    model_of,
    parse_time,
    percent_decode,
    percent_encode,
    stream_name,
    to_headers,
)

FAILED = MachineFailed(machine="m1", incarnation="i1", reason="gone")


def failed(**changes: object) -> Envelope:
    fields = {"id": "health-1", "source": "health", "time": 0.0, "job": "job", "event": FAILED}
    return Envelope(**(fields | changes))


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_headers_give_back_the_envelope(name):
    """For every event, headers and body hold all that the envelope says."""
    for seed in range(5):
        sent = envelope(example(EVENTS[name], Random(seed)), Random(seed))
        headers = to_headers(sent)
        assert model_of(headers) is EVENTS[name]
        assert from_headers(headers, sent.event) == sent


def test_headers_are_cloudevents():
    """The headers are those of the CloudEvents binding, lowercase, with our extensions."""
    sent = failed(time=1764430000.123457, incident="inc-1", cause="x-2", source="machine/m0")
    headers = to_headers(sent)
    trace = headers.pop("traceparent")
    assert headers == {
        "ce-specversion": "1.0",
        "ce-id": "health-1",
        "ce-type": "io.trainmover.machine.failed.v1",
        "ce-source": "machine/m0",
        "ce-time": "2025-11-29T15:26:40.123457Z",
        "ce-datacontenttype": "application/msgpack",
        "ce-subject": "m1",
        "ce-job": "job",
        "ce-incident": "inc-1",
        "ce-cause": "x-2",
        "Nats-Msg-Id": "health-1",
        "Content-Type": "application/msgpack",
    }
    version, trace_id, span_id, flags = trace.split("-")
    assert (version, len(trace_id), len(span_id), flags) == ("00", 32, 16, "01")


def test_an_incident_is_one_trace():
    """Events of one incident share a trace; each has its own span; lone events their own trace."""
    first, second, other, alone = (
        failed(id="a", incident="inc-1").traceparent.split("-"),
        failed(id="b", incident="inc-1").traceparent.split("-"),
        failed(id="c", incident="inc-2").traceparent.split("-"),
        failed(id="d").traceparent.split("-"),
    )
    assert first[1] == second[1]
    assert first[2] != second[2]
    assert len({first[1], other[1], alone[1]}) == 3


@given(st.floats(min_value=0, max_value=253402300799))
def test_time_survives_to_the_microsecond(seconds):
    """A time comes back as exactly the double that the envelope holds."""
    sent = failed(time=seconds)
    assert abs(sent.time - seconds) <= 1e-6
    assert parse_time(format_time(sent.time)) == sent.time


def test_time_reads_other_zones_and_precisions():
    """Times of other senders are RFC 3339 too: other zones, fewer or more digits."""
    whole = datetime(2025, 11, 29, 15, 26, 40, tzinfo=UTC).timestamp()
    assert parse_time("2025-11-29T15:26:40Z") == whole
    assert parse_time("2025-11-29T16:26:40.5+01:00") == whole + 0.5
    assert parse_time("2025-11-29t15:26:40.123456789z") == whole + 0.123456
    for text in ("", "2025-11-29", "2025-11-29T15:26:40", "2025-13-29T15:26:40Z", "now"):
        with pytest.raises(ValueError):
            parse_time(text)


@given(st.text())
def test_percent_encoding_comes_back(text):
    """Any text survives, and what travels is printable ASCII without space, quote or newline."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    wire = percent_encode(text)
    assert percent_decode(wire) == text
    assert all(0x21 <= ord(char) <= 0x7E and char != '"' for char in wire)


def test_percent_encoding_is_the_bindings():
    """The example of the CloudEvents binding."""
    assert percent_encode("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ""},
        {"id": "a b"},
        {"id": "a\n"},
        {"id": "x" * 129},
        {"source": "a\r\nce-id: b"},
        {"job": "a.b"},
        {"job": "*"},
        {"incident": "inc 1"},
        {"cause": ">"},
        {"time": -1.0},
        {"time": float("nan")},
        {"time": float("inf")},
    ],
)
def test_names_and_times_are_checked(changes):
    """What would not survive a header or a subject cannot be made."""
    with pytest.raises(ValueError, match=r"machine\.failed"):
        failed(**changes)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ce-type", None, "ce-type is missing"),
        ("ce-type", "io.trainmover.machine.exploded.v1", "unknown event type"),
        ("ce-type", "machine.failed", "unknown event type"),
        ("ce-type", "io.trainmover.machine.failed.v2", "version 2"),
        ("ce-id", None, "ce-id is missing"),
        ("ce-id", "", "ce-id is missing"),
        ("ce-id", "a%20b", "id 'a b'"),
        ("ce-id", "x" * 2000, "longer than"),
        ("ce-time", "yesterday", "not an RFC 3339 time"),
        ("ce-time", "0001-01-01T00:00:00Z", "not a unix time"),
        ("ce-source", "%ff", "not percent-encoded UTF-8"),
        ("ce-specversion", "0.3", "ce-specversion"),
        ("ce-datacontenttype", "application/json", "ce-datacontenttype"),
        ("ce-subject", "m2", "ce-subject"),
        ("ce-job", "a.b", "job 'a.b'"),
    ],
)
def test_bad_headers_are_named(name, value, said):
    """A missing, malformed or contradicting header is a DecodeError that names it."""
    headers = to_headers(failed())
    headers.pop(name) if value is None else headers.update({name: value})
    with pytest.raises(DecodeError, match=said):
        from_headers(headers, example(model_of(headers), Random(0)) if name == "ce-type" else FAILED)


def test_subjects():
    """Journalled events are on area.event; others also name their machine."""
    beat = Heartbeat(
        machine="m3", incarnation="i", sequence=1, ranks=(), step=0, cpu_percent=0.0, rss_bytes=0
    )
    assert failed().subject == "trainmover.job.machine.failed"
    assert failed(event=beat).subject == "trainmover.job.sample.beat.m3"
    assert failed(event=JobFailed(reason="x")).machine is None
    assert stream_name("a-b") == "TRAINMOVER_a-b"


def test_names_of_jobs_and_programs():
    """A job's name must fit in a subject, a program's in a header."""
    assert check_job("a_b-1") == "a_b-1"
    assert check_source("machine/m0") == "machine/m0"
    for check in (check_job, check_source):
        with pytest.raises(ValueError, match="name"):
            check("a b")


def test_text_of_an_envelope():
    """An envelope prints as one readable line."""
    sent = failed(incident="inc-1", cause="x-2")
    assert str(sent) == (
        "1970-01-01T00:00:00.000000Z machine.failed health-1 by health machine=m1 incident=inc-1 cause=x-2"
    )
    assert left(3).type == "machine.left"
