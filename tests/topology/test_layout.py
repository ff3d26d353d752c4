"""Layouts: who sits where, and who keeps whose private state."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.strategies import layouts
from trainmover.errors import ConfigError
from trainmover.topology import VACANT, Layout, guardian_of, ward_of

THREE = Layout(4, ("m0", "m1", "m2"), 2)


def test_prints_itself_readably() -> None:
    """A layout in a message shows its epoch, every seat and the ranks per machine."""
    assert str(THREE) == "epoch 4 [0:m0 1:m1 2:m2] x2"


def test_is_frozen() -> None:
    """A layout never changes; a change of membership makes a new one."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        THREE.epoch = 5  # type: ignore[misc]


def test_equal_layouts_are_one_key() -> None:
    """Layouts with the same content are equal and hash alike, so they can be compared and kept in sets."""
    assert {THREE, Layout(4, ("m0", "m1", "m2"), 2)} == {THREE}


@pytest.mark.parametrize("ranks_per_machine", [0, -1])
def test_refuses_machines_without_ranks(ranks_per_machine: int) -> None:
    """A machine holds at least one rank."""
    with pytest.raises(ConfigError, match="must be 1 or more"):
        Layout(1, ("m0",), ranks_per_machine)


def test_refuses_one_machine_on_two_positions() -> None:
    """A machine sits on one position only."""
    with pytest.raises(ConfigError, match="two positions: a, b, a"):
        Layout(1, ("a", "b", "a"), 1)


@given(layouts())
def test_every_rank_sits_on_exactly_one_machine(layout: Layout) -> None:
    """The machines' ranks, in order of position, are 0 to world_size - 1."""
    ranks = [rank for machine in layout.machines for rank in layout.ranks_of(machine)]
    assert ranks == list(range(layout.world_size))
    for rank in ranks:
        assert rank in layout.ranks_of(layout.machine_of(rank))
        assert layout.machines[layout.position_of(rank)] == layout.machine_of(rank)


@pytest.mark.parametrize("rank", [-1, 6, 100])
def test_refuses_ranks_that_do_not_exist(rank: int) -> None:
    """Asking for a rank outside the world names the rank and the layout."""
    with pytest.raises(ConfigError, match=rf"rank {rank} is not in 0\.\.5 \(epoch 4"):
        THREE.machine_of(rank)


def test_a_machine_outside_has_no_ranks() -> None:
    """A spare holds no ranks, which is not an error."""
    assert list(THREE.ranks_of("spare")) == []


def test_replaced_gives_the_joiner_the_leavers_seat() -> None:
    """Only the leaver's position changes hands; the epoch grows; the old layout stays as it was."""
    assert str(THREE.replaced(5, {"m1": "s0"})) == "epoch 5 [0:m0 1:s0 2:m2] x2"
    assert str(THREE) == "epoch 4 [0:m0 1:m1 2:m2] x2"


def test_replaced_takes_several_at_once() -> None:
    """Two leavers in one epoch each get their own joiner."""
    assert THREE.replaced(9, {"m2": "s1", "m0": "s0"}).machines == ("s0", "m1", "s1")


def test_replaced_with_nothing_only_moves_the_epoch() -> None:
    """A repair keeps all machines and still has an epoch of its own."""
    assert THREE.replaced(5, {}) == Layout(5, THREE.machines, 2)


@given(st.data(), layouts())
def test_replaced_is_a_layout_like_any_other(data: st.DataObject, layout: Layout) -> None:
    """A layout made by replacing equals the one that is made whole, and knows its positions."""
    leavers = data.draw(st.lists(st.sampled_from(layout.machines), unique=True))
    changes = {leaver: f"s{i}" for i, leaver in enumerate(leavers)}
    made = layout.replaced(layout.epoch + 1, changes)
    whole = Layout(
        layout.epoch + 1, tuple(changes.get(m, m) for m in layout.machines), layout.ranks_per_machine
    )
    assert (made, hash(made), str(made)) == (whole, hash(whole), str(whole))
    assert made.positions == {machine: position for position, machine in enumerate(made.machines)}
    assert all(list(made.ranks_of(leaver)) == [] for leaver in leavers)


def test_machines_may_swap_seats() -> None:
    """A machine that leaves one seat may take another one that becomes free."""
    assert THREE.replaced(5, {"m0": "m1", "m1": "m0"}).machines == ("m1", "m0", "m2")


def test_replaced_refuses_unknown_leavers() -> None:
    """A machine that is not in the layout cannot leave it."""
    with pytest.raises(ConfigError, match="cannot replace x, y: not in epoch 4"):
        THREE.replaced(5, {"y": "s0", "m0": "s1", "x": "s2"})


