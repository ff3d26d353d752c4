"""The contract as one AsyncAPI 3.0 document: servers, channels, messages, who says and who hears.

What lives here: the document as plain data, made from the catalogue.  What never lives here: the
bodies' schemas (``schema``; the document refers to them), writing files (``contract``).

AsyncAPI tells a contract from the side of one application.  The application here is TrainMover as a
whole: what it *sends* is what anybody may subscribe to, what it *receives* is what anybody may ask of it
(:data:`ASKED`).  One channel per event, because in NATS a subject is what one subscribes to and what
permissions are given for.

Source: AsyncAPI 3.0.0 (https://www.asyncapi.com/docs/reference/specification/v3.0.0).
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from trainmover.events.catalogue import EVENTS, Event, JobSubmitted, MoveRequested
from trainmover.events.envelope import CONTENT_TYPE, SPEC_VERSION, SUBJECT_ROOT, TYPE_PREFIX, ce_type
from trainmover.events.schema import DIALECT
from trainmover.version import __version__

ASYNCAPI: Final = "3.0.0"

ASKED: Final[tuple[type[Event], ...]] = (JobSubmitted, MoveRequested)
"""What programs that are no part of TrainMover may say."""

AREA_WORDS: Final = {
    "checkpoint": "The state on disk, for when it is on no machine any more.",
    "dead": "What could not be read.",
    "job": "The job as a whole: what it is, how it ends.",
    "journal": "In which order the services were fed, for replay.",
    "lease": "Heartbeats that stopped, came back, or tell of a stalled process.",
    "link": "Connections between ranks.",
    "machine": "Machines come and go, are launched, suspected and declared dead.",
    "mirror": "State that no other rank has, kept once more in another machine's memory.",
    "move": "Planned replacements.",
    "plan": "The next layout.",
    "rank": "Ranks: their processes, and what they are.",
    "recording": "Recorded collective results, which spares are warmed with.",
    "roles": "Which machines do the same.",
    "sample": "Heartbeats and steps: core NATS only, may be lost.",
    "standby": "Spare machines.",
    "switch": "A change of the layout, from its preparation to its commit.",
    "timer": "Deadlines of the services, for replay.",
    "training": "Training itself.",
}
"""What the events of an area are about."""

ATTRIBUTES: Final[dict[str, dict[str, Any]]] = {
    "ce-specversion": {"type": "string", "const": SPEC_VERSION},
    "ce-id": {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_.:\-]{1,128}$",
        "description": "Unique in the job. The same event may arrive twice: keep the ids you have seen.",
    },
    "ce-type": {
        "type": "string",
        "pattern": r"^io\.trainmover\.[a-z]+\.[a-z]+\.v[1-9][0-9]*$",
        "description": "Which event, and in which version.",
    },
    "ce-source": {"type": "string", "description": "The program that says it."},
    "ce-time": {
        "type": "string",
        "format": "date-time",
        "description": "When it was said: RFC 3339, UTC, microseconds.",
    },
    "ce-datacontenttype": {"type": "string", "const": CONTENT_TYPE},
    "ce-job": {"type": "string", "pattern": r"^[A-Za-z0-9_\-]{1,64}$", "description": "The job."},
    "ce-subject": {"type": "string", "description": "The machine that it is about, if one."},
    "ce-incident": {
        "type": "string",
        "description": "The incident that it belongs to, if one; all events of one incident are its story.",
    },
    "ce-cause": {"type": "string", "description": "The id of the event that it answers, if one."},
    "traceparent": {
        "type": "string",
        "pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$",
        "description": "W3C trace context; one incident is one trace.",
    },
    "Nats-Msg-Id": {"type": "string", "description": "Equal to ce-id: the stream drops a second one."},
    "Content-Type": {"type": "string", "const": CONTENT_TYPE},
}
"""The headers of every message; values are percent-encoded."""

OPTIONAL: Final = frozenset({"ce-subject", "ce-incident", "ce-cause"})


def public() -> dict[str, type[Event]]:
    """The events that travel on the bus, by type name."""
    return {name: model for name, model in EVENTS.items() if not model.local}


def address(model: type[Event]) -> str:
    """The subject of an event with its parameters: ``trainmover.{job}.machine.failed``."""
    base = f"{SUBJECT_ROOT}.{{job}}.{model.type}"
    return base if model.journalled or "machine" not in model.model_fields else f"{base}.{{machine}}"


def document() -> dict[str, Any]:
    """The whole document; the order of its keys is the order for a reader."""
    events = public()
    areas = sorted({name.split(".")[0] for name in events})
    return {
        "asyncapi": ASYNCAPI,
        "id": "urn:io:trainmover:events",
        "info": {
            "title": "TrainMover events",
            "version": __version__,
            "description": (
                "Everything that the parts of TrainMover say to one another. A message is a CloudEvent 1.0\n"
                "in binary mode on NATS: the attributes are headers, the body is the event in msgpack.\n"
                "Written by `trainmover events contract`; README.md tells the rest."
            ),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "tags": [{"name": area, "description": AREA_WORDS[area]} for area in areas],
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": _servers(),
        "channels": {name: _channel(model) for name, model in events.items()},
        "operations": {
            **{f"say.{name}": _operation("send", model) for name, model in events.items()},
            **{f"hear.{model.type}": _operation("receive", model) for model in ASKED},
        },
        "components": {
            "parameters": {
                "job": {"description": "Name of the job: letters, digits, `_` and `-`, at most 64."},
                "machine": {"description": "Name of the machine: letters, digits, `_` and `-`, at most 64."},
            },
            "schemas": {"attributes": _attributes()},
            "correlationIds": {
                "incident": {
                    "description": "All events of one incident have this in common.",
                    "location": "$message.header#/ce-incident",
                }
            },
            "messages": {name: _message(model) for name, model in events.items()},
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "user", "description": _EMBEDDED},
                "user": {"type": "userPassword", "description": _ROLES},
            },
        },
    }


_EMBEDDED: Final = "The one token of an embedded server; in the URL, as in nats://TOKEN@host:4222."
_ROLES: Final = "A role's user and password; `reader` may subscribe to all events and say nothing."


def _servers() -> dict[str, Any]:
    return {
        "bus": {
            "host": "{host}:{port}",
            "protocol": "nats",
            "title": "The NATS server",
            "description": (
                "NATS 2.11 or newer with JetStream. What is kept lies in the stream TRAINMOVER_<job>,\n"
                "in one order, and may be read by batched direct get, without a consumer."
            ),
            "variables": {
                "host": {"default": "127.0.0.1", "description": "Where the server runs."},
                "port": {"default": "4222", "description": "An embedded server takes a free one."},
            },
            "security": [
                {"$ref": "#/components/securitySchemes/user"},
                {"$ref": "#/components/securitySchemes/token"},
            ],
        }
    }


def _channel(model: type[Event]) -> dict[str, Any]:
    where = address(model)
    names = [name for name in ("job", "machine") if f"{{{name}}}" in where]
    kept = (
        {"x-stream": "TRAINMOVER_{job}"}
        if model.journalled
        else {"description": "Sent once on core NATS, not kept: it may be lost."}
    )
    return {
        "address": where,
        **kept,
        "servers": [{"$ref": "#/servers/bus"}],
        "parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in names},
        "messages": {model.type: {"$ref": f"#/components/messages/{model.type}"}},
        "tags": [{"name": model.type.split(".")[0]}],
    }


def _operation(action: str, model: type[Event]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{model.type}"},
        "summary": "Anybody may say this." if action == "receive" else "TrainMover says this.",
        "messages": [{"$ref": f"#/channels/{model.type}/messages/{model.type}"}],
    }


def _message(model: type[Event]) -> dict[str, Any]:
    about = inspect.cleandoc(model.__doc__ or "")
    return {
        "name": ce_type(model).removeprefix(TYPE_PREFIX),
        "title": model.type,
        "summary": about.split("\n\n")[0].replace("\n", " "),
        **({"description": about} if "\n\n" in about else {}),
        **({"x-deprecated": model.deprecated} if model.deprecated else {}),
        "contentType": CONTENT_TYPE,
        "headers": {
            "allOf": [
                {"$ref": "#/components/schemas/attributes"},
                {"properties": {"ce-type": {"const": ce_type(model)}}},
            ]
        },
        "correlationId": {"$ref": "#/components/correlationIds/incident"},
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"./schemas/{model.type}.json"},
        },
    }


def _attributes() -> dict[str, Any]:
    return {
        "type": "object",
        "description": (
            "CloudEvents 1.0 attributes as NATS headers; job, incident and cause are extensions.\n"
            f"Bodies have the dialect {DIALECT}."
        ),
        "required": [name for name in ATTRIBUTES if name not in OPTIONAL],
        "properties": ATTRIBUTES,
    }
