"""The files that follow from the code are what the code says."""

from __future__ import annotations

import json
import tomllib

import pytest

from tools import generate
from trainmover.events import EVENTS


def test_nothing_is_stale() -> None:
    """Schemas, subjects and drawings in the repository are those of this code (`make contract`)."""
    assert [str(path.relative_to(generate.ROOT)) for path in generate.stale()] == []


@pytest.mark.parametrize("core", generate.CORES, ids=lambda core: core.name)
def test_service_files_are_toml_with_known_events(core: type[generate.Decider]) -> None:
    """A deployment can read a service's subjects, and each ends in an event that exists."""
    service = tomllib.loads((generate.ROOT / "services" / core.name / "service.toml").read_text())
    assert service["command"][:3] == ["trainmover", "service", core.name]
    types = {subject.removeprefix("trainmover.<job>.") for subject in service["hears"] + service["says"]}
    assert types <= set(EVENTS)


def test_schemas_forbid_unknown_fields() -> None:
    """The contract for writers is closed: what is not in the schema must not be sent."""
    for path in (generate.ROOT / "events" / "schemas").glob("*.json"):
        assert json.loads(path.read_text())["additionalProperties"] is False, path.name


def test_every_event_has_an_author_somewhere() -> None:
    """What only services decide is said by exactly the cores that list it."""
    said = [model.type for core in generate.CORES for model in core.SAYS]
    for name in ("machine.failed", "standby.assigned", "plan.ready", "switch.prepare", "switch.committed"):
        assert said.count(name) == 1, name
