"""The signature: equal on ranks that do the same, wherever they are, and on no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from trainmover.ccl.calls import Call, GroupInfo
from trainmover.sandbox.recorder import Recorder


def call(name: str, detail: str = "", **fields: int) -> Call:
    """A completed call."""
    return Call(name, detail, [torch.ones(3)], True, lambda *_: iter(()), **fields)


def signature_of(rank: int, groups: Sequence[tuple[str, tuple[int, ...]]], schema: str = "s") -> str:
    """Of a rank that sums in its first group and passes a message on in its second, in two phases."""
    infos = [GroupInfo(name, ranks, ordinal=n) for n, (name, ranks) in enumerate(groups)]
    recorder = Recorder(1, lambda: rank)
    for phase in range(2):
        recorder.saw(infos[0], call("all_reduce", f"SUM, {phase}", number=1))
        at, size = infos[1].ranks.index(rank), len(infos[1].ranks)
        recorder.saw(infos[1], call("send/recv", "tag 0", number=3, peer=(at + 1) % size))
        recorder.saw(infos[1], call("send/recv", "tag 0", number=2, source=(at - 1) % size))
        recorder.end_phase()
    return recorder.signature([len(info.ranks) for info in infos], schema)


def test_names_ranks_and_places_do_not_count() -> None:
    """Another rank in other groups of the same sizes, at another place in them, is the same."""
    here = signature_of(1, [("0", (0, 1, 2)), ("5", (1, 4))])
    assert signature_of(7, [("a", (9, 8, 7)), ("b", (6, 7))]) == here


def test_the_order_of_completion_does_not_count() -> None:
    """What is compared is the order in which calls were made."""
    signatures = set()
    for order in ((1, 2), (2, 1)):
        recorder, info = Recorder(0, lambda: 0), GroupInfo("0", (0, 1))
        for number in order:
            recorder.saw(info, call("all_reduce", f"SUM, {number}", number=number))
        recorder.end_phase()
        signatures.add(recorder.signature([2], ""))
    assert len(signatures) == 1


def test_the_order_of_messages_does_not_count() -> None:
    """Stages of a pipeline at different depths are the same; one with a message more is not."""
    info, found = GroupInfo("0", (0, 1, 2, 3)), []
    for order in ("ffbb", "fbfb", "fbfbf"):
        recorder = Recorder(0, lambda: 1)
        for number, kind in enumerate(order):
            peers = {"peer": 2} if kind == "f" else {"source": 2}
            recorder.saw(info, call("send/recv", "tag 0", number=number, **peers))
        recorder.end_phase()
        found.append(recorder.signature([4], ""))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    "other",
    [
        signature_of(1, [("0", (0, 1, 2)), ("5", (1, 4, 7))]),
        signature_of(1, [("0", (0, 1, 2, 3)), ("5", (1, 4))]),
        signature_of(1, [("0", (0, 1, 2)), ("5", (1, 4))], "another model"),
    ],
)
def test_sizes_of_groups_and_the_state_count(other: str) -> None:
    """Ranks in groups of other sizes, or with other tensors, cannot take each other's place."""
    assert other != signature_of(1, [("0", (0, 1, 2)), ("5", (1, 4))])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (call("all_reduce", "SUM, 3"), call("all_reduce", "MAX, 3")),
        (call("all_reduce", "3"), call("all_gather", "3")),
        (call("send/recv", peer=1), call("send/recv", source=1)),
        (call("send/recv", peer=1), call("send/recv", peer=2)),
        (call("send/recv", source=1), call("send/recv")),
        (call("barrier"), None),
    ],
)
def test_calls_count(one: Call, two: Call | None) -> None:
    """Another operation, direction or distance of a message, or one call more, is another signature."""
    found = []
    for item in (one, two):
        recorder = Recorder(0, lambda: 0)
        if item is not None:
            recorder.saw(GroupInfo("0", (0, 1, 2)), item)
        recorder.end_phase()
        found.append(recorder.signature([3], ""))
    assert found[0] != found[1]


def test_phases_count() -> None:
    """A call in the first step is not one before it."""
    found = set()
    for early in (True, False):
        recorder = Recorder(1, lambda: 0)
        for phase in range(2):
            if early == (phase == 0):
                recorder.saw(GroupInfo("0", (0, 1)), call("barrier"))
            recorder.end_phase()
        found.add(recorder.signature([2], ""))
    assert len(found) == 2


def test_the_stage_is_the_place_in_the_first_group_with_messages() -> None:
    """A rank without messages has none."""
    recorder = Recorder(0, lambda: 4)
    recorder.saw(GroupInfo("0", (0, 4, 8), ordinal=0), call("all_reduce"))
    assert recorder.stage is None
    recorder.saw(GroupInfo("2", (4, 5), ordinal=2), call("send/recv", peer=1))
    recorder.saw(GroupInfo("1", (0, 4, 8), ordinal=1), call("send/recv", source=0))
    assert recorder.stage == (1, 3)
