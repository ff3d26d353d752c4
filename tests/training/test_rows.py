"""Groups as events carry them, and the place that an order gives to a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.ccl.calls import wire_name
from trainmover.ccl.communicator import Communicator
from trainmover.ccl.engine import Engine
from trainmover.ccl.table import LinkTable, new_life
from trainmover.errors import LinkError
from trainmover.events.catalogue import JoinerRank, SwitchPrepare
from trainmover.topology.layout import Layout
from trainmover.topology.links import BOUNDARY, COLLECTIVE, WORLD, link
from trainmover.training.orders import Order
from trainmover.training.places import place_for, possible, ranks_of, row_of


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True))
def test_a_row_is_the_group(ranks: list[int]) -> None:
    """Any ranks in any order come back."""
    assert ranks_of(row_of("g", ranks)) == tuple(ranks)


def test_equal_distances_are_three_numbers() -> None:
    """However large the group is."""
    row = row_of("data:3", range(3, 100_000, 6))
    assert (row.first, row.stride, row.count, row.ranks) == (3, 6, 16667, ())


def test_any_name_is_carried() -> None:
    """Torch's names go as they are; one that events cannot carry goes by its digest, the same everywhere."""
    assert wire_name("12") == "12"
    assert wire_name("0 (1, 2)") == wire_name("0 (1, 2)")
    assert row_of(wire_name("0 (1, 2)"), (1, 2)).name.startswith("h:")


@pytest.fixture
def communicator() -> Iterator[Communicator]:
    """Rank 2 of 8 on machines of two, in three groups, without any peer."""
    engine = Engine(LinkTable("job", new_life("m", 0), b"secret", "127.0.0.1"), lambda *_: None)
    made = Communicator(engine, 2, 8, 2, 10.0)
    for name, ranks in (("0", tuple(range(8))), ("2", (2, 3)), ("6", (0, 2, 4))):
        made.add_group(name, ranks)
    yield made
    engine.stop()


def joiner(rank: int, *groups: tuple[str, tuple[int, ...]]) -> JoinerRank:
    """What an order says of a rank."""
    return JoinerRank(rank=rank, groups=tuple(row_of(*group) for group in groups), sources=())


def test_a_place_is_taken(communicator: Communicator) -> None:
    """Rank, members and names on the wire change together; local names and what was called stay."""
    told = joiner(7, ("0", tuple(range(8))), ("4", (6, 7)), ("9", (7, 5, 3)))
    communicator.groups["6"].sends_to.add(2)
    place = place_for(communicator, 7, told)
    wanted = communicator.links_at(place)
    assert communicator.rank == 2
    before = communicator.take(place)
    assert before["6"] == (0, 2, 4)
    assert [(info.name, info.wire, info.ranks) for info in communicator.groups.values()] == [
        ("0", "0", tuple(range(8))),
        ("2", "4", (6, 7)),
        ("6", "9", (7, 5, 3)),
    ]
    assert communicator.links() == wanted
    names = {str(item) for item in wanted}
    assert {"4/collective 6-7", "9/collective 5-7", "9/collective 3-7", "9/to-lower 3-7"} <= names
    assert not any(name.startswith(("2/", "6/")) for name in names)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (joiner(5, ("0", tuple(range(8)))), r"groups of \[8\] members .* made groups of \[8, 2, 3\]"),
        (joiner(5, ("0", tuple(range(8))), ("1", (4, 5)), ("9", (1, 3))), r"groups of \[8, 2, 2\]"),
        (joiner(5, ("0", tuple(range(8))), ("1", (4, 5)), ("9", (1, 3, 7))), "rank 5 is not in group '9'"),
        (None, "cannot become rank 5: the order does not say"),
    ],
)
def test_a_place_that_does_not_fit(communicator: Communicator, told: JoinerRank | None, said: str) -> None:
    """The message says what the rank's groups are and what this process made."""
    with pytest.raises(LinkError, match=said):
        place_for(communicator, 5, told)


def test_without_a_word_a_rank_takes_its_own_place(communicator: Communicator) -> None:
    """Where ranks do not describe themselves, a standby can be the rank that it was warmed as."""
    assert place_for(communicator, 2, None) == communicator.place()


def order(joiners: dict[str, int], told: tuple[JoinerRank, ...] = ()) -> Order:
    """An order in which spares take these seats of four."""
    machines = [f"m{seat}" for seat in range(4)]
    for joiner, seat in joiners.items():
        machines[seat] = joiner
    event = SwitchPrepare(
        epoch=2,
        kind="failure",
        generation=1,
        incidents=(),
        machines=tuple(machines),
        ranks_per_machine=2,
        leavers=tuple(f"m{seat}" for seat in joiners.values()),
        joiners=tuple(joiners),
        endpoints=(),
        limit_seconds=1.0,
        joiner_ranks=told,
    )
    return Order(event, Layout(2, tuple(machines), 2), None)


def test_state_comes_from_replicas_and_private_values_from_the_guardian() -> None:
    """There are links to both, and to nobody else."""
    told = (
        JoinerRank(rank=2, groups=(), sources=(6,)),
        JoinerRank(rank=3, groups=(), sources=(7, 5)),
    )
    made = order({"s0": 1}, told)
    assert (made.sources(2), made.guardian(2)) == ([6], 4)
    assert (made.sources(3), made.guardian(3)) == ([5, 7], 5)
    assert {(item.low, item.high) for item in made.state_links()} == {(2, 6), (2, 4), (3, 7), (3, 5)}


def test_without_a_word_all_that_stay_are_replicas() -> None:
    """As in a job of data parallelism only."""
    made = order({"s0": 1, "s1": 3})
    assert made.sources(2) == [4, 0, 1, 5]
    assert {(item.low, item.high) for item in made.state_links() if 6 in (item.low, item.high)} == {
        (0, 6),
        (1, 6),
        (4, 6),
        (5, 6),
    }


def test_a_group_that_a_newcomer_does_not_have_gets_no_link_to_it(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for a link that will not come; a warning says why, and what to do."""
    told = (JoinerRank(rank=2, groups=(row_of("0", range(8)),), sources=(6,)),)
    links = {link("0", COLLECTIVE, 2, 6), link("0", COLLECTIVE, 4, 6), link(WORLD, BOUNDARY, 2, 6)}
    late = {link("late", COLLECTIVE, 2, 6), link("late", COLLECTIVE, 4, 6)}
    event = order({"s0": 1}, told).event
    assert possible(event, 6, frozenset(links | late)) == links | {link("late", COLLECTIVE, 4, 6)}
    assert "late/collective 2-6 is not made" in caplog.text
    assert "before the first step" in caplog.text
    assert possible(event, 2, frozenset(late)) == late
