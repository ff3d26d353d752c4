"""Recorder and player: what a live rank got, its stand-in gets again, and any divergence is named."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ccl.conftest import MakeWorld, make_world, world
from tests.ccl.worlds import GROUP, sum_call, wait_until
from trainmover.ccl.communicator import Call
from trainmover.errors import JobError
from trainmover.sandbox.player import Player
from trainmover.sandbox.recorder import Recorder
from trainmover.sandbox.recording import INDEX, Entry, Phase, read, write_index, write_phase

__all__ = ["make_world", "world"]


def call(name: str, *outputs: torch.Tensor, detail: str = "", number: int = 0, in_place: bool = True) -> Call:
    """A completed call with these results."""
    return Call(name, detail, list(outputs), in_place, lambda *_: iter(()), number=number)


def record(folder: Path, *phases: list[tuple[str, Call]]) -> int:
    """A whole recording with these calls; returns its size in bytes."""
    size: list[int] = []
    recorder = Recorder(folder, len(phases) - 1, size.append)
    for calls in phases:
        for group, item in calls:
            recorder.saw(group, item)
        recorder.end_phase()
    wait_until(lambda: bool(size), "the recording is whole")
    return size[0]


def played(
    player: Player, group: str, name: str, *shapes: torch.Tensor, detail: str = ""
) -> list[torch.Tensor]:
    """Play one call into fresh tensors like these."""
    outputs = [torch.full_like(tensor, 7) for tensor in shapes]
    player.play(group, call(name, *outputs, detail=detail))
    return outputs


def test_what_was_recorded_is_played_back(tmp_path: Path) -> None:
    """Tensors of any dtype and shape come back bit for bit, phase by phase, group by group."""
    tensors = [
        torch.randn(3, 4),
        torch.randn(5, dtype=torch.bfloat16),
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0),
        torch.randn(4, 6).t(),
    ]
    size = record(
        tmp_path / "r",
        [("0", call("broadcast", tensors[0]))],
        [("0", call("all_gather", *tensors)), ("1", call("all_reduce", tensors[1])), ("0", call("barrier"))],
        [],
    )
    assert size == sum(path.stat().st_size for path in (tmp_path / "r").iterdir())
    player = Player(tmp_path / "r")
    assert player.steps == 2
    assert torch.equal(played(player, "0", "broadcast", tensors[0])[0], tensors[0])
    player.next_phase()
    assert torch.equal(played(player, "1", "all_reduce", tensors[1])[0], tensors[1])
    found = played(player, "0", "all_gather", *tensors)
    assert all(torch.equal(a, b) for a, b in zip(found, tensors, strict=True))
    played(player, "0", "barrier")


def test_recording_copies(tmp_path: Path) -> None:
    """Results are kept as they were, although training goes on in the same memory."""
    tensor = torch.ones(3)
    size: list[int] = []
    recorder = Recorder(tmp_path, 0, size.append)
    recorder.saw("0", call("all_reduce", tensor))
    tensor.zero_()
    assert recorder.end_phase() is False
    wait_until(lambda: bool(size), "whole")
    assert played(Player(tmp_path), "0", "all_reduce", tensor)[0].tolist() == [1.0, 1.0, 1.0]


def test_calls_are_kept_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    """A send that completes late does not change places with the call after it."""
    first, second = call("send/recv", number=1), call("all_reduce", torch.ones(1), number=2)
    record(tmp_path, [("0", second), ("0", first)])
    assert [entry.name for entry in read(tmp_path)[0].entries] == ["send/recv", "all_reduce"]


def test_a_void_steps_calls_are_dropped(tmp_path: Path) -> None:
    """Only committed phases are in the recording, and it ends after the announced number."""
    size: list[int] = []
    recorder = Recorder(tmp_path, 1, size.append)
    assert recorder.end_phase() is True
    recorder.saw("0", call("all_reduce", torch.zeros(1)))
    recorder.drop_phase()
    recorder.saw("0", call("all_reduce", torch.ones(1)))
    assert recorder.end_phase() is False
    wait_until(lambda: bool(size), "whole")
    phases = read(tmp_path)
    assert [len(phase.entries) for phase in phases] == [0, 1]
    assert phases[1].tensors[0].item() == 1.0


def test_an_unfinished_recording_does_not_count(tmp_path: Path) -> None:
    """Until the index is written there is nothing to play."""
    write_phase(tmp_path, 0, Phase((), ()))
    with pytest.raises(JobError, match="no whole recording"):
        Player(tmp_path)
    with pytest.raises(JobError, match="no whole recording"):
        Player(tmp_path / "absent")


def test_a_recording_that_cannot_be_written_ends_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk's trouble is logged, and never reaches training."""
    (tmp_path / "r").write_text("a file where a folder should be")
    size: list[int] = []
    recorder = Recorder(tmp_path / "r", 0, size.append)
    recorder.end_phase()
    recorder._thread.join(10.0)
    assert size == []
    assert "could not be written; standbys cannot warm from it" in caplog.text


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("phase-1.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        ("phase-1.safetensors", lambda data: data[: len(data) // 2], "checksum"),
        ("phase-1.safetensors", None, "no whole recording"),
        (INDEX, lambda data: data[:-5], "no whole recording"),
        (INDEX, lambda data: b"[]", "has format None"),
        (INDEX, lambda data: b'{"format": 99}', "has format 99"),
        (INDEX, lambda data: b'{"format": 1}', "is damaged"),
        (INDEX, lambda data: b'{"format": 1, "phases": [{"file": 5}]}', "is damaged"),
        (INDEX, lambda data: data.replace(b'"outputs": 1', b'"outputs": 2'), "is damaged"),
        (INDEX, lambda data: data.replace(b'"detail"', b'"detial"'), "is damaged"),
    ],
)
def test_a_damaged_recording_is_refused(tmp_path: Path, file: str, damage, said: str) -> None:
    """A changed, cut, missing or foreign file is a JobError that names the folder or file."""
    record(tmp_path, [], [("0", call("all_reduce", torch.randn(100)))])
    path = tmp_path / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(JobError, match=said) as error:
        Player(tmp_path)
    assert str(tmp_path) in str(error.value)


