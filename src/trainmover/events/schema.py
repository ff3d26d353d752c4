"""JSON Schema of every event: the catalogue for people who do not use Python.

What lives here: the one function that makes the schemas from the models.  A schema describes an
event's body; bodies travel as msgpack, whose values are JSON's and bytes.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from trainmover.events.catalogue import EVENTS, Event
from trainmover.events.envelope import CONTENT_TYPE, ce_type

BASE: Final = "https://trainmover.io/events"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_of(model: type[Event]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one event's body."""
    made = model.model_json_schema(mode="validation")
    return {
        "$schema": DIALECT,
        "$id": f"{BASE}/{model.type}.v{model.version}.json",
        **made,
        "description": inspect.cleandoc(model.__doc__ or ""),
        "x-ce-type": ce_type(model),
        "x-content-type": CONTENT_TYPE,
        "x-journalled": model.journalled,
        **({"deprecated": True, "x-deprecated": model.deprecated} if model.deprecated else {}),
    }


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of every event by type name, in the order of the names."""
    return {name: schema_of(EVENTS[name]) for name in sorted(EVENTS)}
