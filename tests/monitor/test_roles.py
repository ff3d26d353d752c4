"""What a person is told about roles, recordings, and who is warm in which."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from trainmover.cli import tables
from trainmover.events import catalogue as say
from trainmover.monitor.facts import sentence
from trainmover.monitor.report import build_report
from trainmover.monitor.roles import holds
from trainmover.monitor.snapshot import view_as_json
from trainmover.monitor.view import ClusterView


def role(name: str, first: int, count: int = 1, stride: int = 1) -> say.MachineRole:
    seats = (say.SeatRow(first=first, stride=stride, count=count),)
    return say.MachineRole(name=name, seats=seats, representative=first)


def warm(name: str, of: str, generation: int = 0) -> say.StandbyWarm:
    return say.StandbyWarm(
        machine=name,
        incarnation="a",
        generation=generation,
        recordings=("/r",),
        world_size=2,
        ranks_per_machine=1,
        positions=(0,),
        role=of,
    )


def parked(name: str, of: str, generation: int = 0) -> say.StandbyParked:
    return say.StandbyParked(
        machine=name,
        incarnation="a",
        slot=0,
        generation=generation,
        shadow_steps=2,
        seconds={"start": 1.5},
        role=of,
    )


def view_of(story) -> ClusterView:
    view = ClusterView()
    for envelope in story.envelopes:
        view.apply(envelope)
    return view


def text_of(*parts: object) -> str:
    out = io.StringIO()
    for part in parts:
        Console(file=out, width=140).print(part)
    return out.getvalue()


@pytest.fixture
def told(story):
    """Two machines of different roles, one of them recorded, and a spare that is warm in one."""
    story.started(2.5)
    story.tell(2.6, say.RolesFound(generation=0, roles=(role("first", 0), role("last", 1))))
    size = {"slot": 0, "generation": 0, "path": "/r", "steps": 2}
    story.tell(2.7, say.RecordingReady(machine="m0", bytes=3 * 2**20, **size))
    story.tell(2.7, say.RecordingReady(machine="m1", bytes=1000, **size))
    story.tell(2.8, warm("m2", "first"))
    story.tell(2.9, parked("m2", "first"))
    return story


def test_status_names_the_roles_of_machines(told) -> None:
    """Members have the role of their position, a spare those that it is warm in or being warmed in."""
    told.tell(3.0, warm("m2", "last"))
    view = view_of(told)
    by_name = {machine.name: machine for machine in view.by_position()}
    assert [tables.role_text(view, by_name[name]) for name in ("m0", "m1", "m2")] == [
        "first",
        "last",
        "first; warming last",
    ]
    assert by_name["m2"].state == "warming"
    text = text_of(tables.machines_table(view), *tables.role_lines(view))
    assert "first; warming last" in text
    told.tell(3.1, parked("m2", "last"))
    view = view_of(told)
    assert tables.role_text(view, view.machines["m2"]) == "first, last"
    assert view.machines["m2"].state == "parked"


def test_status_as_json_has_roles_and_warmth(told) -> None:
    """Other programs get the same: roles with their recordings, and what each spare is warm in."""
    found = view_as_json(view_of(told))
    assert [(item["name"], item["recorded_bytes"], item["not_recorded"]) for item in found["roles"]] == [
        ("first", 3 * 2**20, None),
        ("last", 1000, None),
    ]
    spare = found["machines"][2]
    assert (spare["role"], spare["parked"], spare["warming"]) == (None, ["first"], [])
    assert spare["warm_up_seconds"] == {"first": {"start": 1.5}}
    assert found["machines"][0]["role"] == "first"


def test_a_new_start_forgets_roles_and_warmth(told) -> None:
    """Roles and what spares are warm in belong to one start from nothing."""
    told.launch(4.0, "m0", 0, 1)
    view = view_of(told)
    assert (view.roles.found, view.roles.total) == (None, 0)
    told.tell(5.0, warm("m2", "other", generation=1))
    assert view_of(told).machines["m2"].warmth.asked == {"other": 1}


@pytest.mark.parametrize(
    ("roles", "unlisted", "line"),
    [
        ((role("all", 0, 4),), 0, "roles: all (4 machines)"),
        ((role("first", 0, 2), role("last", 2)), 0, "roles: first (2 machines), last (1 machine)"),
        (
            tuple(role(f"role-{seat}", seat) for seat in range(18)),
            0,
            (
                "no general standby is possible: all 18 machines have roles of their own; "
                "a standby covers 16 of them"
            ),
        ),
        (
            (role("role-1", 0, 2), *(role(f"role-{seat}", seat) for seat in range(2, 20))),
            3,
            "22 roles on 23 machines; a standby covers 16 of them",
        ),
    ],
)
def test_what_a_standby_can_cover_is_said(story, roles, unlisted: int, line: str) -> None:
    """One line says which roles there are; where no general standby is possible it says that."""
    story.tell(2.6, say.RolesFound(generation=0, roles=roles, unlisted=unlisted))
    assert [text.plain for text in tables.role_lines(view_of(story))] == [line]


def test_a_role_that_was_not_recorded_is_told(told) -> None:
    """Why no standby can be warm in a role stands under the table."""
    reason = "it would take 3 GiB, the limit is 2 GiB"
    told.tell(3.0, say.RecordingFailed(machine="m1", slot=0, generation=0, reason=reason))
    lines = [text.plain for text in tables.role_lines(view_of(told))]
    assert lines[-1] == f"no standby can be warm in the role last: {reason}"


def test_the_report_has_the_size_of_the_recordings(told) -> None:
    """Sizes by role, all slots together."""
    told.complete()
    report = build_report(told.envelopes, told.facts)
    assert report.as_json()["recordings"] == {"first": 3 * 2**20, "last": 1000}
    assert "recordings: first 3.0 MiB, last 1000 B" in text_of(tables.report_group(report))


def test_seats_at_equal_distances() -> None:
    """A row of seats holds what it counts and nothing between."""
    odd = role("odd", 1, 3, 2)
    assert [seat for seat in range(9) if holds(odd, seat)] == [1, 3, 5]


def test_facts_about_roles_are_sentences() -> None:
    """Roles are named, a single one is no news, and spares say in which role they are warm."""
    one = say.RolesFound(generation=0, roles=(role("all", 0, 4),))
    many = say.RolesFound(generation=0, roles=tuple(role(f"r{n}", n) for n in range(10)), unlisted=2)
    assert sentence(one) == "all machines have the same role"
    assert sentence(many) == "machines have the roles r0, r1, r2, r3, r4, r5, r6, r7 and 4 more"
    assert sentence(parked("m2", "last")) == "machine m2 slot 0 is warm and parked in the role last"
    assert sentence(parked("m2", "all")) == "machine m2 slot 0 is warm and parked"
