"""Three dimensions of parallelism compute what one process computes, and its parts do as they say."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from torch import nn

from examples.train_gpt_3d import (
    Batches,
    Config,
    Stage,
    learning_rate,
    loss_of,
    make_mesh,
    pipeline,
    read_text,
)
from tests.examples.conftest import LIMIT, PRINTED, Script, losses
from tests.training.seats import Answers, sitting

pytestmark = pytest.mark.timeout(2 * LIMIT)

STEPS, MICROBATCH, PIECES = 4, 1, 2
SMALL = Config(layers=2, heads=2, width=32, context=16, dropout=0.0, seed=7)
OPTIONS = ("--layers", 2, "--heads", 2, "--width", 32, "--context", 16, "--dropout", 0, "--seed", 7)
OPTIONS += ("--steps", STEPS, "--microbatch-size", MICROBATCH, "--microbatches", PIECES, "--print-every", 1)
OPTIONS += ("--warmup", 2, "--lr", 0.01, "--clip", 0.5, "--data-limit", 100_000)


def shape(data: int, pipe: int, tensor: int) -> tuple[object, ...]:
    """The options for a mesh."""
    return ("--data-ranks", data, "--pipe-ranks", pipe, "--tensor-ranks", tensor)


def in_one_process(streams: int) -> list[float]:
    """The losses of the first stream, from an ordinary loop over the whole model and the whole batch."""
    model = Stage(SMALL, 0, 1)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    norms = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, 2, STEPS))
    text, size = read_text(None, 100_000), MICROBATCH * PIECES
    data = Batches(text, size, 16, seed=7)
    found = []
    for step in range(STEPS):
        shares = [data.batch(step, share) for share in range(streams)]
        x, y = (torch.cat(parts) for parts in zip(*shares, strict=True))
        logits = model(x)
        loss_of(logits, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        found.append(loss_of(logits[:size], y[:size]).item())
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mesh", "optimizer"),
    [((1, 1, 1), "plain"), ((1, 2, 2), "plain"), ((2, 2, 2), "plain"), ((2, 2, 2), "sharded")],
)
def test_computes_what_one_process_computes(
    script: Script, mesh: tuple[int, int, int], optimizer: str
) -> None:
    """The loss curve is that of an ordinary loop, in which clipping acts and the learning rate moves."""
    size = mesh[0] * mesh[1] * mesh[2]
    printed = losses(script("train_gpt_3d", size, *OPTIONS, *shape(*mesh), "--optimizer", optimizer))
    expected = in_one_process(mesh[0])
    assert printed == pytest.approx(expected, abs=PRINTED)
    assert expected[0] - expected[-1] > 0.2


@pytest.mark.usefixtures("double")
def test_dropout_is_drawn_alike_by_those_who_share_a_stage(script: Script) -> None:
    """With dropout, two tensor ranks compute what one computes: they draw the same numbers."""
    options = (*OPTIONS, "--dropout", 0.2)
    one = losses(script("train_gpt_3d", 2, *options, *shape(1, 2, 1)))
    two = losses(script("train_gpt_3d", 4, *options, *shape(1, 2, 2)))
    assert one == pytest.approx(two, abs=PRINTED)
    assert one != pytest.approx(in_one_process(1), abs=PRINTED)


def test_the_model_is_the_same_however_it_is_cut() -> None:
    """Two stages have the weights of one, and the same names in both middles of four."""
    whole, parts = Stage(SMALL, 0, 1), [Stage(SMALL, index, 2) for index in range(2)]
    flat = [p for part in parts for p in part.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), flat, strict=True))
    deep = Config(layers=4, heads=2, width=32, context=16)
    middles = [dict(Stage(deep, index, 4).named_parameters()) for index in (1, 2)]
    assert list(middles[0]) == list(middles[1])
    name = "blocks.0.mlp.0.weight"
    assert not torch.equal(middles[0][name], middles[1][name])


def test_a_mesh_that_does_not_fit_is_refused(script: Script) -> None:
    """The message says how many ranks the mesh has and which options change that."""
    with pytest.raises(
        AssertionError, match=r"is 2 x 3 x 2, which makes 12 ranks, but there are 1; say --data"
    ):
        script("train_gpt_3d", 1)


def test_layers_that_cannot_be_cut_are_refused() -> None:
    """Stages have the same number of layers each."""
    with pytest.raises(SystemExit, match="2 layers cannot be cut into 3 equal stages"):
        Stage(SMALL, 0, 3)


def test_a_share_has_the_same_text_whoever_computes_it() -> None:
    """Step and share make the windows."""
    text = torch.arange(5000).remainder(256).to(torch.uint8)
    one, other = (Batches(text, 4, 16, seed=7) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.batch(3, 1), other.batch(3, 1), strict=True))
    assert not torch.equal(one.batch(3, 1)[0], one.batch(3, 0)[0])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_first_exchange_that_is_interrupted_is_begun_again(index: int) -> None:
    """Zeros from lost peers make the schedule raise; stage and schedule made anew work."""
    config = Config(layers=3, heads=2, width=8, context=4)
    x = torch.zeros(3, 4, dtype=torch.int64)
    given, wanted = ((x,) if index == 0 else ()), ({"target": x} if index == 2 else {})
    with sitting(index, 3) as communicator:
        mesh = make_mesh(Namespace(data_ranks=1, pipe_ranks=3, tensor_ranks=1), 3)
        model = Stage(config, index, 3)
        _, schedule = pipeline(model, mesh, config, 1, 3)
        communicator.player = Answers(0)
        with pytest.raises((RuntimeError, EOFError, ValueError)):
            schedule.step(*given, **wanted)
        communicator.player = Answers(1)
        _, schedule = pipeline(model, mesh, config, 1, 3)
        schedule.step(*given, **wanted)
        communicator.player = Answers(0)  # from now on zeros are a result like any other
        schedule.step(*given, **wanted)
        assert all(p.grad is not None for p in model.parameters())
