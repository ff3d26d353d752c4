"""Roles through the whole control plane: real bus, services and machines, ranks without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.test_control_plane import Run, run
from trainmover.events import catalogue as say
from trainmover.events.log import read_log

__all__ = ["run"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PIPELINE = {
    "machines": 6,
    "steps": 300,
    "script": ("--stages", "3"),
    "options": ("--ranks-per-machine", "2"),
}


def events(run: Run, *models: type[say.Event]) -> list:
    """Events of the run's log of these types, in its order."""
    found = (record.envelope.event for record in read_log(run.folder / "events.tmlog"))
    return [event for event in found if isinstance(event, models)]


def seats(run: Run) -> tuple[str, ...]:
    """Who sat where at the end."""
    return events(run, say.SwitchCommitted)[-1].machines


@pytest.mark.parametrize(
    ("fault", "kind", "role"),
    [("kill:machine=3,step=60", "failure", "middle"), ("move:machine=4,step=60", "move", "last")],
)
def test_one_spare_takes_any_stage(run: Run, fault: str, kind: str, role: str) -> None:
    """The one spare takes a middle stage by failure or a last one by move, in processes of that role."""
    report = run.whole(fault, **PIPELINE)
    seat = int(fault.split(",", maxsplit=1)[0][-1])
    assert [(item["kind"], item["machine"]) for item in report["incidents"]] == [(kind, f"m{seat}")]
    assert [event.role for event in events(run, say.StandbyAssigned)] == [role]
    assert seats(run) == tuple("m6" if number == seat else f"m{number}" for number in range(6))
    (found,) = events(run, say.RolesFound)
    assert [(role.name, role.representative) for role in found.roles] == [
        ("first", 1),
        ("middle", 2),
        ("last", 4),
    ]
    assert report["recordings"] == {"first": 2000, "middle": 2000, "last": 2000}
    recordings = run.folder / "recordings" / "g1"
    assert sorted(str(path.relative_to(recordings)) for path in recordings.glob("*/*")) == [
        f"{role}/slot-{slot}" for role in ("first", "last", "middle") for slot in range(2)
    ]
    replayed = run.say("events", "replay", str(run.folder / "events.tmlog"))
    assert "0 differences" in replayed.stdout, replayed.stdout + replayed.stderr


def test_two_machines_of_different_roles_at_once(run: Run) -> None:
    """Two spares, a first and a last stage killed at the same step: one change for both."""
    report = run.whole("kill:machine=1,step=90", "kill:machine=5,step=90", standbys=2, **PIPELINE)
    assert sorted(item["machine"] for item in report["incidents"]) == ["m1", "m5"]
    assert {event.role for event in events(run, say.StandbyAssigned)} == {"first", "last"}
    assert {seats(run)[1], seats(run)[5]} == {"m6", "m7"}


def test_status_shows_roles(run: Run) -> None:
    """While it runs, status names the roles of members and those that the spare is warm in."""
    run.start(**{**PIPELINE, "steps": 100_000})
    found: dict = {}

    def warm() -> bool:
        result = run.say("status", "--json")
        found.update(json.loads(result.stdout) if result.returncode == 0 else {})
        spares = [machine for machine in found.get("machines", ()) if machine["position"] is None]
        return [sorted(machine["parked"]) for machine in spares] == [["first", "last", "middle"]]

    run.until(warm)
    assert [machine["role"] for machine in found["machines"]] == [
        *("first", "first", "middle", "middle", "last", "last"),
        None,
    ]
    text = run.say("status").stdout
    assert "roles: first (2 machines), middle (2 machines), last (2 machines)" in " ".join(text.split())


def test_a_job_whose_state_is_nowhere_else(run: Run, tmp_path: Path) -> None:
    """Without replicas or mirrors a lost machine fails a job that does not hold, and the rank is named."""
    run.start(
        "kill:machine=1,step=60",
        machines=3,
        steps=160,
        script=("--stages", "3"),
        options=("--on-exhausted", "fail", "--state", "none"),
    )
    assert run.end() == 1
    assert "the state of rank 1 is on no other machine" in " ".join(run.output.split())
