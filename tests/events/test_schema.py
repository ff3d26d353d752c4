"""JSON Schemas of the catalogue."""

from __future__ import annotations

import json

from trainmover.events.catalogue import EVENTS
from trainmover.events.schema import schemas


def test_every_event_has_a_closed_schema():
    """Each event has a schema with its identity, its sentence, and no room for other fields."""
    found = schemas()
    assert list(found) == sorted(EVENTS)
    for name, schema in found.items():
        assert schema["$id"].endswith(f"/{name}.v{EVENTS[name].version}.json")
        assert schema["x-ce-type"] == f"io.trainmover.{name}.v{EVENTS[name].version}"
        assert schema["additionalProperties"] is False
        assert schema["description"]
        assert set(schema["properties"]) == set(EVENTS[name].model_fields)
        json.dumps(schema)


def test_schemas_are_the_same_every_time():
    """They are written into the repository, so they must not change by themselves."""
    assert json.dumps(schemas()) == json.dumps(schemas())