class TestDivergence:
    """A script that does something else in the sandbox than on the recorded rank is told so."""

    @pytest.fixture
    def player(self, tmp_path: Path) -> Player:
        """Phase 0 has one all_reduce in group 0 and one broadcast in group 1."""
        record(
            tmp_path,
            [
                ("0", call("all_reduce", torch.ones(2), detail="SUM, 2")),
                ("1", call("broadcast", torch.ones(1))),
            ],
            [],
        )
        return Player(tmp_path)

    def test_another_collective(self, player: Player) -> None:
        """Both collectives are named, with their arguments, the group and the phase."""
        with pytest.raises(JobError, match=r"calls broadcast \(x\) of group '0' in phase 0, the recorded "
                                           r"rank called all_reduce \(SUM, 2\)"):  # fmt: skip
            played(player, "0", "broadcast", torch.ones(2), detail="x")

    def test_other_arguments(self, player: Player) -> None:
        """The same collective with another size is a divergence too."""
        with pytest.raises(JobError, match=r"all_reduce \(SUM, 3\).*all_reduce \(SUM, 2\)"):
            played(player, "0", "all_reduce", torch.ones(3), detail="SUM, 3")

    def test_more_calls_than_were_recorded(self, player: Player) -> None:
        """A call too many is named."""
        played(player, "1", "broadcast", torch.ones(1))
        with pytest.raises(JobError, match=r"broadcast .* of group '1' in phase 0 was not recorded"):
            played(player, "1", "broadcast", torch.ones(1))

    def test_fewer_calls_are_left_behind(self, player: Player) -> None:
        """What a phase did not use is not read in the next one."""
        player.next_phase()
        with pytest.raises(JobError, match="phase 1 was not recorded"):
            played(player, "0", "all_reduce", torch.ones(2), detail="SUM, 2")

    def test_barriers_and_sends_return_at_once(self, player: Player) -> None:
        """They have no result to miss."""
        player.next_phase()
        played(player, "0", "barrier")
        played(player, "0", "send/recv")
        with pytest.raises(JobError, match="send/recv"):
            played(player, "0", "send/recv", torch.ones(1))

    def test_leniency(self, player: Player) -> None:
        """While lenient, an unrecorded call keeps its own values and a recorded one is still played."""
        player.lenient = True
        own = torch.tensor([5.0, 6.0])
        player.play("0", call("broadcast", own))
        assert own.tolist() == [5.0, 6.0]
        pure = torch.tensor([5.0])
        player.play("2", call("all_gather", pure, in_place=False))
        assert pure.tolist() == [0.0]
        assert played(player, "0", "all_reduce", torch.ones(2), detail="SUM, 2")[0].tolist() == [1.0, 1.0]
        player.lenient = False
        with pytest.raises(JobError):
            played(player, "2", "broadcast", torch.ones(1))

    def test_after_the_last_phase(self, player: Player) -> None:
        """Beyond the recording every call with a result is an error, and going on is not."""
        for _ in range(3):
            player.next_phase()
        with pytest.raises(JobError, match="phase 3 was not recorded"):
            played(player, "0", "all_reduce", torch.ones(2))


