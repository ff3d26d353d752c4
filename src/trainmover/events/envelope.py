"""The envelope: who said an event, when, in which job, and because of what.

What lives here: the frozen :class:`Envelope`, its CloudEvents 1.0 form as NATS headers (binary
mode: every attribute is one ``ce-`` header, the body is the event alone), and the subject each
event travels on.  What never lives here: bodies (``codec``) and transport (``bus``).

Two rules hold the file together.  First, the headers are the contract with subscribers who do not
use this package, so they are plain CloudEvents: lowercase names, percent-encoded values, RFC 3339
times; ``job``, ``incident`` and ``cause`` are extension attributes.  Second, nothing in a header
is made up twice: the type comes from the event's class, ``Nats-Msg-Id`` *is* the id (JetStream
drops a second message with the same one), and the W3C ``traceparent`` is computed from the
incident, so that every tool that knows traces shows one incident as one trace.

Sources: CloudEvents 1.0.2 (attributes), its NATS protocol binding (headers, percent-encoding),
W3C Trace Context (traceparent).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final
from urllib.parse import unquote_to_bytes

from trainmover.errors import DecodeError
from trainmover.events.catalogue import EVENTS, Event

TYPE_PREFIX: Final = "io.trainmover."
CONTENT_TYPE: Final = "application/msgpack"
SPEC_VERSION: Final = "1.0"
SUBJECT_ROOT: Final = "trainmover"

MAX_HEADERS: Final = 64
MAX_HEADER_VALUE: Final = 1024

_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")
_JOB = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_SOURCE = re.compile(r"[A-Za-z0-9_.:/@\-]{1,128}")
_TYPE = re.compile(r"io\.trainmover\.([a-z]+\.[a-z]+)\.v([1-9][0-9]{0,5})")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")
_LATEST: Final = 253402300799.0
"""Last second of the year 9999, the latest that RFC 3339 can write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One event as it travels.

    Attributes:
        id: unique in the job; a second publish with the same id is dropped by the log.
        source: program that says it (``health``, ``machine/m0``, ``m0-rank1``).
        time: unix seconds when it was said; rounded to microseconds, the precision of the wire.
        job: name of the job, one part of a subject: letters, digits, ``_`` and ``-``.
        event: the event itself.
        incident: incident that this belongs to, if any.
        cause: id of the envelope that this answers, if any.

    Raises:
        ValueError: a name has other characters than its pattern allows, or the time is not a time.
    """

    id: str
    source: str
    time: float
    job: str
    event: Event
    incident: str | None = None
    cause: str | None = None

    def __post_init__(self) -> None:
        fine = _ID.fullmatch(self.id) is not None and _known_source(self.source) and _known_job(self.job)
        fine = fine and (self.incident is None or _known_incident(self.incident))
        if not fine or (self.cause is not None and _ID.fullmatch(self.cause) is None):
            raise ValueError(self._what_is_wrong())
        if not 0 <= self.time <= _LATEST:
            raise ValueError(f"time {self.time!r} of {self.event.type} {self.id} is not a unix time")
        object.__setattr__(self, "time", round(self.time, 6))

    def _what_is_wrong(self) -> str:
        for what, pattern, value in (
            ("id", _ID, self.id),
            ("source", _SOURCE, self.source),
            ("job", _JOB, self.job),
            ("incident", _ID, self.incident),
            ("cause", _ID, self.cause),
        ):
            if value is not None and pattern.fullmatch(value) is None:
                return f"{what} {value!r} of {self.event.type} is not a name ({pattern.pattern})"
        raise AssertionError("called for an envelope with a name that is none")

    @property
    def type(self) -> str:
        """Type name of the event: ``<area>.<event>``."""
        return self.event.type

    @property
    def machine(self) -> str | None:
        """The machine that the event is about, if it names one."""
        value = getattr(self.event, "machine", None)
        return value if isinstance(value, str) else None

    @property
    def subject(self) -> str:
        """NATS subject that it is published on."""
        base = f"{SUBJECT_ROOT}.{self.job}.{self.type}"
        return base if self.event.journalled or self.machine is None else f"{base}.{self.machine}"

    @property
    def traceparent(self) -> str:
        """W3C trace context: one trace per incident (or lone event), one span per envelope."""
        trace = hashlib.sha256(f"{self.job}/{self.incident or self.id}".encode()).hexdigest()[:32]
        span = hashlib.sha256(f"{self.job}/{self.id}".encode()).hexdigest()[:16]
        return f"00-{trace}-{span}-01"

    def __str__(self) -> str:
        about = "".join(
            f" {name}={value}"
            for name, value in (("machine", self.machine), ("incident", self.incident), ("cause", self.cause))
            if value is not None
        )
        return f"{format_time(self.time)} {self.type} {self.id} by {self.source}{about}"


def check_job(job: str) -> str:
    """The name itself, when it may stand in a subject.

    Raises:
        ValueError: it may not.
    """
    if _JOB.fullmatch(job) is None:
        raise ValueError(f"job name {job!r} may have only letters, digits, '_' and '-', at most 64")
    return job


def check_source(source: str) -> str:
    """The name itself, when it may be a source.

    Raises:
        ValueError: it may not.
    """
    if _SOURCE.fullmatch(source) is None:
        raise ValueError(f"program name {source!r} has other characters than {_SOURCE.pattern}")
    return source


def stream_name(job: str) -> str:
    """Name of the job's JetStream stream."""
    return f"TRAINMOVER_{check_job(job)}"


