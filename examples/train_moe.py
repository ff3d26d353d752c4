"""A small mixture-of-experts transformer trained with expert parallelism, one file, top to bottom.

Every layer has several perceptrons, its *experts*, and a router that sends each token to two of them.
The ranks form a mesh of replicas x experts: the ranks of one row divide the experts among them, and
tokens travel to their experts and back (all-to-all, uneven: how many go where depends on the text).
Whatever is no expert is the same on every rank, and each rank reads its own text::

    python examples/train_moe.py                                    # one process has all experts
    torchrun --nproc-per-node 4 examples/train_moe.py               # 2 replicas of 2 ranks
    trainmover run --machines 4 --standbys 1 examples/train_moe.py  # machines can come and go

The lines marked (1) to (5) are what TrainMover asks for.  Line (4) has a ``with step:`` below it: what
ranks tell each other decides shapes here, and when a machine is lost in the middle of a step they hear
zeros that do not fit together.  The step is void then, and begun again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import trainmover  # (1)

# -- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The model's shape; the defaults give 0.4 million parameters, most of them in the experts."""

    layers: int = 2
    heads: int = 4
    width: int = 64
    context: int = 64
    experts: int = 4
    chosen: int = 2
    dropout: float = 0.1
    vocabulary: int = 256  # one entry per byte: no tokenizer to fetch


class Exchange(torch.autograd.Function):
    """Rows to other ranks and rows from them; gradients take the same ways back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], ranks: Any) -> Tensor:
        """``rows`` has ``sum(sent)`` rows, by receiver; the result ``sum(received)``, by sender."""
        ctx.sent, ctx.received, ctx.ranks = sent, received, ranks
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=ranks)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of each row, from the rank that it was sent to."""
        result = gradient.new_empty(sum(ctx.sent), *gradient.shape[1:])
        dist.all_to_all_single(result, gradient.contiguous(), ctx.sent, ctx.received, group=ctx.ranks)
        return result, None, None, None


class Experts(nn.Module):
    """The mixture: a router, and this rank's share of the experts.

    Attributes:
        balance: after a forward pass, a loss that is 1 when all experts are equally busy and grows
            when they are not (Switch Transformer, equation 4).
    """

    balance: Tensor

    def __init__(self, config: Config, ranks: dist.ProcessGroup) -> None:
        super().__init__()
        if config.experts % ranks.size():
            raise SystemExit(f"{config.experts} experts cannot be divided among {ranks.size()} ranks")
        self.config, self.ranks = config, ranks
        self.router = nn.Linear(config.width, config.experts, bias=False)
        every = [
            nn.Sequential(
                nn.Linear(config.width, 2 * config.width, bias=False),
                nn.GELU(),
                nn.Linear(2 * config.width, config.width, bias=False),
            )
            for _ in range(config.experts)  # all are drawn, so that each is the same wherever it lives
        ]
        share = config.experts // ranks.size()
        self.mine = nn.ModuleList(every[ranks.rank() * share :][:share])

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        likelihood = self.router(tokens).softmax(-1)
        weights, chosen = likelihood.topk(self.config.chosen)
        counts = chosen.flatten().bincount(minlength=self.config.experts)
        self.balance = self.config.experts * (counts / counts.sum() * likelihood.mean(0)).sum()

        by_expert = chosen.flatten().argsort(stable=True)
        rows = tokens.repeat_interleave(self.config.chosen, 0)[by_expert]
        answers = self._ask(rows, counts)[by_expert.argsort()].view(*weights.shape, -1)
        mixed = (answers * (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)).sum(1)
        return mixed.view_as(x)

    def _ask(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The experts' answers to ``rows``, of which the first ``counts[0]`` are for expert 0, and so on."""
        arriving = torch.empty_like(counts)  # by sender, and within it by own expert
        dist.all_to_all_single(arriving, counts, group=self.ranks)
        arriving = arriving.view(self.ranks.size(), -1)
        sent = counts.view(self.ranks.size(), -1).sum(1).tolist()
        received = arriving.sum(1).tolist()

        questions = Exchange.apply(rows, sent, received, self.ranks)
        whose = torch.arange(len(self.mine)).repeat(self.ranks.size()).repeat_interleave(arriving.flatten())
        by_expert = whose.argsort(stable=True)
        shares = questions[by_expert].split(arriving.sum(0).tolist())
        answers = torch.cat([expert(share) for expert, share in zip(self.mine, shares, strict=True)])
        return Exchange.apply(answers[by_expert.argsort()], received, sent, self.ranks)


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then the experts, each beside a residual path."""

    def __init__(self, config: Config, ranks: dist.ProcessGroup) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=False)
        self.attention = Attention(config)
        self.experts_norm = nn.LayerNorm(config.width, bias=False)
        self.experts = Experts(config, ranks)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.attention_norm(x)))
        return x + self.drop(self.experts(self.experts_norm(x)))


class Transformer(nn.Module):
    """A decoder-only transformer; ``ranks`` are those that have its experts."""

    def __init__(self, config: Config, ranks: dist.ProcessGroup) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, ranks) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for embedding in (self.token, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss over all positions, and the mean imbalance over all layers."""
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.drop(self.token(x) + self.place(places))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        balance = torch.stack([block.experts.balance for block in self.blocks]).mean()
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()), balance

    def own(self) -> list[nn.Parameter]:
        """The parameters of this rank's experts."""
        return [p for block in self.blocks for p in block.experts.mine.parameters()]


