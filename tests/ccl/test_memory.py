"""The memory that calls work on, as far as it can be seen without a GPU."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.waiting import wait_until
from trainmover.ccl.communicator import Call
from trainmover.ccl.memory import Lane, Memory
from trainmover.errors import LinkError


def call_with(memory: Memory) -> Call:
    """A call that has got its memory."""
    return memory.fit(Call("all_reduce", "", [], True, lambda *_: iter(())))  # type: ignore[arg-type]


def test_plain_tensors_are_used_in_place() -> None:
    """A contiguous tensor's memory is the tensor's own, and nothing follows the call."""
    memory, tensor = Memory(), torch.arange(6.0).view(2, 3)
    assert memory.update(tensor).data_ptr() == tensor.data_ptr()
    assert call_with(memory).after is None


def test_tensors_with_gaps_get_their_results_back() -> None:
    """A tensor with gaps is copied out where its content is needed, and the result is copied in."""
    whole = torch.zeros(4, 4)
    memory = Memory()
    read, written = memory.read(whole[:, 0] + 1), memory.write(whole[:, 1])
    written.copy_(read)
    after = call_with(memory).after
    assert after is not None
    assert whole.sum() == 0
    after()
    assert whole[:, 1].tolist() == [1.0] * 4
    assert whole.sum() == 4


def test_what_may_be_used_up_is_a_copy() -> None:
    """Memory that a walk uses up is never the caller's."""
    tensor = torch.ones(3)
    Memory().copy(tensor).zero_()
    gaps = torch.ones(3, 2)[:, 0]
    Memory().copy(gaps).zero_()
    assert tensor.sum() == gaps.sum() == 3


@pytest.mark.parametrize("part", ["real", "imag"])
def test_views_with_another_sign_are_resolved(part: str) -> None:
    """What is sent of a lazily conjugated or negated view is what reading it gives."""
    view = torch.complex(torch.ones(3), torch.full((3,), 2.0)).conj()
    assert torch.equal(Memory().read(view), view.resolve_conj())
    assert torch.equal(Memory().read(getattr(view, part)), getattr(view, part).resolve_neg())


def test_what_cannot_be_sent_is_refused() -> None:
    """Sparse tensors, and tensors of devices that have no way to host memory here, are refused by name."""
    with pytest.raises(LinkError, match="layout"):
        Memory().read(torch.eye(3).to_sparse())
    with pytest.raises(LinkError, match="tensors on meta are not supported"):
        Memory().read(torch.empty(3, device="meta"))


def test_a_lane_keeps_order_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions run in the order in which they were asked for; an idle lane has no thread."""
    monkeypatch.setattr("trainmover.ccl.memory.IDLE_SECONDS", 0.05)
    lane, done, gate = Lane(), [], threading.Event()
    lane.when(lambda: gate.wait(10.0) and None, lambda: done.append(1))
    lane.when(lambda: None, lambda: done.append(2))
    assert done == []
    gate.set()
    wait_until(lambda: done == [1, 2], "both actions run in order")
    wait_until(lambda: not lane._runs, "the lane ends")
    lane.when(lambda: None, lambda: done.append(3))
    wait_until(lambda: done == [1, 2, 3], "it starts again")
    wait_until(
        lambda: "trainmover-copies" not in [t.name for t in threading.enumerate()], "no thread is left"
    )
