"""The AsyncAPI document: it is AsyncAPI, it is YAML, and it says what really travels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
import yaml

from tests.events import examples
from trainmover.events import EVENTS, encode_message
from trainmover.events.asyncapi import ASKED, address, document, public
from trainmover.events.contract import files, stale, to_yaml, write
from trainmover.events.log import read_log
from trainmover.events.schema import schemas

HERE = Path(__file__).resolve().parent
EVENTS_FOLDER = HERE.parents[1] / "events"
RECORDINGS = sorted((EVENTS_FOLDER / "recordings").glob("*.tmlog"))


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """The document as it lies in the repository."""
    found: dict[str, Any] = yaml.safe_load((EVENTS_FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def official() -> jsonschema.Draft7Validator:
    """AsyncAPI's own JSON Schema of version 3.0.0; see the notice beside it."""
    with gzip.open(HERE / "asyncapi-3.0.0.schema.json.gz", "rt", encoding="utf-8") as file:
        return jsonschema.Draft7Validator(json.load(file))


def refs(value: Any) -> list[str]:
    """Every reference in plain data."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for inner in value.values() for ref in refs(inner)]
    return [ref for inner in value for ref in refs(inner)] if isinstance(value, list) else []


def test_is_valid_by_asyncapis_own_schema(written: dict[str, Any], official: Any) -> None:
    """The document keeps to AsyncAPI 3.0.0, and the schema would notice if it did not."""
    faults = [
        f"{list(fault.absolute_path)}: {fault.message[:300]}" for fault in official.iter_errors(written)
    ]
    assert faults == []
    for wrong in (
        {**written, "asyncapi": "2.0.0"},
        {**written, "info": {"title": "no version"}},
        {**written, "operations": {"x": {"action": "shout", "channel": {"$ref": "#/channels/job.held"}}}},
        {**written, "channels": {"x": {"address": 3}}},
    ):
        assert not official.is_valid(wrong)


def test_yaml_says_what_the_code_says(written: dict[str, Any]) -> None:
    """What our own writer of YAML wrote, another reader reads as it was meant."""
    assert written == document()


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": [1, 2.5, True, None, "x"]}, "empty": {}, "none": []},
        {"list": [{"a": 1, "b": [3]}, [1, [2]], "two\nlines", "- dash", ""]},
        {"yes": "no", "no": "yes", "n": "1.0", "colon": "a: b", "hash": "a #b", "quote": 'say "x"', "é": "ü"},
        {"text": "first\n\n  deeper\nlast"},
        {"x": "ends with space ", "y": " begins", "z": "*star", "w": "2026-01-01", "v": "0x1f", "1": "1"},
    ],
)
def test_the_yaml_writer_is_read_back(value: Any) -> None:
    """Maps, lists and awkward texts come back as they were."""
    assert yaml.safe_load(to_yaml(value)) == value


def test_every_reference_leads_somewhere(written: dict[str, Any]) -> None:
    """No message, channel or schema is named that is not there."""
    for ref in set(refs(written)):
        place, _, path = ref.partition("#")
        if place:
            assert (EVENTS_FOLDER / place).is_file(), ref
            continue
        found: Any = written
        for part in path.removeprefix("/").split("/"):
            found = found[part]
        assert found


def test_every_event_on_the_bus_has_a_channel_and_is_said(written: dict[str, Any]) -> None:
    """Channels are the events that travel, at their real subjects; what may be asked for is received."""
    assert set(written["channels"]) == set(public()) == {n for n in EVENTS if n != "sandbox.peers"}
    said = {name for name in written["operations"] if name.startswith("say.")}
    assert said == {f"say.{name}" for name in public()}
    heard = {name for name, about in written["operations"].items() if about["action"] == "receive"}
    assert heard == {f"hear.{model.type}" for model in ASKED}
    random = Random(3)
    for model in public().values():
        envelope = examples.envelope(examples.example(model, random), random)
        subject = address(model).format(job=envelope.job, machine=envelope.machine)
        assert envelope.subject == subject


def test_headers_and_bodies_that_are_sent_are_those_of_the_contract(written: dict[str, Any]) -> None:
    """What the codec makes of any event satisfies the document's headers and the event's schema."""
    random = Random(4)
    attributes = written["components"]["schemas"]["attributes"]
    for name, model in public().items():
        schema = schemas()[name]
        if "binary" in json.dumps(schema):
            continue  # JSON has no bytes; dead.letter quotes some
        for _ in range(5):
            envelope = examples.envelope(examples.example(model, random), random)
            headers, _body = encode_message(envelope)
            jsonschema.validate(headers, attributes)
            body = json.loads(json.dumps(envelope.event.model_dump()))
            jsonschema.validate(body, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_what_real_runs_said_is_in_the_contract(path: Path) -> None:
    """Every message of a recorded run satisfies its schema."""
    made = {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas().items()}
    for record in read_log(path):
        body = json.loads(json.dumps(record.envelope.event.model_dump()))
        made[record.envelope.type].validate(body)


def test_a_stale_folder_is_noticed_and_mended(tmp_path: Path) -> None:
    """A missing, a changed and a foreign file are named; writing puts all three right."""
    assert write(tmp_path) == list(files())
    assert stale(tmp_path) == []
    (tmp_path / "asyncapi.yaml").write_text("asyncapi: 2.0.0\n")
    (tmp_path / "schemas" / "machine.failed.json").unlink()
    (tmp_path / "schemas" / "weather.json").write_text("{}")
    assert stale(tmp_path) == ["asyncapi.yaml", "schemas/machine.failed.json", "schemas/weather.json"]
    write(tmp_path)
    assert stale(tmp_path) == []
