"""No change of the contract breaks a subscriber, a sender or a log of the last release unannounced.

The first test is the one that guards the repository; the others plant changes and see them judged.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field
from typer.testing import CliRunner

from trainmover.cli.app import app
from trainmover.events.asyncapi import _message
from trainmover.events.catalogue import MachineFailed
from trainmover.events.compatibility import breaks, frozen
from trainmover.events.schema import schema_of

EVENTS_FOLDER = Path(__file__).resolve().parents[2] / "events"

Contract = dict[str, Any]


@pytest.fixture(scope="module")
def this() -> Contract:
    """The contract of this code."""
    return json.loads(json.dumps(frozen()))


def fields(contract: Contract, event: str) -> dict[str, Any]:
    """The fields of an event, to be tampered with."""
    found: dict[str, Any] = contract["events"][event]["schema"]["properties"]
    return found


def judged(before: Contract, change: Callable[[Contract], object]) -> list[str]:
    """What a planted change breaks, in words."""
    changed = copy.deepcopy(before)
    change(changed)
    return [str(item) for item in breaks(before, changed)]


def test_this_code_keeps_what_the_last_release_promised(this: Contract) -> None:
    """Compared with ``events/baseline.json``; events/README.md says how a breaking change is made."""
    before = json.loads((EVENTS_FOLDER / "baseline.json").read_text(encoding="utf-8"))
    assert [str(item) for item in breaks(before, this)] == []


def _new_event(contract: Contract) -> None:
    contract["events"]["weather.changed"] = contract["events"]["machine.failed"]


def _optional_field(contract: Contract) -> None:
    fields(contract, "machine.failed")["rack"] = {"type": "string", "default": ""}


def _new_value(contract: Contract) -> None:
    fields(contract, "plan.ready")["kind"]["enum"].append("shrink")


def _wider(contract: Contract) -> None:
    fields(contract, "machine.failed")["reason"]["maxLength"] *= 2


def _always_there(contract: Contract) -> None:
    contract["events"]["move.requested"]["schema"]["required"].remove("machine")


@pytest.mark.parametrize("change", [_new_event, _optional_field, _new_value, _wider, _always_there])
def test_what_may_be_added_at_any_time(this: Contract, change: Callable[[Contract], object]) -> None:
    """Events, fields with a default, values of an enumeration, wider limits break nobody."""
    assert judged(this, change) == []


def planted(rule: str, said: str) -> Callable[[Callable[[Contract], object]], Any]:
    """A breaking change, and how it is told."""
    return lambda change: pytest.param(change, said, id=rule)


BREAKING = [
    planted("removed event", "machine.failed: removed event")(lambda c: c["events"].pop("machine.failed")),
    planted("removed field", "switch.committed, field step: removed field")(
        lambda c: fields(c, "switch.committed").pop("step")
    ),
    planted("removed field of a part", "roles.found, field roles[].name: removed field")(
        lambda c: c["events"]["roles.found"]["schema"]["$defs"]["MachineRole"]["properties"].pop("name")
    ),
    planted("changed type", "training.resumed, field step: changed type (integer, now string)")(
        lambda c: fields(c, "training.resumed").update(step={"type": "string"})
    ),
    planted("changed element", "switch.committed, field machines[]: changed type (string, now integer)")(
        lambda c: fields(c, "switch.committed")["machines"].update(items={"type": "integer"})
    ),
    planted("list for one", "machine.failed, field machine: changed type (string, now array)")(
        lambda c: fields(c, "machine.failed").update(machine={"type": "array", "items": {"type": "string"}})
    ),
    planted("may be missing", "job.failed, field reason: may be another type (string, now null or string)")(
        lambda c: fields(c, "job.failed").update(reason={"anyOf": [{"type": "string"}, {"type": "null"}]})
    ),
    planted("newly required", "move.requested, field ticket: newly required")(
        lambda c: (
            fields(c, "move.requested").update(ticket={"type": "string"}),
            c["events"]["move.requested"]["schema"]["required"].append("ticket"),
        )
    ),
    planted("a default that goes", "move.requested, field reason: newly required")(
        lambda c: c["events"]["move.requested"]["schema"]["required"].append("reason")
    ),
    planted("changed default", "job.submitted, field standbys: changed default (was 0)")(
        lambda c: fields(c, "job.submitted")["standbys"].update(default=1)
    ),
    planted("narrowed enum", "job.submitted, field on_exhausted: narrowed enum (without fail)")(
        lambda c: fields(c, "job.submitted")["on_exhausted"]["enum"].remove("fail")
    ),
    planted("enum of one", "job.submitted, field standby_memory: narrowed enum (without sequential)")(
        lambda c: fields(c, "job.submitted").update(
            standby_memory={"type": "string", "const": "resident", "default": "resident"}
        )
    ),
    planted("new enum", "job.failed, field reason: narrowed enum (without any other)")(
        lambda c: fields(c, "job.failed")["reason"].update(enum=["a", "b"])
    ),
    planted("narrowed limit", "job.submitted, field machines: narrowed limit (maximum 65536, now 16)")(
        lambda c: fields(c, "job.submitted")["machines"].update(maximum=16)
    ),
    planted("new limit", "machine.failed, field evidence: narrowed limit (maxItems none, now 3)")(
        lambda c: fields(c, "machine.failed")["evidence"].update(maxItems=3)
    ),
    planted("changed version", "switch.prepare: changed version (1, now 2)")(
        lambda c: c["events"]["switch.prepare"].update(version=2)
    ),
    planted(
        "changed subject",
        "job.held: changed subject (trainmover.{job}.job.held, now trainmover.{job}.job.held.{machine})",
    )(lambda c: c["events"]["job.held"].update(subject="trainmover.{job}.job.held.{machine}")),
    planted("no longer kept", "rank.exited: no longer kept")(
        lambda c: c["events"]["rank.exited"].update(kept=False)
    ),
    planted("removed header", "headers, field ce-incident: removed header")(
        lambda c: c["headers"].pop("ce-incident")
    ),
    planted("header may be missing", "headers, field ce-time: removed header")(
        lambda c: c["headers"]["ce-time"].update(required=False)
    ),
    planted("changed header", "headers, field ce-time: changed header")(
        lambda c: c["headers"]["ce-time"].update(type="number")
    ),
    planted("new header", "headers, field ce-region: newly required")(
        lambda c: c["headers"].update({"ce-region": {"type": "string", "required": True}})
    ),
]


@pytest.mark.parametrize(("change", "said"), BREAKING)
def test_a_change_that_breaks_somebody_is_refused(
    this: Contract, change: Callable[[Contract], object], said: str
) -> None:
    """Each planted change is found, alone, and told with its place."""
    assert judged(this, change) == [said]


def test_a_pattern_may_not_change(this: Contract) -> None:
    """Whether a pattern got wider cannot be told, so it may go but not change."""
    name = fields(this, "machine.failed")["machine"]
    assert judged(this, lambda c: fields(c, "machine.failed")["machine"].pop("pattern")) == []
    (said,) = judged(this, lambda c: fields(c, "machine.failed")["machine"].update(pattern="^m[0-9]+$"))
    assert said.startswith(f"machine.failed, field machine: changed pattern (pattern {name['pattern']}")


def test_what_was_announced_may_go(this: Contract) -> None:
    """What the last release marked as deprecated may be removed, or get another version."""
    announced = copy.deepcopy(this)
    announced["events"]["machine.failed"]["deprecated"] = True
    announced["events"]["switch.prepare"]["deprecated"] = True
    fields(announced, "switch.committed")["step"]["deprecated"] = True

    def go(contract: Contract) -> None:
        del contract["events"]["machine.failed"]
        contract["events"]["switch.prepare"].update(version=2, schema={})
        fields(contract, "switch.committed").pop("step")

    assert judged(announced, go) == []


def test_a_deprecation_is_in_schema_and_document() -> None:
    """What goes with the next release says so where subscribers look, and counts as announced."""

    class Retiring(MachineFailed):
        """A machine is declared dead."""

        deprecated = "goes with the next release; use machine.ended"
        rack: Annotated[str, Field(deprecated="nobody fills it")] = ""

    schema = schema_of(Retiring)
    assert schema["deprecated"] is True
    assert schema["x-deprecated"] == Retiring.deprecated
    assert schema["properties"]["rack"]["deprecated"] is True
    assert _message(Retiring)["x-deprecated"] == Retiring.deprecated


def test_the_command_refuses_and_tells(this: Contract, tmp_path: Path) -> None:
    """``events contract --check`` fails for a folder whose baseline has more than this code has."""
    run = CliRunner()
    folder = str(tmp_path)
    assert run.invoke(app, ["events", "contract", folder, "--freeze"]).exit_code == 0
    assert run.invoke(app, ["events", "contract", folder, "--check"]).exit_code == 0
    (tmp_path / "asyncapi.yaml").unlink()
    stale = run.invoke(app, ["events", "contract", folder, "--check"])
    assert stale.exit_code == 1
    assert "asyncapi.yaml: not what the code says" in stale.output
    assert run.invoke(app, ["events", "contract", folder]).exit_code == 0
    promised = copy.deepcopy(this)
    promised["events"]["weather.changed"] = promised["events"]["machine.failed"]
    (tmp_path / "baseline.json").write_text(json.dumps(promised))
    broken = run.invoke(app, ["events", "contract", folder, "--check"])
    assert broken.exit_code == 1
    assert "breaks a subscriber: weather.changed: removed event" in broken.output
