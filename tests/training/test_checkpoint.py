"""Checkpoints of ranks without a job: what is stored, what comes back, what happens to damaged ones."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.training.checkpoints import Solo, everybody, save
from trainmover.errors import JobError
from trainmover.training.shelf import MANIFEST, VALUES, Shelf


def folders(folder: Path) -> list[str]:
    """Names of what is on the shelf."""
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back_and_goes_on_alike(tmp_path: Path) -> None:
    """Fresh processes load all kinds of state and train on to the same bytes."""
    ranks = [Solo(rank) for rank in range(3)]
    for rank in ranks:
        rank.train(4)
    torch.manual_seed(5)
    save(ranks, tmp_path, 4)
    drawn = torch.rand(3)
    fresh = [Solo(rank, seed=77) for rank in range(3)]
    loaded = everybody(fresh, tmp_path)
    assert [item.step for item in loaded] == [4, 4, 4]
    assert torch.equal(torch.rand(3), drawn)
    for old, new in zip(ranks, fresh, strict=True):
        assert new.tracked.digest() == old.tracked.digest()
        assert new.place.at == old.place.at == 100 * old.rank + 4
        old.train(3)
        new.train(3)
        assert new.tracked.digest() == old.tracked.digest()


def test_replicas_share_the_writing(tmp_path: Path) -> None:
    """What replicas have in common is on disk once, written by all of them."""
    ranks = [Solo(rank, width=64) for rank in range(3)]
    for rank in ranks:
        rank.train()
    save(ranks, tmp_path, 1)
    (manifest,) = Shelf(str(tmp_path)).whole()
    assert manifest.variants == {}
    assert manifest.period == 1
    files = {chunk[2] for entry in manifest.tensors.values() for chunk in entry["chunks"]}
    assert len(files) == 3
    assert all(len(entry["chunks"]) == 1 for entry in manifest.tensors.values())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_another_reader_of_the_format_can_read_it(tmp_path: Path) -> None:
    """torch.distributed.checkpoint itself loads a tensor from it."""
    ranks = [Solo(rank) for rank in range(2)]
    ranks[0].train(2)
    ranks[1].train(2)
    save(ranks, tmp_path, 2)
    state = {"model.0.weight": torch.zeros(8, 8), "optimizer.0.exp_avg": torch.zeros(8, 8)}
    dcp.load(state, checkpoint_id=tmp_path / "step-00000002", no_dist=True)
    assert torch.equal(state["model.0.weight"], ranks[0].model[0].weight)
    first = ranks[0].optimizer.param_groups[0]["params"][0]
    assert torch.equal(state["optimizer.0.exp_avg"], ranks[0].optimizer.state[first]["exp_avg"])


def test_equal_names_with_different_contents_are_kept_apart(tmp_path: Path) -> None:
    """Two pipelines of two stages: each stage once, under a key of its own; and three pipelines go on."""
    ranks = [Solo(rank, seed=rank % 2) for rank in range(4)]
    for rank in ranks:
        rank.train(2)
    save(ranks, tmp_path, 2)
    (manifest,) = Shelf(str(tmp_path)).whole()
    assert manifest.period == 2
    assert manifest.variants["model.0.weight"] == [[0, 2], [1, 3]]
    for size in (4, 6, 2):
        fresh = [Solo(rank, seed=9) for rank in range(size)]
        everybody(fresh, tmp_path)
        for new in fresh:
            assert new.tracked.digest() == ranks[new.rank % 2].tracked.digest()
            assert new.place.at == 100 * new.rank + (2 if new.rank < 4 else 0)
    with pytest.raises(JobError, match="give a multiple of 2 ranks"):
        everybody([Solo(rank) for rank in range(3)], tmp_path)


def test_old_ones_go(tmp_path: Path) -> None:
    """The newest stay, as many as asked for, and what was given up goes with the old ones."""
    rank = Solo(0)
    (tmp_path / "step-00000002.g1.part").mkdir()
    (tmp_path / "mine").mkdir()
    for step in range(1, 6):
        rank.train()
        save([rank], tmp_path, step, keep=2)
    assert folders(tmp_path) == ["mine", "step-00000004", "step-00000005"]
    assert folders(tmp_path / "step-00000005") == [".metadata", MANIFEST, "rank-00000.distcp", VALUES]


@pytest.mark.parametrize("what", ["tensor", "values", "manifest", "gone"])
def test_a_damaged_one_is_refused_and_the_one_before_taken(what: str, tmp_path: Path) -> None:
    """One bit is enough; it is said, all ranks take the older one, and the damaged one is put aside."""
    ranks = [Solo(rank) for rank in range(2)]
    digests = {}
    for step in (1, 2):
        for rank in ranks:
            rank.train()
        digests[step] = ranks[0].tracked.digest()
        save(ranks, tmp_path, step)
    newest = tmp_path / "step-00000002"
    # Only what one rank needs for itself, or what both need.
    name = {
        "tensor": "rank-00001.distcp",
        "values": VALUES,
        "manifest": MANIFEST,
        "gone": "rank-00000.distcp",
    }
    path = newest / name[what]
    if what == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) * 3 // 4] ^= 1
        path.write_bytes(data)
    fresh = [Solo(rank, seed=3) for rank in range(2)]
    loaded = everybody(fresh, tmp_path)
    assert [item.step for item in loaded] == [1, 1]
    assert {rank.tracked.digest() for rank in fresh} == {digests[1]}
    if what != "manifest":
        assert any(
            "damaged" in reason and str(newest) in reason for item in loaded for reason in item.refused
        )
        assert folders(tmp_path) == ["step-00000001", "step-00000002.damaged"]
    for rank in fresh:
        rank.train()
    save(fresh, tmp_path, 2)
    assert [item.step for item in everybody(fresh, tmp_path)] == [2, 2]


def test_without_any_nothing_changes(tmp_path: Path) -> None:
    """No folder, an empty one, or one of another job: ranks begin from nothing."""
    ranks = [Solo(rank) for rank in range(2)]
    before = ranks[0].tracked.digest()
    assert [item.step for item in everybody(ranks, tmp_path / "none")] == [0, 0]
    save(ranks, tmp_path, 3)
    assert [item.step for item in everybody(ranks, tmp_path, job="another")] == [0, 0]
    assert ranks[0].tracked.digest() == before
    assert [item.step for item in everybody(ranks, tmp_path, job=None)] == [3, 3]


def test_another_script_is_refused(tmp_path: Path) -> None:
    """A checkpoint of a model of another shape or with other names says what does not fit."""
    rank = Solo(0)
    save([rank], tmp_path, 1)
    with pytest.raises(JobError, match="does not fit"):
        everybody([Solo(0, width=16)], tmp_path)
    other = Solo(0)
    other.tracked.modules["more"] = torch.nn.Linear(2, 2)
    with pytest.raises(JobError, match=r"has no tensor 'more\.weight'"):
        everybody([other], tmp_path)


def test_a_part_that_never_comes_costs_one_checkpoint(tmp_path: Path) -> None:
    """The next one that is due takes its place and clears it away."""
    ranks = [Solo(rank) for rank in range(3)]
    makers = [rank.checkpointer(tmp_path) for rank in ranks]

    def take(step: int, numbers: list[int], epoch: int) -> None:
        for number in numbers:
            rank = ranks[number]
            assert makers[number].take(step, number, 3, rank.tracked, rank.tracked.private_values(), epoch)

    take(1, [0, 1], 1)
    assert makers[0]._attempt is not None
    makers[0]._attempt.over.wait(0.3)
    assert Shelf(str(tmp_path)).whole() == []
    take(2, [0, 1, 2], 2)
    for maker in makers:
        maker.finish(lambda: False, 30.0)
    assert ranks[0].saved == [2]
    assert not any(rank.failures for rank in ranks)
    assert folders(tmp_path) == ["step-00000002"]


def test_the_end_does_not_wait_for_the_lost(tmp_path: Path) -> None:
    """The last checkpoint is given up when a machine is lost that was to have a part in it."""
    rank = Solo(0)
    maker = rank.checkpointer(tmp_path)
    assert maker.due(7, 100)
    assert maker.take(7, 0, 2, rank.tracked, rank.tracked.private_values(), 1)
    maker.finish(lambda: True, 30.0)
    assert rank.saved == []


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("what", ["its index", "its tensors"])
def test_nobody_waits_for_a_rank_that_cannot_write(
    what: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are told, and give it up at once; the next one is whole."""
    ranks = [Solo(number, seed=number) for number in range(3)]
    makers = [item.checkpointer(tmp_path) for item in ranks]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def take(step: int) -> None:
        for number, maker in enumerate(makers):
            tracked = ranks[number].tracked
            assert maker.take(step, number, 3, tracked, tracked.private_values(), 1)
        for maker in makers:
            assert maker._attempt is not None
            assert maker._attempt.over.wait(10.0), "it waits for what never comes"

    with monkeypatch.context() as patch:
        if what == "its index":
            patch.setattr(makers[rank].shelf, "put", full)
        else:
            patch.setattr(makers[rank], "_write_tensors", full)
        take(1)
    assert [len(item.failures) for item in ranks] == [int(number == rank) for number in range(3)]
    assert Shelf(str(tmp_path)).whole() == []
    take(2)
    assert ranks[0].saved == [2]
    assert folders(tmp_path) == ["step-00000002"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Training goes on; the reason is told."""
    (tmp_path / "file").write_text("in the way")
    rank = Solo(0)
    maker = rank.checkpointer(tmp_path / "file")
    assert maker.take(1, 0, 1, rank.tracked, rank.tracked.private_values(), 1)
    maker.finish(lambda: False, 30.0)
    assert len(rank.failures) == 1
    assert "file" in rank.failures[0]


def test_one_at_a_url(tmp_path: Path) -> None:
    """At a URL the manifest alone decides, and old ones go, too."""
    url = f"memory://checkpoints-{tmp_path.name}"
    ranks = [Solo(rank) for rank in range(2)]
    for step in (1, 2, 3):
        for rank in ranks:
            rank.train()
        save(ranks, url, step)
    assert [manifest.step for manifest in Shelf(url).whole()] == [3, 2]
    fresh = [Solo(rank, seed=3) for rank in range(2)]
    assert [item.step for item in everybody(fresh, url)] == [3, 3]
    assert fresh[1].tracked.digest() == ranks[1].tracked.digest()


def test_when_one_is_due(tmp_path: Path) -> None:
    """Each so many committed steps, and after the last."""
    maker = Solo(0).checkpointer(tmp_path, every=4)
    assert [step for step in range(11) if maker.due(step, 10)] == [4, 8, 10]


def test_a_manifest_is_plain(tmp_path: Path) -> None:
    """It can be read by anybody, and says where every chunk is."""
    rank = Solo(0)
    save([rank], tmp_path, 1)
    body = json.loads((tmp_path / "step-00000001" / MANIFEST).read_text())["body"]
    assert body["step"] == 1
    assert body["tensors"]["model.0.weight"]["chunks"][0][:3] == [[0, 0], [8, 8], "rank-00000.distcp"]
