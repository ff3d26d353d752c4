"""What a loss would cost, in words, for every choice of what becomes of state without a replica."""

from __future__ import annotations

import pytest

from trainmover.events import catalogue as say
from trainmover.monitor.protection import Protection


def told(policy: str, *events: say.Event, alone: int = 2) -> Protection:
    """Two ranks on two machines, of which some have no replica."""
    found = Protection(policy=policy, ranks=2)
    role = say.MachineRole(name="all", seats=(say.SeatRow(first=0, count=2),), representative=1)
    rows = (say.SeatRow(first=0, count=alone),) if alone else ()
    found.note(say.RolesFound(generation=1, roles=(role,), unreplicated=rows))
    for event in events:
        found.note(event)
    return found


def mirror(rank: int) -> say.MirrorWhole:
    """A rank whose mirror is whole."""
    return say.MirrorWhole(
        machine=f"m{rank}",
        rank=rank,
        guardian=1 - rank,
        generation=1,
        step=4,
        image_bytes=3 << 20,
        changes_bytes=1 << 20,
    )


SAVED = say.CheckpointSaved(generation=1, step=20, path="/c", bytes=1, copy_seconds=0.1, seconds=0.2)
REFUSED = say.MirrorFailed(machine="m0", rank=0, generation=1, reason="ema changes late")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (told("mirror", alone=0), "every state has a replica on another machine: a loss costs no step"),
        (told("mirror", mirror(0)), "is not mirrored yet: a loss ends the job"),
        (told("mirror", mirror(0), mirror(1)), "(4.0 MiB per rank and step, 7.0 MiB of memory)"),
        (told("mirror", mirror(0), mirror(1)), "a loss costs no step; that of two neighbours at once ends"),
        (told("mirror", REFUSED), "cannot be mirrored (ema changes late): a loss ends the job"),
        (told("checkpoint", SAVED), "(--state checkpoint): a loss goes back to step 20 and does 5 again"),
        (told("none", SAVED), "(--state none): a loss ends the job"),
    ],
)
def test_the_cost_of_a_loss_is_told(found: Protection, words: str) -> None:
    """One sentence, with figures where there are any."""
    assert words in found.cost(25)


def test_nothing_is_told_before_it_is_known() -> None:
    """The roles say who has no replica."""
    assert Protection().cost() == ""
    assert told("mirror", mirror(0)).summary()["ranks_mirrored"] == 1
