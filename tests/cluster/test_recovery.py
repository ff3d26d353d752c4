"""Failures that come together in real runs: two machines at once, and one more while a lost one is replaced.

As long as no machine is lost together with the next one, which keeps its private state, the bytes at the end
are those of the undisturbed run.  The machines of a run are m0, m1, ...; its standbys have the numbers that
follow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.training import Outcome, Script, train

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(280)]

TINY: Script = (str(Path(__file__).parent / "scripts" / "tiny.py"),)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("point", ["copied", "prepared", "meeting", "joined"])
def test_the_joiner_is_lost_too(point: str, undisturbed: Outcome, tmp_path: Path) -> None:
    """It dies on its way to its seat, with the state or before it came: the next standby takes the place."""
    outcome = train(tmp_path, "kill:machine=1,step=17", f"kill:machine=3,step=0,at={point}")
    assert (outcome.digest, outcome.losses) == (undisturbed.digest, undisturbed.losses)
    assert outcome.incidents[0][1] == "m1"
    assert "m3 is declared dead" in outcome.told
    assert outcome.report["incidents"][-1]["joiner"] == "m4"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Four machines to which nothing happens."""
    return train(tmp_path_factory.mktemp("four"), machines=4, standbys=0, script=TINY)


@pytest.mark.long(every=0)
@pytest.mark.parametrize(
    ("faults", "standbys", "lost"),
    [
        pytest.param(("kill:machine=0,step=17", "kill:machine=2,step=17"), 2, "m0 m2", id="two at once"),
        pytest.param(
            ("kill:machine=0,step=17,at=voting", "kill:machine=2,step=17,at=voted"),
            2,
            "m0 m2",
            id="two in one vote",
        ),
        pytest.param(
            ("kill:machine=1,step=17", "kill:machine=3,step=17,at=meeting"),
            2,
            "m1 m3",
            id="one that stays in the meeting",
        ),
        pytest.param(
            ("kill:machine=1,step=17", "kill:machine=3,step=17,at=joined"),
            2,
            "m1 m3",
            id="one that stays when all have joined",
        ),
        pytest.param(
            ("kill:machine=0,step=17", "kill:machine=2,step=17", "kill:machine=4,step=0,at=copied"),
            3,
            "m0 m2",
            id="two at once and a joiner",
        ),
    ],
)
def test_several_are_lost(
    faults: tuple[str, ...], standbys: int, lost: str, four: Outcome, tmp_path: Path
) -> None:
    """Each seat gets a machine, and not a bit changes."""
    outcome = train(tmp_path, *faults, machines=4, standbys=standbys, script=TINY)
    assert (outcome.digest, outcome.losses) == (four.digest, four.losses)
    assert {machine for _, machine in outcome.incidents} >= set(lost.split())
    assert {kind for kind, _ in outcome.incidents} == {"failure"}
