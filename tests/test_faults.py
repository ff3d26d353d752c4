"""The grammar of fault specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.errors import ConfigError
from trainmover.faults import COUNTED, POINTS, FaultSpec, faults_of, parse_faults


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("kill:machine=1,step=20", FaultSpec("kill", "m1", 20)),
        (" kill: step=0 , machine=m1 ", FaultSpec("kill", "m1", 0)),
        ("move:machine=node-7,step=40", FaultSpec("move", "node-7", 40)),
        ("stop:machine=0,step=30", FaultSpec("stop", "m0", 30)),
        ("stop:machine=0,step=30,seconds=2.5", FaultSpec("stop", "m0", 30, seconds=2.5)),
        ("slow:machine=1,step=30,factor=3", FaultSpec("slow", "m1", 30, factor=3.0)),
        ("kill:machine=1,step=3,at=step", FaultSpec("kill", "m1", 3)),
        ("kill:machine=1,step=3,at=voting,nth=2", FaultSpec("kill", "m1", 3, at="voting", nth=2)),
        (
            "stop:machine=1,step=3,seconds=2,at=copy,slot=1",
            FaultSpec("stop", "m1", 3, seconds=2.0, at="copy", slot=1),
        ),
    ],
)
def test_a_spec_is_read_and_printed(text: str, spec: FaultSpec) -> None:
    """A spec means what its line says, and its canonical line means the same."""
    assert FaultSpec.parse(text) == spec
    assert FaultSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a kind of fault"),
        ("explode:machine=1,step=2", "the kinds are kill, move, stop, slow"),
        ("kill", "names no machine and step; write it like kill:machine=1,step=20"),
        ("kill:machine=1", "lacks step"),
        ("kill:", "names no machine and step"),
        ("slow:machine=1", "lacks factor and step"),
        ("kill:machine=1,step", "'step' is not key=value"),
        ("kill:machine=1,step=-1", "step '-1' is not a step index; it is 0 or more"),
        ("kill:machine=1,step=two", "step 'two' is not a step index"),
        ("kill:machine=1,step=2,step=3", "gives step twice"),
        (
            "kill:machine=1,step=2,seconds=3",
            "kill has no field 'seconds'; its fields are at, machine, nth, slot",
        ),
        ("stop:machine=1,step=2,seconds=0", "seconds '0' is not a number above 0"),
        ("slow:machine=1,step=2,factor=nan", "factor 'nan' is not a number above 1"),
        ("slow:machine=1,step=2,factor=1", "factor '1' is not a number above 1"),
        ("kill:machine=m 1,step=2", "'m 1' is not a machine"),
        ("kill:machine=1,step=2,at=lunch", "'lunch' is not a point; the points are step, mirror, fetch,"),
        ("kill:machine=1,step=2,at=vote,nth=2", "nth goes with at=collective or at=voting or at=copy"),
        ("kill:machine=1,step=2,nth=1", "nth goes with at=collective or at=voting or at=copy"),
        ("kill:machine=1,step=2,at=collective,nth=0", "nth '0' is not a count; it is 1 or more"),
        ("kill:machine=1,step=2,slot=x", "slot 'x' is not a slot"),
        ("move:machine=1,step=2,at=vote", "move has no field 'at'; its fields are machine, step"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_reason(text: str, message: str) -> None:
    """A wrong spec is refused with the part that is wrong and what would be right."""
    with pytest.raises(ConfigError) as caught:
        FaultSpec.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_can_be_asked_for(point: str) -> None:
    """Kills and stops know all points; those that a step passes several times can be counted."""
    for text in (f"kill:machine=m1,step=3,at={point}", f"stop:machine=m1,step=3,seconds=2,at={point}"):
        assert FaultSpec.parse(FaultSpec.parse(text).__str__()).at == point
    assert POINTS[point].endswith(".")
    assert set(COUNTED) < set(POINTS)


def test_joined_specs_are_split_and_sorted_for_a_machine() -> None:
    """Specs joined by semicolons come out one by one; a machine gets only its own, by step."""
    texts = ["kill:machine=1,step=9;move:machine=2,step=4", "", "stop:machine=1,step=3"]
    assert len(parse_faults(texts)) == 3
    assert [str(spec) for spec in faults_of("m1", texts)] == [
        "stop:machine=m1,step=3",
        "kill:machine=m1,step=9",
    ]


def test_the_documentation_has_every_point() -> None:
    """docs/how-to/faults.md has the table's sentences."""
    text = (Path(__file__).parents[1] / "docs/how-to/faults.md").read_text(encoding="utf-8")
    for point, sentence in POINTS.items():
        assert f"| `{point}` | {sentence} |" in text
