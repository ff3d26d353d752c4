"""A joiner's state arrives from everybody at once, each byte exactly once, straight into place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ccl.conftest import MakeWorld, make_world, world
from tests.ccl.worlds import World
from trainmover.ccl.walk import EpochBroken
from trainmover.training import transfer
from trainmover.training.state import tensor_bytes

__all__ = ["make_world", "world"]


@given(st.lists(st.integers(0, 50_000_000), max_size=30), st.integers(1, 9))
def test_shares_cover_every_byte_once(sizes: list[int], members: int) -> None:
    """The pieces of all members, laid together, are all tensors from end to end, without overlap."""
    cut = transfer.shares(sizes, members)
    assert len(cut) == members
    by_tensor: dict[int, list[tuple[int, int]]] = {}
    for pieces in cut:
        for piece in pieces:
            assert 0 < piece.end - piece.start <= transfer.PIECE_BYTES
            by_tensor.setdefault(piece.tensor, []).append((piece.start, piece.end))
    for index, size in enumerate(sizes):
        runs = sorted(by_tensor.get(index, []))
        assert [start for start, _ in runs] == [0, *(end for _, end in runs)][: len(runs)]
        assert (runs[-1][1] if runs else 0) == size


@given(st.lists(st.integers(0, 50_000_000), min_size=1, max_size=30), st.integers(1, 9))
def test_shares_are_nearly_equal(sizes: list[int], members: int) -> None:
    """No member sends more than its part, rounded up to 64 bytes."""
    limit = -(-sum(sizes) // members) + 64
    for pieces in transfer.shares(sizes, members):
        assert sum(piece.end - piece.start for piece in pieces) <= limit


def state(seed: int) -> list[torch.Tensor]:
    """Tensors of every sort that a model or optimizer has."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(700, 1100, generator=generator),
        torch.randn(3, generator=generator),
        torch.tensor(float(seed)),
        torch.empty(0),
        torch.randint(0, 9, (1001,), generator=generator),
        torch.randn(1_500_000, generator=generator).to(torch.bfloat16),
        torch.randn(60, 70, generator=generator).t(),
        torch.randn(2, 3, 8, 8, generator=generator).to(memory_format=torch.channels_last),
        torch.tensor([True, False]),
    ]
    return [tensor.requires_grad_(tensor.is_floating_point() and tensor.numel() > 5) for tensor in tensors]


@pytest.mark.parametrize("members", [1, 2, 4])
def test_a_joiner_receives_into_place(world: MakeWorld, members: int) -> None:
    """Small values first, then all tensors: the same storages hold the members' bytes afterwards."""
    made: World = world(members + 1)
    source, target = state(1), state(2)
    sizes = [tensor.numel() * tensor.element_size() for tensor in source]
    where = [tensor.data_ptr() for tensor in target]
    joiner, senders = 0, list(range(1, members + 1))
    cut = transfer.shares(sizes, members)
    small = bytes(range(256)) * 5000

    def receiving(group):
        first = yield from transfer.receive_small(group, senders[0])
        yield from transfer.receive(group, senders, cut, target)
        return first

    def sending(group):
        transfers = transfer.send_small(group, joiner, small) if group.me == senders[0] else []
        yield transfers + transfer.send(group, joiner, cut[senders.index(group.me)], source)

    answers = made.each(lambda member: member.walk(receiving if member.rank == joiner else sending))
    assert answers[0] == small
    assert [tensor.data_ptr() for tensor in target] == where
    for left, right in zip(source, target, strict=True):
        assert bytes(tensor_bytes(left)) == bytes(tensor_bytes(right))


def test_empty_small_values_travel(world: MakeWorld) -> None:
    """A value of no bytes is not a missing one."""
    made = world(2)

    def sending(group):
        yield transfer.send_small(group, 1, b"")

    def receiving(group):
        return (yield from transfer.receive_small(group, 0))

    assert made.each(lambda m: m.walk(sending if m.rank == 0 else receiving)) == [None, b""]


def test_an_absurd_size_is_refused(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small value above the limit is not allocated; the error names its sender and both sizes."""
    monkeypatch.setattr(transfer, "MAX_SMALL_BYTES", 100)
    made = world(2)

    def sending(group):
        yield transfer.send_small(group, 1, bytes(101))

    def receiving(group):
        return (yield from transfer.receive_small(group, 0))

    made[0].walk(sending)
    with pytest.raises(EpochBroken, match=r"rank 0 .*101 bytes there.*100 bytes here"):
        made[1].walk(receiving)


def test_nothing_to_copy() -> None:
    """A state without bytes is cut into empty shares."""
    assert transfer.shares([], 3) == [[], [], []]
    assert transfer.shares([0, 0], 2) == [[], []]
