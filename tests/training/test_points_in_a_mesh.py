"""A sample of the matrix of fault points on a data x pipeline x tensor mesh, with machines of two ranks."""

from __future__ import annotations

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.conftest import MakeMesh
from tests.training.meshes import MeshCluster
from tests.training.test_places import STEPS, expected, held, lost
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory):
    """What a run without faults ends with."""
    made = MeshCluster(tmp_path_factory.mktemp("calm"), STEPS)
    made.switch("start")
    outcome = made.outcome()
    made.end()
    return outcome


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("point", "seat", "slot"),
    [
        ("collective,nth=2", 4, 1),
        ("voting", 1, 0),
        ("voted", 0, 1),
        ("voting", 3, 1),
        ("optimizer", 5, 0),
        ("vote", 2, 1),
        ("stepped", 4, 0),
    ],
)
def test_a_machine_dies_when_one_of_its_ranks_is_at_a_point(
    mesh: MakeMesh, calm, point: str, seat: int, slot: int
) -> None:
    """Any stage, whichever of its two ranks gets there."""
    made = mesh(steps=STEPS, faults=[f"kill:machine=m{seat},step=5,slot={slot},at={point}"])
    go = held(made, 4, 2 if seat == 0 else 0)
    made.find_roles()
    made.warm("s0", made.role_of(seat))
    go.set()
    victims = made.seat_ranks(seat)
    wait_until(lambda: all(rank.dead for rank in victims), f"m{seat} dies")
    assert victims[slot].struck == point.partition(",")[0]
    made.assign("s0", seat)
    made.failed(f"m{seat}")
    made.switch("failure", {f"m{seat}": "s0"})
    assert made.outcome() == expected(calm, made)


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("point", "slot"), [("copy", 1), ("prepared", 1), ("joined", 0), ("meeting", 0), ("copied", 1)]
)
def test_a_joiner_dies_when_one_of_its_ranks_is_at_a_point(
    mesh: MakeMesh, calm, point: str, slot: int
) -> None:
    """The switch is given up, and the next standby takes the place."""
    made = mesh(steps=STEPS, faults=[f"kill:machine=s0,step=1,slot={slot},at={point}"])
    go = held(made, 4)
    dead = lost(made, 4)
    made.find_roles()
    made.warm("s0", "middle")
    made.warm("s1", "middle")
    go.set()
    assert dead.wait(LIMIT)
    made.assign("s0", 4)
    made.failed("m4")
    made.prepare("failure", {"m4": "s0"})
    victims = made.on("s0")
    wait_until(lambda: all(rank.dead for rank in victims), "s0 dies")
    assert victims[slot].struck == point
    made.abort()
    made.failed("s0")
    made.assign("s1", 4)
    made.switch("failure", {"m4": "s1"})
    assert made.outcome() == expected(calm, made)
