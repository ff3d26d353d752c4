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
from tests.ccl.worlds import GROUP, sum_call
from tests.waiting import LIMIT, wait_until
from trainmover.ccl.calls import Call, GroupInfo
from trainmover.chaos import disk
from trainmover.errors import JobError
from trainmover.sandbox import recording
from trainmover.sandbox.player import Player
from trainmover.sandbox.recorder import Recorder
from trainmover.sandbox.recording import INDEX, TENSORS, Entry, Phase, Recording, write

__all__ = ["make_world", "world"]

GROUPS = {name: GroupInfo(name, (0, 2, 4), ordinal=ordinal) for ordinal, name in enumerate(("0", "1", "2"))}


def call(name: str, *outputs: torch.Tensor, detail: str = "", number: int = 0, in_place: bool = True) -> Call:
    """A completed call with these results."""
    return Call(name, detail, list(outputs), in_place, lambda *_: iter(()), number=number)


def recorder_of(steps: int, limit: int = 2**40) -> Recorder:
    """The recorder of rank 2."""
    return Recorder(steps, lambda: 2, limit)


def unwanted(reason: str) -> None:
    """A recording that should be written is not."""
    raise AssertionError(reason)


def written(recorder: Recorder, folder: Path) -> recording.Size:
    """Write what a recorder has kept and wait for it."""
    size: list[recording.Size] = []
    recorder.write(str(folder), size.append, unwanted)
    wait_until(lambda: bool(size), "the recording is whole")
    return size[0]


def record(folder: Path, *phases: list[tuple[str, Call]]) -> recording.Size:
    """A whole recording with these calls."""
    recorder = recorder_of(len(phases) - 1)
    for calls in phases:
        for group, item in calls:
            recorder.saw(GROUPS[group], item)
        recorder.end_phase()
    return written(recorder, folder)


def played(
    player: Player, group: str, name: str, *shapes: torch.Tensor, detail: str = ""
) -> list[torch.Tensor]:
    """Play one call into fresh tensors like these."""
    outputs = [torch.full_like(tensor, 7) for tensor in shapes]
    player.play(GROUPS[group], call(name, *outputs, detail=detail))
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
    assert size.stored == sum(path.stat().st_size for path in (tmp_path / "r").iterdir())
    player = Player(str(tmp_path / "r"))
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
    recorder = recorder_of(0)
    recorder.saw(GROUPS["0"], call("all_reduce", tensor))
    tensor.zero_()
    assert recorder.end_phase() is False
    written(recorder, tmp_path)
    assert played(Player(str(tmp_path)), "0", "all_reduce", tensor)[0].tolist() == [1.0, 1.0, 1.0]


def test_calls_are_kept_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    """A send that completes late does not change places with the call after it."""
    first, second = call("send/recv", number=1), call("all_reduce", torch.ones(1), number=2)
    record(tmp_path, [("0", second), ("0", first)])
    entries = [entry for entry, _ in Recording(str(tmp_path)).entries(0)]
    assert [entry.name for entry in entries] == ["send/recv", "all_reduce"]


def test_a_void_steps_calls_are_dropped(tmp_path: Path) -> None:
    """Only committed phases are in the recording, and it ends after the announced number."""
    recorder = recorder_of(1)
    assert recorder.end_phase() is True
    recorder.saw(GROUPS["0"], call("all_reduce", torch.zeros(1)))
    recorder.drop_phase()
    recorder.saw(GROUPS["0"], call("all_reduce", torch.ones(1)))
    assert recorder.end_phase() is False
    written(recorder, tmp_path)
    found = Recording(str(tmp_path))
    assert [len(found.entries(number)) for number in range(len(found))] == [0, 1]
    assert found.phase(1).tensors[0].item() == 1.0


