"""The codec: an event's body as msgpack, and nothing else let through.

What lives here: bytes to event and back.  What never lives here: headers' meaning (``envelope``),
transport, decisions.

Decoding trusts nobody.  It goes through three gates, each of which ends in :class:`DecodeError`
with the type, the field and the sender, never in any other exception:

1. *size*: at most :data:`MAX_BODY` bytes;
2. *shape*: one complete msgpack map, found by skipping over it before anything is allocated (a
   five-byte header may announce a million elements; nested, that would be gigabytes), without
   extension types, nested at most :data:`MAX_DEPTH` deep, keys text and each only once;
3. *meaning*: the pydantic model, strict and closed: unknown field, missing field, wrong type.

Sequences are decoded as tuples, which is what the models have, so strict validation needs no
conversion.  Encoding is a dump of the model in its field order, so equal events have equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgpack
from pydantic import ValidationError

from trainmover.errors import BusError, DecodeError
from trainmover.events.catalogue import EVENTS, Event
from trainmover.events.envelope import Envelope, from_headers, model_of, sender_of, to_headers

MAX_BODY: Final = 1 << 20
"""Largest body in bytes (1 MiB)."""

MAX_DEPTH: Final = 8
"""How deep maps and sequences may be nested; the catalogue needs 3."""

SMALL: Final = 4096
"""Bodies of up to so many bytes are not skipped over first: what they can announce is at most
this many elements in each of some hundred maps or sequences, a few megabytes."""

UNKNOWN_SENDER: Final = "an unknown sender"

_CONTAINERS: Final = frozenset({tuple, dict})

FAULTS = (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException)
"""Everything msgpack raises on bad bytes."""


def encode(event: Event) -> bytes:
    """The body of an event.

    Raises:
        BusError: the event cannot be sent: its body is larger than :data:`MAX_BODY`, or holds a
            value that msgpack does not have (an integer of more than 64 bits).
    """
    try:
        body = pack(event.model_dump())
    except (ValueError, OverflowError, TypeError) as error:
        raise BusError(f"{event.type} cannot be encoded: {error}") from error
    if len(body) > MAX_BODY:
        raise BusError(f"{event.type} is {len(body)} bytes, a message may have at most {MAX_BODY}")
    return body


def decode(model: type[Event], body: bytes, sender: str = UNKNOWN_SENDER) -> Event:
    """The event in a body of a known type.

    Raises:
        DecodeError: the body is not exactly one such event.
    """
    return _decode(model, body, f"{model.type} from {sender}")


def encode_message(envelope: Envelope) -> tuple[dict[str, str], bytes]:
    """Headers and body of an envelope.

    Raises:
        BusError: see :func:`encode`.
    """
    return to_headers(envelope), encode(envelope.event)


def decode_message(headers: Mapping[str, str] | None, body: bytes, subject: str | None = None) -> Envelope:
    """The envelope in headers and body.

    Args:
        subject: subject that the message came on; when given it must be the envelope's own,
            because permissions are given by subject: who may say ``machine.*`` must not be able to
            say ``switch.committed`` there.

    Raises:
        DecodeError: headers or body are not what the contract says.
    """
    headers = headers or {}
    model = model_of(headers)
    envelope = from_headers(headers, _decode(model, body, _What(model, headers)))
    if subject is not None and subject != envelope.subject:
        raise DecodeError(
            f"{envelope.type} from {sender_of(headers)} came on subject {subject[:200]!r},"
            f" it belongs on {envelope.subject!r}"
        )
    return envelope


class _What:
    """What a message is said to be, put into words only when something is wrong with it."""

    __slots__ = ("_headers", "_model")

    def __init__(self, model: type[Event], headers: Mapping[str, str]) -> None:
        self._model, self._headers = model, headers

    def __str__(self) -> str:
        return f"{self._model.type} from {sender_of(self._headers)}"


def _decode(model: type[Event], body: bytes, what: object) -> Event:
    return validate(model, unpack(body, what, MAX_BODY), what)


def pack(value: Any) -> bytes:
    """msgpack of plain values; text as text, bytes as bytes."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(body: bytes, what: object, limit: int) -> Any:
    """Plain values of one msgpack object, sequences as tuples.

    Args:
        what: what this is said to be, for the message of an error.
        limit: most bytes allowed.

    Raises:
        DecodeError: too large, not exactly one object, or more than plain values.
    """
    if len(body) > limit:
        raise DecodeError(f"{what} is {len(body)} bytes, the limit is {limit}")
    size = len(body)
    try:
        if size > SMALL:
            scanner = msgpack.Unpacker(read_size=size, max_buffer_size=size)
            scanner.feed(body)
            scanner.skip()
        value = msgpack.unpackb(body, use_list=False, raw=False, ext_hook=_no_extensions)
        if pack(value) != body:
            # Packed by somebody else, who may write shorter than is possible, or a field twice.
            value = msgpack.unpackb(
                body, use_list=False, raw=False, ext_hook=_no_extensions, object_pairs_hook=_unique
            )
    except DecodeError as error:
        raise DecodeError(f"{what}: {error}") from None
    except msgpack.ExtraData:
        raise DecodeError(f"{what} has bytes after its end") from None
    except FAULTS as error:
        raise DecodeError(f"{what} is not msgpack: {_reason(error)}") from None
    if _deeper_than(value, MAX_DEPTH):
        raise DecodeError(f"{what} is nested deeper than {MAX_DEPTH}")
    return value


def validate(model: type[Event], value: Any, what: object) -> Event:
    """The event that plain values make.

    Raises:
        DecodeError: they do not make one; the message names the first fields at fault.
    """
    if not isinstance(value, dict):
        raise DecodeError(f"{what} is a {type(value).__name__}, not a map of fields")
    try:
        event = model.model_validate(value)
        if len(value) == len(every := _fields(model)):
            # What TrainMover says has every field; the set that tells so can be one for all of a type.
            object.__setattr__(event, "__pydantic_fields_set__", every)
        return event
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        said = "; ".join(f"field {_path(fault['loc'])}: {fault['msg']}" for fault in faults[:3])
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise DecodeError(f"{what}: {said}{more}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"{what}: {_reason(error)}") from None


@cache
def _fields(model: type[Event]) -> set[str]:
    return set(model.model_fields)


def model_named(name: object, sender: str) -> type[Event]:
    """The model of a bare type name (``machine.failed``).

    Raises:
        DecodeError: there is none.
    """
    model = EVENTS.get(name) if isinstance(name, str) else None
    if model is None:
        raise DecodeError(f"unknown event type {str(name)[:200]!r} from {sender}")
    return model


def _no_extensions(code: int, data: bytes) -> Any:
    raise DecodeError(f"extension type {code} is not allowed")


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DecodeError("a field is given twice")
    return found


def _deeper_than(value: Any, limit: int) -> bool:
    """Breadth first, containers only: cost is that of touching each element once."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(limit + 1):
        if not level:
            return False
        level = [
            part
            for item in level
            for part in (item.values() if type(item) is dict else item)
            if type(part) in _CONTAINERS
        ]
    return bool(level)


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:80] for part in loc) or "(whole)"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()[:200]
