"""What is said in a job: the events, their envelope, and the bus that carries them.

Importing this is cheap; NATS is loaded when a :class:`NatsBus` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmover.events.bus import Bus, Feed, Handler, ProbeAnswer
from trainmover.events.catalogue import AREAS, EVENTS, Event
from trainmover.events.codec import decode_message, encode_message
from trainmover.events.envelope import Envelope
from trainmover.events.frames import Decoder, FrameError, encode_frame
from trainmover.events.memory_bus import MemoryBroker, MemoryBus

if TYPE_CHECKING:
    from trainmover.events.log import Record, read_log, read_store, read_stream, write_log
    from trainmover.events.nats_bus import NatsBus
    from trainmover.events.schema import schemas
    from trainmover.events.server import NatsServer

_LAZY = {
    "NatsBus": "nats_bus",
    "NatsServer": "server",
    "Record": "log",
    "read_log": "log",
    "read_store": "log",
    "read_stream": "log",
    "schemas": "schema",
    "write_log": "log",
}

__all__ = [
    "AREAS",
    "EVENTS",
    "Bus",
    "Decoder",
    "Envelope",
    "Event",
    "Feed",
    "FrameError",
    "Handler",
    "MemoryBroker",
    "MemoryBus",
    "NatsBus",
    "NatsServer",
    "ProbeAnswer",
    "Record",
    "decode_message",
    "encode_frame",
    "encode_message",
    "read_log",
    "read_store",
    "read_stream",
    "schemas",
    "write_log",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"trainmover.events.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'trainmover.events' has no attribute {name!r}")