def test_a_live_rank_is_recorded_and_its_stand_in_hears_the_same(world: MakeWorld, tmp_path: Path) -> None:
    """Recorded over real links, played to a communicator that has none."""
    made = world(3)
    size: list[int] = []
    recorder = Recorder(tmp_path, 1, size.append)
    made[1].comm.tap = recorder
    results = []
    for phase in range(2):
        for count in (3, 50_000):
            values = [torch.full((count,), float(rank + phase)) for rank in range(3)]
            for future in [made[rank].all_reduce(values[rank]) for rank in range(3)]:
                future.wait()
            results.append(values[1])
        recorder.end_phase()
    wait_until(lambda: bool(size), "whole")

    standby = made._member(1)
    made.gone.append(standby)
    player = standby.comm.player = Player(tmp_path)
    heard = []
    for _ in range(2):
        for count in (3, 50_000):
            value = torch.zeros(count)
            standby.comm.run(GROUP, sum_call(value)).wait()
            heard.append(value)
        player.next_phase()
    assert all(torch.equal(a, b) for a, b in zip(heard, results, strict=True))
    assert standby.connections() == {}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["0", "1", "dp"]),
                st.sampled_from(["all_reduce", "broadcast", "all_gather"]),
                st.lists(st.integers(0, 5), max_size=3),
            ),
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_recording_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, phases) -> None:
    """Whatever was called, in whatever order, reads back as it was."""
    folder = tmp_path_factory.mktemp("r")
    written = []
    for calls in phases:
        entries = tuple(Entry(group, name, str(sizes), len(sizes)) for group, name, sizes in calls)
        written.append(Phase(entries, tuple(torch.randn(n) for _, _, sizes in calls for n in sizes)))
    write_index(folder, [write_phase(folder, number, phase) for number, phase in enumerate(written)])
    for found, phase in zip(read(folder), written, strict=True):
        assert found.entries == phase.entries
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, phase.tensors, strict=True))
    assert not list(folder.glob("*.part"))
    assert json.loads((folder / INDEX).read_text())["format"] == 1


def test_the_writer_ends_with_the_recording(tmp_path: Path) -> None:
    """After the last phase no thread is left."""
    before = set(threading.enumerate())
    record(tmp_path, [], [])
    wait_until(lambda: set(threading.enumerate()) <= before, "the writer ends")
