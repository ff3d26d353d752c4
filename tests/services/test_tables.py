"""What all services share: tables that are whole and drawn as they are, ids that follow from causes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmover.services import gaps, health, planner, spares, switcher
from trainmover.services.core import incident_id, said_id, timer_id
from trainmover.services.crew import natural
from trainmover.services.gaps import Gap
from trainmover.services.planner import Phase
from trainmover.services.spares import Spare
from trainmover.services.switcher import Switch
from trainmover.services.tables import check, markdown, mermaid

Kit = SimpleNamespace


@pytest.mark.parametrize(
    ("table", "states"),
    [(spares.SPARES, Spare), (gaps.GAPS, Gap), (planner.TABLE, Phase), (switcher.TABLE, Switch)],
)
def test_tables_are_whole(table: Any, states: Any) -> None:
    """Every state has a row, no row leads out of the table, and both drawings show every transition."""
    check(table, states)
    transitions = sum(len(row) for row in table.values())
    assert mermaid(table, next(iter(states))).count(": ") == transitions
    assert markdown(table).count("\n") >= transitions + 2
    with pytest.raises(ValueError, match="no row"):
        check({}, states)
    with pytest.raises(ValueError, match="lead to"):
        check({state: {"x": "nowhere"} for state in states}, states)


def test_the_docs_show_the_tables() -> None:
    """The tables and the picture in docs/reference/services.md are those of the code."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "services.md").read_text("utf-8")
    assert "preparing --> adopting: all prepared" in switcher.diagram()
    assert switcher.diagram() in text
    for table in (health.TABLE, spares.SPARES, gaps.GAPS, planner.TABLE, switcher.TABLE):
        assert markdown(table) in text


def test_ids_follow_from_causes() -> None:
    """The same cause gives the same id, another cause, place or service another one."""
    ids = {
        said_id("health", "a", 0),
        said_id("health", "a", 1),
        said_id("health", "b", 0),
        said_id("x", "a", 0),
    }
    assert len(ids) == 4
    assert said_id("health", "a", 0) in ids
    assert timer_id("health", "t", 1.5) == timer_id("health", "t", 1.5)
    assert incident_id("m1", "a").startswith("inc-")


def test_names_sort_as_people_count() -> None:
    """Machine m2 comes before m10, and names without numbers have a place too."""
    assert sorted(["m10", "m2", "a", "m1x"], key=natural) == ["a", "m1x", "m2", "m10"]