def test_calls_inside_the_machine_are_not_kept(tmp_path: Path) -> None:
    """They really run in the sandbox; they count for the signature all the same."""
    inner, outer = call("all_reduce", torch.ones(1000)), call("broadcast", torch.ones(3))
    inner.inside = True
    recorder = recorder_of(0)
    recorder.saw(GROUPS["0"], inner)
    recorder.saw(GROUPS["1"], outer)
    recorder.end_phase()
    assert recorder.bytes == 12
    both = recorder.signature([3, 3], "")
    written(recorder, tmp_path)
    assert [entry.name for entry, _ in Recording(str(tmp_path)).entries(0)] == ["broadcast"]
    one = recorder_of(0)
    one.saw(GROUPS["1"], outer)
    one.end_phase()
    assert one.signature([3, 3], "") != both


def test_a_recording_beyond_its_limit_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The memory is free at once, a warning says what to do, and the signature is still found."""
    recorder, whole = recorder_of(1, limit=1000), recorder_of(1)
    for phase in range(2):
        for item in (recorder, whole):
            item.saw(GROUPS["0"], call("all_reduce", torch.ones(150), number=phase))
        assert recorder.bytes <= 1000
        recorder.end_phase()
        whole.end_phase()
    assert recorder.bytes == 0
    assert recorder.signature([3], "") == whole.signature([3], "")
    assert caplog.text.count("more than the limit") == 1
    said: list[str] = []
    assert recorder.write(str(tmp_path / "r"), lambda _: None, said.append) is None
    assert "--recording-limit" in said[0]
    assert not (tmp_path / "r").exists()


def test_what_nobody_needs_is_dropped(tmp_path: Path) -> None:
    """A rank whose role another one records keeps nothing."""
    recorder = recorder_of(0)
    recorder.saw(GROUPS["0"], call("all_reduce", torch.ones(10)))
    recorder.end_phase()
    recorder.drop()
    assert recorder.bytes == 0


def test_the_same_content_is_stored_once(tmp_path: Path) -> None:
    """However often a result comes again, in whatever phase, shape or dtype, its bytes are there once."""
    weights = torch.randn(5000)
    calls = [("0", call("all_gather", weights, number=n)) for n in range(4)]
    size = record(tmp_path, calls, [*calls, ("1", call("broadcast", weights.view(50, 100)))])
    assert (size.tensors, size.contents, size.raw) == (9, 1, 9 * weights.nbytes)
    assert size.stored < 1.2 * weights.nbytes
    player = Player(str(tmp_path))
    player.next_phase()
    assert torch.equal(played(player, "1", "broadcast", weights.view(50, 100))[0].view(-1), weights)


@pytest.mark.parametrize(
    ("tensor", "smaller"),
    [
        (torch.randint(0, 50_000, (20_000,)), True),
        (torch.randn(20_000).relu(), True),
        (torch.randn(20_000), False),
        (torch.randn(20_000).bfloat16(), False),
        (torch.zeros(3), False),
    ],
)
def test_what_shrinks_is_compressed(tmp_path: Path, tensor: torch.Tensor, smaller: bool) -> None:
    """Token ids and sparse activations are, gradients are not; both come back bit for bit."""
    record(tmp_path, [("0", call("all_gather", tensor))])
    assert ((tmp_path / TENSORS).stat().st_size < 0.75 * tensor.nbytes) is smaller
    assert torch.equal(played(Player(str(tmp_path)), "0", "all_gather", tensor)[0], tensor)


def test_a_recording_may_be_anywhere(tmp_path: Path) -> None:
    """Any fsspec URL will do."""
    url = f"memory://{tmp_path.name}/g1/first/slot-0"
    write(url, [Phase((Entry(0, "all_reduce", "", 1),), (torch.arange(5),))])
    assert played(Player(url), "0", "all_reduce", torch.arange(5))[0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(JobError, match="no whole recording in nowhere://x"):
        Player("nowhere://x")


def test_an_unfinished_recording_does_not_count(tmp_path: Path) -> None:
    """Until the index is written there is nothing to play."""
    record(tmp_path, [("0", call("all_reduce", torch.ones(3)))])
    (tmp_path / INDEX).rename(tmp_path / f"{INDEX}.part")
    with pytest.raises(JobError, match="no whole recording"):
        Player(str(tmp_path))
    with pytest.raises(JobError, match="no whole recording"):
        Player(str(tmp_path / "absent"))


def test_a_recording_that_is_begun_again_does_not_count(tmp_path: Path) -> None:
    """Its index goes first, so that an old index never stands beside new tensors."""
    record(tmp_path, [("0", call("all_reduce", torch.ones(3)))])

    def phases():
        yield Phase((), ())
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write(str(tmp_path), phases())
    with pytest.raises(JobError, match="no whole recording"):
        Player(str(tmp_path))


def test_a_recording_that_cannot_be_written_ends_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk's trouble is logged, and never reaches training."""
    (tmp_path / "r").write_text("a file where a folder should be")
    recorder = recorder_of(0)
    recorder.end_phase()
    said: list[str] = []
    thread = recorder.write(str(tmp_path / "r"), lambda _: None, said.append)
    assert thread is not None
    thread.join(10.0)
    assert str(tmp_path / "r") in said[0]
    assert "could not be written; standbys cannot warm from it" in caplog.text


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
def test_a_recording_waits_for_room_on_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk is full for a moment just then: no spare could be warmed for as long as the job runs."""
    folder = tmp_path / "run"
    disk.mount(folder)
    try:
        disk.fill(folder)
        recorder = recorder_of(0)
        recorder.end_phase()
        said: list[object] = []
        thread = recorder.write(str(folder / "r"), said.append, said.append)
        assert thread is not None
        wait_until(lambda: "No space left on device" in caplog.text, "an attempt fails")
        assert said == []
        disk.empty(folder)
        thread.join(LIMIT)
        assert len(said) == 1
        assert isinstance(said[0], recording.Size)
        Player(str(folder / "r"))
    finally:
        disk.unmount(folder)


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        (TENSORS, lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        (TENSORS, lambda data: data[: len(data) // 2], "checksum"),
        (TENSORS, None, "no whole recording"),
        (INDEX, lambda data: data[:-5], "no whole recording"),
        (INDEX, lambda data: b"[]", "has format None"),
        (INDEX, lambda data: b'{"format": 99}', "has format 99"),
        (INDEX, lambda data: b'{"format": 2}', "is damaged"),
        (INDEX, lambda data: b'{"format": 2, "body": {"phases": 5}}', "is damaged"),
        (INDEX, lambda data: data.replace(b'"all_reduce"', b'"broadcast"'), "is damaged"),
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
        Player(str(tmp_path))
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
        return Player(str(tmp_path))

    def test_another_collective(self, player: Player) -> None:
        """Both collectives are named, with their arguments, the group and the phase."""
        said = (
            r"calls broadcast \(x\), call 1 of group '0' .* in phase 0 \(start-up\); the recorded rank "
            r"called all_reduce \(SUM, 2\)"
        )
        with pytest.raises(JobError, match=said):
            played(player, "0", "broadcast", torch.ones(2), detail="x")

    def test_other_arguments(self, player: Player) -> None:
        """The same collective with another size is a divergence too."""
        with pytest.raises(JobError, match=r"all_reduce \(SUM, 3\).*all_reduce \(SUM, 2\)"):
            played(player, "0", "all_reduce", torch.ones(3), detail="SUM, 3")

    def test_more_calls_than_were_recorded(self, player: Player) -> None:
        """A call too many is named."""
        played(player, "1", "broadcast", torch.ones(1))
        with pytest.raises(JobError, match=r"broadcast .*, call 2 of group '1' .* in phase 0.* not recorded"):
            played(player, "1", "broadcast", torch.ones(1))

    def test_fewer_calls_are_left_behind(self, player: Player) -> None:
        """What a phase did not use is not read in the next one."""
        player.next_phase()
        with pytest.raises(JobError, match=r"phase 1 \(shadow step 1\), was not recorded"):
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
        player.play(GROUPS["0"], call("broadcast", own))
        assert own.tolist() == [5.0, 6.0]
        pure = torch.tensor([5.0])
        player.play(GROUPS["2"], call("all_gather", pure, in_place=False))
        assert pure.tolist() == [0.0]
        assert played(player, "0", "all_reduce", torch.ones(2), detail="SUM, 2")[0].tolist() == [1.0, 1.0]
        player.lenient = False
        with pytest.raises(JobError):
            played(player, "2", "broadcast", torch.ones(1))

    def test_after_the_last_phase(self, player: Player) -> None:
        """Beyond the recording every call with a result is an error, and going on is not."""
        for _ in range(3):
            player.next_phase()
        with pytest.raises(JobError, match=r"phase 3 .*, was not recorded"):
            played(player, "0", "all_reduce", torch.ones(2))

    def test_another_shape(self, tmp_path: Path) -> None:
        """A result of another size or dtype is named with both, but for a collective that data size."""
        calls = [("0", call(name, torch.ones(4))) for name in ("all_gather", "all_gather", "all_to_all")]
        record(tmp_path, calls)
        player = Player(str(tmp_path))
        with pytest.raises(JobError, match=r"wants \(5,\) x torch.float32; the recorded rank got \(4,\)"):
            played(player, "0", "all_gather", torch.ones(5))
        with pytest.raises(JobError, match=r"torch.float64; the recorded rank got \(4,\) x torch.float32"):
            played(player, "0", "all_gather", torch.ones(4, dtype=torch.float64))
        assert played(player, "0", "all_to_all", torch.ones(5))[0].tolist() == [1, 1, 1, 1, 0]


def test_the_source_of_a_message_from_anybody_is_played_too(tmp_path: Path) -> None:
    """Who sent it is part of the result."""
    item = call("send/recv", torch.ones(1))
    item.result = 2
    record(tmp_path, [("0", item)])
    again = call("send/recv", torch.zeros(1))
    Player(str(tmp_path)).play(GROUPS["0"], again)
    assert again.result == 2


def test_a_live_rank_is_recorded_and_its_stand_in_hears_the_same(world: MakeWorld, tmp_path: Path) -> None:
    """Recorded over real links, played to a communicator that has none."""
    made = world(3)
    recorder = Recorder(1, lambda: 1)
    made[1].comm.tap = recorder
    results = []
    for phase in range(2):
        for count in (3, 50_000):
            values = [torch.full((count,), float(rank + phase)) for rank in range(3)]
            for future in [made[rank].all_reduce(values[rank]) for rank in range(3)]:
                future.wait()
            results.append(values[1])
        recorder.end_phase()
    written(recorder, tmp_path)

    standby = made._member(1)
    made.gone.append(standby)
    player = standby.comm.player = Player(str(tmp_path))
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
                st.integers(0, 2),
                st.sampled_from(["all_reduce", "broadcast", "all_gather"]),
                st.lists(st.integers(0, 5), max_size=3),
                st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
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
    made = []
    for calls in phases:
        entries = tuple(Entry(group, name, str(sizes), len(sizes)) for group, name, sizes, _ in calls)
        tensors = (torch.randn(n).to(kind) for *_, sizes, kind in calls for n in sizes)
        made.append(Phase(entries, tuple(tensors)))
    write(str(folder), made)
    found = Recording(str(folder))
    assert len(found) == len(made)
    for number, phase in enumerate(made):
        read = found.phase(number)
        assert read.entries == phase.entries
        assert all(torch.equal(a, b) for a, b in zip(read.tensors, phase.tensors, strict=True))
    assert not list(folder.glob("*.part"))
    assert json.loads((folder / INDEX).read_text())["format"] == 2


def test_the_writer_ends_with_the_recording(tmp_path: Path) -> None:
    """After the recording is whole no thread is left."""
    before = set(threading.enumerate())
    record(tmp_path, [], [])
    wait_until(lambda: set(threading.enumerate()) <= before, "the writer ends")
