"""A mixture of experts whose experts are on several ranks computes what one process computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from examples.train_moe import Batches, Config, Experts, Transformer, learning_rate, read_text
from tests.conformance.ranks import Ranks
from tests.examples.conftest import LIMIT, PRINTED, Script, losses

pytestmark = pytest.mark.timeout(2 * LIMIT)

STEPS, ROWS = 5, 2
SMALL = Config(layers=2, width=32, context=16, dropout=0.0)
OPTIONS = ("--layers", 2, "--width", 32, "--context", 16, "--dropout", 0, "--seed", 7)
OPTIONS += ("--steps", STEPS, "--batch-size", ROWS, "--print-every", 1)
OPTIONS += ("--warmup", 2, "--lr", 0.01, "--clip", 0.5, "--data-limit", 100_000)


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup | None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def in_one_process(streams: int, ranks: dist.ProcessGroup) -> list[float]:
    """The losses of the first stream, from an ordinary loop that sees all streams and has all experts."""
    torch.manual_seed(7)
    model = Transformer(SMALL, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, 2, STEPS))
    text = read_text(None, 100_000)
    data = [Batches(text, ROWS, 16, seed=7, rank=stream) for stream in range(streams)]
    found = []
    for _ in range(STEPS):
        every = [model(*one.next_batch()) for one in data]
        sum(loss + 0.01 * balance for loss, balance in every).div(streams).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        found.append(every[0][0].item())
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("size", "share"), [(1, 1), (2, 2), (4, 2), (4, 4)])
def test_computes_what_one_process_computes(
    script: Script, alone: dist.ProcessGroup, size: int, share: int
) -> None:
    """The loss curve does not depend on where the experts are."""
    printed = losses(script("train_moe", size, *OPTIONS, "--expert-ranks", share))
    expected = in_one_process(size, alone)
    assert printed == pytest.approx(expected, abs=PRINTED)
    assert expected[0] - expected[-1] > 0.3


def mixed(_rank: int, _size: int) -> list[torch.Tensor]:
    """What the experts of two ranks answer, and the gradients of what they were asked."""
    torch.manual_seed(3)
    experts = Experts(SMALL, dist.group.WORLD)
    x = torch.randn(2, 5, 32, requires_grad=True)
    answer = experts(x)
    answer.square().sum().backward()
    assert x.grad is not None
    return [answer.detach(), x.grad]


def test_each_token_is_answered_by_its_own_experts(ranks: Ranks, alone: dist.ProcessGroup) -> None:
    """Two ranks with the same tokens get, each for itself, what a rank with all experts gets."""
    torch.manual_seed(3)
    experts = Experts(SMALL, alone)
    x = torch.randn(2, 5, 32)
    tokens, answers = x.flatten(0, 1), []
    for token in tokens:
        weights, chosen = experts.router(token).softmax(-1).topk(2)
        parts = [
            experts.mine[int(i)](token) * w / weights.sum() for i, w in zip(chosen, weights, strict=True)
        ]
        answers.append(parts[0] + parts[1])
    expected = torch.stack(answers).view_as(x)
    torch.testing.assert_close(experts(x), expected)
    one, two = ranks.run(mixed, "trainmover", 2)
    torch.testing.assert_close(one[0], expected)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_balance_is_one_when_all_experts_are_equally_busy(alone: dist.ProcessGroup) -> None:
    """And larger when one gets all tokens."""
    experts = Experts(Config(width=4, experts=4, chosen=1), alone)
    with torch.no_grad():
        experts.router.weight.copy_(torch.eye(4) * 20)
    experts(torch.eye(4).view(1, 4, 4))
    assert experts.balance.item() == pytest.approx(1.0, abs=1e-3)
    experts(torch.eye(4)[:1].expand(1, 4, 4))
    assert experts.balance.item() == pytest.approx(4.0, abs=1e-3)


def test_experts_that_cannot_be_divided_are_refused(script: Script) -> None:
    """Every rank has the same number of them."""
    with pytest.raises(AssertionError, match="4 experts cannot be divided among 3 ranks"):
        script("train_moe", 3, *OPTIONS, "--expert-ranks", 3)