@pytest.mark.parametrize("epoch", [4, 3, 0])
def test_epochs_only_grow(epoch: int) -> None:
    """An epoch that was already used, or lies behind, is refused."""
    with pytest.raises(ConfigError, match=f"epoch {epoch} does not follow epoch 4"):
        THREE.replaced(epoch, {})


def test_replaced_refuses_a_joiner_that_already_sits() -> None:
    """A joiner must come from outside, and one joiner cannot take two seats."""
    with pytest.raises(ConfigError, match="two positions"):
        THREE.replaced(5, {"m1": "m2"})
    with pytest.raises(ConfigError, match="two positions"):
        THREE.replaced(5, {"m1": "s0", "m2": "s0"})


@given(st.integers(1, 40), st.integers(1, 8))
def test_guardian_and_ward_are_inverse(machines: int, ranks_per_machine: int) -> None:
    """Whoever keeps a rank's private state names that rank as its ward, and the other way round."""
    world = machines * ranks_per_machine
    for rank in range(world):
        assert ward_of(guardian_of(rank, world, ranks_per_machine), world, ranks_per_machine) == rank
        assert guardian_of(ward_of(rank, world, ranks_per_machine), world, ranks_per_machine) == rank


@given(st.integers(2, 40), st.integers(1, 8))
def test_a_guardian_sits_on_another_machine_in_the_same_slot(machines: int, ranks_per_machine: int) -> None:
    """Losing one machine never loses a rank together with the copy of its private state."""
    layout = Layout(1, tuple(f"m{i}" for i in range(machines)), ranks_per_machine)
    for rank in range(layout.world_size):
        guardian = guardian_of(rank, layout.world_size, ranks_per_machine)
        assert layout.machine_of(guardian) != layout.machine_of(rank)
        assert guardian % ranks_per_machine == rank % ranks_per_machine


@given(st.integers(1, 40), st.integers(1, 8))
def test_every_rank_guards_exactly_one(machines: int, ranks_per_machine: int) -> None:
    """Guarding is spread evenly: the guardians are a permutation of the ranks."""
    world = machines * ranks_per_machine
    guardians = sorted(guardian_of(rank, world, ranks_per_machine) for rank in range(world))
    assert guardians == list(range(world))


def test_a_lone_machine_guards_itself() -> None:
    """With one machine there is nowhere else to keep anything."""
    assert [guardian_of(rank, 4, 4) for rank in range(4)] == [0, 1, 2, 3]


def test_a_seat_can_be_vacated_and_filled_again() -> None:
    """The world keeps its size; who sat there has no ranks any more, and whoever comes gets them."""
    shrunk = THREE.reseated(5, {1: VACANT})
    assert str(shrunk) == "epoch 5 [0:m0 1:- 2:m2] x2"
    assert (shrunk.world_size, shrunk.vacant, shrunk.present) == (6, {1}, [0, 1, 4, 5])
    assert list(shrunk.ranks_of("m1")) == []
    assert shrunk.machine_of(2) == VACANT
    grown = shrunk.reseated(6, {1: "s0"})
    assert (grown.machines, grown.vacant) == (("m0", "s0", "m2"), frozenset())
    assert shrunk.replaced(6, {"m0": "s0"}).vacant == {1}


def test_seats_can_be_vacated_only_where_there_are_some() -> None:
    """A position must be there, a machine sits once, epochs grow."""
    with pytest.raises(ConfigError, match="there is no position 3"):
        THREE.reseated(5, {3: VACANT})
    with pytest.raises(ConfigError, match="two positions"):
        THREE.reseated(5, {1: "m2"})
    with pytest.raises(ConfigError, match="epoch 4 does not follow epoch 4"):
        THREE.reseated(4, {1: VACANT})


@given(st.data(), st.integers(1, 20), st.integers(1, 4))
def test_the_next_seat_that_is_taken_guards(data: st.DataObject, machines: int, per_machine: int) -> None:
    """Among those who are present guarding is as even as at full strength, also of who is absent."""
    taken = data.draw(st.sets(st.integers(0, machines - 1), min_size=1))
    names = tuple(f"m{seat}" if seat in taken else VACANT for seat in range(machines))
    layout = Layout(1, names, per_machine)
    assert sorted(layout.guardian(rank) for rank in layout.present) == layout.present
    for rank in layout.present:
        assert layout.ward(layout.guardian(rank)) == rank == layout.guardian(layout.ward(rank))
    for rank in range(layout.world_size):
        guardian = layout.guardian(rank)
        assert guardian in layout.present
        assert guardian % per_machine == rank % per_machine
        between = range(rank // per_machine + 1, rank // per_machine + machines)
        nearest = next((seat % machines for seat in between if seat % machines in taken), rank // per_machine)
        assert guardian // per_machine == nearest
