"""The example's parts that the promise rests on: its batches, its text, its model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.train_gpt import GPT, Batches, Config, learning_rate, make_optimizer, read_text

TEXT = torch.arange(5000).remainder(256).to(torch.uint8)
SMALL = Config(layers=2, heads=2, width=32, context=16, dropout=0.1)


def batches(seed: int = 7) -> Batches:
    """Windows of the test's text."""
    return Batches(TEXT, 4, 16, seed=seed)


def test_targets_are_the_next_bytes() -> None:
    """Each target is the byte after its input."""
    x, y = batches().batch(0, 0)
    assert x.shape == y.shape == (4, 16)
    assert torch.equal(y, (x + 1) % 256)


def test_a_share_has_the_same_windows_whoever_asks() -> None:
    """Step, share and seed make the windows; each share of each step has its own."""
    first = batches().batch(3, 1)[0]
    assert torch.equal(first, batches().batch(3, 1)[0])
    others = [batches().batch(3, 0)[0], batches().batch(4, 1)[0], batches(8).batch(3, 1)[0]]
    assert not any(torch.equal(first, other) for other in others)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    """The message says how much text one window needs."""
    with pytest.raises(SystemExit, match="has 10 bytes; one window needs 18"):
        Batches(TEXT[:10], 4, 16, seed=1)


def test_reads_a_folder_in_order_and_leaves_binaries_out(tmp_path: Path) -> None:
    """Files come sorted by path; a file with a zero byte is not text."""
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "a.bin").write_bytes(b"\0\1\2")
    assert bytes(read_text(tmp_path, 100).tolist()) == b"first second"
    assert bytes(read_text(tmp_path, 7).tolist()) == b"first s"
    assert bytes(read_text(tmp_path / "b.txt", 100).tolist()) == b"second"


def test_the_standard_library_is_text_enough() -> None:
    """Without --data there is text on every machine that has Python."""
    text = read_text(None, 200_000)
    assert len(text) == 200_000
    assert torch.equal(text, read_text(None, 200_000))


def test_default_model_has_about_three_million_parameters() -> None:
    """The size that the README promises; the tied matrix counts once."""
    model = GPT(Config())
    assert model.head.weight is model.token.weight
    assert 2.8e6 < sum(p.numel() for p in model.parameters()) < 3.5e6


def test_an_untrained_model_knows_nothing() -> None:
    """The first loss is near that of a uniform guess over 256 bytes, ln 256 = 5.55."""
    torch.manual_seed(0)
    x, y = batches().batch(0, 0)
    assert GPT(SMALL)(x, y).item() == pytest.approx(5.55, abs=0.2)


def test_the_future_is_hidden() -> None:
    """A change of a later byte does not change the loss at an earlier place."""
    torch.manual_seed(0)
    model = GPT(SMALL).eval()
    x, y = batches().batch(0, 0)
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    assert torch.equal(model(x[:, :9], y[:, :9]), model(changed[:, :9], y[:, :9]))
    hidden = model.drop(model.token(x) + model.place(torch.arange(16)))
    other = model.drop(model.token(changed) + model.place(torch.arange(16)))
    for block in model.blocks:
        hidden, other = block(hidden), block(other)
    assert torch.equal(hidden[:, :9], other[:, :9])
    assert not torch.equal(hidden[:, 9:], other[:, 9:])


def test_learns() -> None:
    """Thirty steps on a simple text bring the loss down by half."""
    torch.manual_seed(0)
    model, data = GPT(SMALL), Batches(TEXT % 8, 4, 16, seed=7)
    optimizer = make_optimizer(model, 1e-2, 0.1)
    losses = []
    for step in range(30):
        loss = model(*data.batch(step, 0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_learning_rate_warms_up_and_decays() -> None:
    """It grows to 1 over the warm-up, then falls to a tenth."""
    rates = [learning_rate(step, 10, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:11] == pytest.approx([1.0, 1.0])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_norms_are_not_decayed() -> None:
    """Weight decay concerns matrices; every parameter is in exactly one group."""
    model = GPT(SMALL)
    matrices, others = make_optimizer(model, 1e-3, 0.1).param_groups
    assert (matrices["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() >= 2 for p in matrices["params"])
    assert len(matrices["params"]) + len(others["params"]) == len(list(model.parameters()))