def ce_type(event: Event | type[Event]) -> str:
    """CloudEvents type of an event, version included: ``io.trainmover.machine.failed.v1``."""
    return f"{TYPE_PREFIX}{event.type}.v{event.version}"


def format_time(seconds: float) -> str:
    """RFC 3339 text in UTC with microseconds."""
    # Seconds and fraction apart: seconds * 1e6 as a double is inexact for far times.
    whole = int(seconds)
    micros = round((seconds - whole) * 1_000_000)
    whole, micros = (whole + 1, 0) if micros == 1_000_000 else (whole, micros)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 text; the inverse of :func:`format_time` to the microsecond.

    Raises:
        ValueError: it is not such a text.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    day, clock, fraction, zone = match.groups()
    whole = _whole_seconds(day, clock, "+00:00" if zone in ("Z", "z") else zone)
    micros = int((fraction or "0").ljust(6, "0")[:6])
    # One correctly rounded division of whole numbers: the very double that round(t, 6) gives.
    return (whole * 1_000_000 + micros) / 1_000_000


def to_headers(envelope: Envelope) -> dict[str, str]:
    """The envelope as NATS headers, CloudEvents binary mode; names in lowercase."""
    headers = {
        "ce-specversion": SPEC_VERSION,
        "ce-id": envelope.id,
        "ce-type": ce_type(envelope.event),
        "ce-source": percent_encode(envelope.source),
        "ce-time": format_time(envelope.time),
        "ce-datacontenttype": CONTENT_TYPE,
        "ce-job": envelope.job,
        "traceparent": envelope.traceparent,
        "Nats-Msg-Id": envelope.id,
        "Content-Type": CONTENT_TYPE,
    }
    for name, value in (
        ("ce-subject", envelope.machine),
        ("ce-incident", envelope.incident),
        ("ce-cause", envelope.cause),
    ):
        if value is not None:
            headers[name] = percent_encode(value)
    return headers


def model_of(headers: Mapping[str, str]) -> type[Event]:
    """The model that the headers announce.

    Raises:
        DecodeError: the type is missing, unknown, or of a version that this program does not read.
    """
    text = _read(headers, "ce-type")
    if (known := _MODELS.get(text)) is not None:
        return known
    sender = sender_of(headers)
    match = _TYPE.fullmatch(text)
    model = EVENTS.get(match[1]) if match is not None else None
    if match is None or model is None:
        raise DecodeError(f"unknown event type {text[:200]!r} from {sender}")
    if int(match[2]) != model.version:
        raise DecodeError(
            f"{model.type} from {sender} has version {match[2]}, this program reads version"
            f" {model.version}: run the same release on both sides"
        )
    return model