# -- the gradients -------------------------------------------------------------------------------


@torch.no_grad()
def average(parameters: list[nn.Parameter], ranks: dist.ProcessGroup, count: int) -> None:
    """Sum the gradients over ``ranks``, all in one call, and divide by ``count``."""
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat, group=ranks)
    flat /= count
    for p, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(mean.view_as(p))


@torch.no_grad()
def clip(
    shared: list[nn.Parameter], own: list[nn.Parameter], largest: float, ranks: dist.ProcessGroup
) -> None:
    """Scale gradients down to a norm of at most ``largest``, counting the experts of all ``ranks``."""
    square = sum_of_squares(own)
    dist.all_reduce(square, group=ranks)
    norm = (square + sum_of_squares(shared)).sqrt()
    for p in [*shared, *own]:
        p.grad.mul_((largest / (norm + 1e-6)).clamp(max=1.0))


def sum_of_squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Of their gradients."""
    return torch.stack([p.grad.square().sum() for p in parameters]).sum()


# -- the data ------------------------------------------------------------------------------------


def read_text(data: Path | None, limit: int) -> Tensor:
    """Up to ``limit`` bytes of a file, or of Python's standard library, as a uint8 tensor."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py")) if data is None else [data]
    text = bytearray()
    for path in files:
        if len(text) < limit:
            text += path.read_bytes()
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class Batches:
    """Random windows of the text, a stream of its own for every rank.

    A spare that takes a rank's place loads that rank's state and goes on with its stream.
    """

    def __init__(self, text: Tensor, batch_size: int, context: int, *, seed: int, rank: int) -> None:
        if len(text) < context + 2:
            raise SystemExit(f"the text has {len(text)} bytes; one window needs {context + 2}")
        self.text, self.batch_size, self.context = text, batch_size, context
        self.rank, self.position = rank, 0
        self.generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64, each of shape (batch_size, context)."""
        last = len(self.text) - self.context
        starts = torch.randint(last, (self.batch_size, 1), generator=self.generator)
        windows = self.text[starts + torch.arange(self.context + 1)].long()
        self.position += 1
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """Numbers and one tensor."""
        return {"rank": self.rank, "position": self.position, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the stream that ``state`` was taken from."""
        self.rank, self.position = state["rank"], state["position"]
        self.generator.set_state(state["generator"])