def from_headers(headers: Mapping[str, str], event: Event) -> Envelope:
    """The envelope that the headers and the decoded event make.

    Raises:
        DecodeError: an attribute is missing, malformed, or contradicts the event.
    """
    try:
        spec, kind, name, source, time, job = _REQUIRED(headers)
        incident, cause = headers.get("ce-incident"), headers.get("ce-cause")
        plain = "%" not in name and "%" not in source and "%" not in job and "%" not in time
        if plain and spec == SPEC_VERSION and kind == CONTENT_TYPE:
            envelope = Envelope(
                id=name,
                source=source,
                time=parse_time(time),
                job=job,
                event=event,
                incident=incident,
                cause=cause,
            )
            if "ce-subject" not in headers or headers["ce-subject"] == envelope.machine:
                return envelope
    except (KeyError, ValueError, OverflowError, TypeError):
        pass  # escaped, or wrong: the long way reads the one and has words for the other
    return _from_headers_with_care(headers, event)


def _from_headers_with_care(headers: Mapping[str, str], event: Event) -> Envelope:
    spec = _read(headers, "ce-specversion")
    if spec != SPEC_VERSION:
        raise DecodeError(
            f"{event.type} from {sender_of(headers)} has ce-specversion {spec!r}, not {SPEC_VERSION!r}"
        )
    if _read(headers, "ce-datacontenttype") != CONTENT_TYPE:
        raise DecodeError(f"{event.type} from {sender_of(headers)}: ce-datacontenttype is not {CONTENT_TYPE}")
    try:
        envelope = Envelope(
            id=_read(headers, "ce-id"),
            source=_read(headers, "ce-source"),
            time=parse_time(_read(headers, "ce-time")),
            job=_read(headers, "ce-job"),
            event=event,
            incident=_read(headers, "ce-incident") if "ce-incident" in headers else None,
            cause=_read(headers, "ce-cause") if "ce-cause" in headers else None,
        )
    except (ValueError, OverflowError) as error:
        raise DecodeError(f"{event.type} from {sender_of(headers)}: {error}") from None
    if "ce-subject" in headers and _read(headers, "ce-subject") != envelope.machine:
        raise DecodeError(
            f"{event.type} from {sender_of(headers)}: ce-subject is not the machine in the body"
        )
    return envelope


def sender_of(headers: Mapping[str, str]) -> str:
    """Who the headers say has sent this, fit for a message."""
    value = headers.get("ce-source")
    return value[:128] if isinstance(value, str) and value.isprintable() and value else "an unknown sender"


def percent_encode(text: str) -> str:
    """Escape what the binding wants escaped: space, ``"``, ``%`` and all but printable ASCII."""
    if text.isascii() and text.isprintable() and not set(text) & set(' "%'):
        return text
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E and byte not in b'"%' else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )


def percent_decode(text: str) -> str:
    """Undo :func:`percent_encode`.

    Raises:
        ValueError: the escapes are not UTF-8.
    """
    return text if "%" not in text else unquote_to_bytes(text).decode("utf-8")


def _read(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str) or not value:
        raise DecodeError(f"header {name} is missing in a message from {sender_of(headers)}")
    if len(value) > MAX_HEADER_VALUE:
        raise DecodeError(
            f"header {name} from {sender_of(headers)} is longer than {MAX_HEADER_VALUE} characters"
        )
    if "%" not in value:
        return value
    try:
        return percent_decode(value)
    except ValueError:
        raise DecodeError(f"header {name} from {sender_of(headers)} is not percent-encoded UTF-8") from None


# Names come again and again: each is looked at once.


@lru_cache(maxsize=4096)
def _known_source(source: str) -> bool:
    return _SOURCE.fullmatch(source) is not None


@lru_cache(maxsize=256)
def _known_job(job: str) -> bool:
    return _JOB.fullmatch(job) is not None


@lru_cache(maxsize=4096)
def _known_incident(incident: str) -> bool:
    return _ID.fullmatch(incident) is not None


@lru_cache(maxsize=1024)
def _whole_seconds(day: str, clock: str, zone: str) -> int:
    return int(datetime.fromisoformat(f"{day}T{clock}{zone}").timestamp())


_REQUIRED: Final = itemgetter(
    "ce-specversion", "ce-datacontenttype", "ce-id", "ce-source", "ce-time", "ce-job"
)
_MODELS: Final = {ce_type(model): model for model in EVENTS.values()}