# -- the run -------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The command line."""
    default = Config()
    parser = argparse.ArgumentParser(description="Train a small mixture of experts on text, byte by byte.")
    add = parser.add_argument
    add("--steps", type=int, default=100)
    add("--expert-ranks", type=int, default=None, help="ranks that share the experts; default: 2, if even")
    add("--data", type=Path, default=None, help="a file; default: the standard library")
    add("--data-limit", type=int, default=2_000_000, help="bytes of text to read at most")
    add("--batch-size", type=int, default=4, help="windows per rank and step")
    add("--context", type=int, default=default.context, help="bytes per window")
    add("--layers", type=int, default=default.layers)
    add("--width", type=int, default=default.width)
    add("--experts", type=int, default=default.experts, help="experts in each layer")
    add("--chosen", type=int, default=default.chosen, help="experts that each token is sent to")
    add("--dropout", type=float, default=default.dropout)
    add("--balance", type=float, default=0.01, help="weight of the loss that keeps experts equally busy")
    add("--lr", type=float, default=2e-3)
    add("--warmup", type=int, default=10, help="steps until the full learning rate")
    add("--clip", type=float, default=1.0, help="largest norm of the gradients")
    add("--seed", type=int, default=int(os.environ.get("TRAINMOVER_SEED", "1337")))
    add("--print-every", type=int, default=10)
    add("--times", type=Path, default=None, help="rank 0 writes the seconds of every step here, as JSON")
    return parser.parse_args()


def make_mesh(expert_ranks: int | None, world_size: int) -> DeviceMesh:
    """The ranks by replica and place among the experts; the latter are neighbours."""
    share = expert_ranks or (1 if world_size % 2 else 2)
    if world_size % share:
        raise SystemExit(f"{world_size} ranks cannot be divided into groups of {share} (--expert-ranks)")
    return init_device_mesh("cpu", (world_size // share, share), mesh_dim_names=("replica", "expert"))


def learning_rate(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def main() -> None:
    """Train."""
    args = arguments()
    job = trainmover.join()  # (2) in the place of init_process_group
    mesh = make_mesh(args.expert_ranks, job.world_size)
    replicas, sharers = mesh["replica"].get_group(), mesh["expert"].get_group()

    config = Config(
        layers=args.layers,
        width=args.width,
        context=args.context,
        experts=args.experts,
        chosen=args.chosen,
        dropout=args.dropout,
    )
    torch.manual_seed(args.seed)
    model = Transformer(config, sharers)
    torch.manual_seed(args.seed + 1 + job.rank)  # from here on each rank has its own dropout
    own = model.own()
    shared = [p for p in model.parameters() if all(p is not other for other in own)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, args.warmup, args.steps)
    )
    text = read_text(args.data, args.data_limit)
    data = Batches(text, args.batch_size, args.context, seed=args.seed, rank=job.rank)
    if job.rank == 0:
        print(f"replicas x expert ranks = {tuple(mesh.shape)}, {config.experts} experts a layer", flush=True)

    times: list[float] = []
    before = time.perf_counter()
    job.track(model=model, optimizer=optimizer, scheduler=scheduler, data=data)  # (3)
    for step in job.steps(args.steps):  # (4)
        with step:
            x, y = data.next_batch()
            loss, balance = model(x, y)
            (loss + args.balance * balance).backward()
            average(shared, dist.group.WORLD, job.world_size)
            average(own, replicas, job.world_size)  # tokens of a whole row have met in its experts
            clip(shared, own, args.clip, sharers)
            step.log(loss=loss, balance=balance)  # (5) before optimizer.step()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        if step.committed and job.rank == 0 and int(step) % args.print_every == 0:
            print(f"step {step}  loss {loss.item():.4f}  balance {balance.item():.3f}", flush=True)
        now = time.perf_counter()
        times.append(now - before)
        before = now
    if args.times is not None and job.rank == 0:
        args.times.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
