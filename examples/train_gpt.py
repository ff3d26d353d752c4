"""A small GPT, trained data parallel on real text: next-byte prediction, one file, top to bottom.

It is an ordinary ``DistributedDataParallel`` script.  The lines marked (1) to (5) are all that
TrainMover asks for; with them a machine can be lost or moved away in the middle of training and
the run still ends in the same bytes.  Line (6) is for the day when no machine is left to take a lost
one's place: the others then compute its share of each batch (``--on-exhausted shrink``).  The same file
runs in three ways::

    python examples/train_gpt.py                                    # one process
    torchrun --nproc-per-node 3 examples/train_gpt.py               # plain torchrun, Gloo
    trainmover run --machines 3 --standbys 1 examples/train_gpt.py  # machines can come and go

Without ``--data`` the text is the Python standard library of the running interpreter, so that
nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sysconfig
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import trainmover  # (1)

# -- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The model's shape; the defaults give 3.2 million parameters."""

    layers: int = 4
    heads: int = 4
    width: int = 256
    context: int = 96
    dropout: float = 0.1
    vocabulary: int = 256  # one entry per byte: no tokenizer to fetch


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each beside a residual path."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width, bias=False),
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.attention_norm(x)))
        return x + self.drop(self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    """A decoder-only transformer. ``forward`` returns the mean loss over all positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.token.weight  # weight tying
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                # Layers that write to the residual path start smaller, so depth does not add noise.
                writes = name.endswith(("attention.out.weight", "mlp.2.weight"))
                std = 0.02 / math.sqrt(2 * config.layers) if writes else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.drop(self.token(x) + self.place(places))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


# -- the data ------------------------------------------------------------------------------------


def text_files(data: Path | None) -> Iterator[Path]:
    """The files to read, always in the same order."""
    if data is None:
        library = Path(sysconfig.get_path("stdlib"))
        for path in sorted(library.rglob("*.py")):
            if "site-packages" not in path.parts:
                yield path
    elif data.is_dir():
        yield from sorted(path for path in data.rglob("*") if path.is_file())
    else:
        yield data


def read_text(data: Path | None, limit: int) -> Tensor:
    """Up to ``limit`` bytes of text as a uint8 tensor; files that are not text are left out."""
    text = bytearray()
    for path in text_files(data):
        content = path.read_bytes()
        if b"\0" not in content:
            text += content
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class Batches:
    """Random windows of the text, by step and share.

    Which windows a share of a step's batch has follows from these two numbers alone, so it does not
    matter who computes it, and there is no position to keep: whoever takes a rank's place goes on with
    exactly the batch that would have come next.
    """

    def __init__(self, text: Tensor, batch_size: int, context: int, *, seed: int) -> None:
        if len(text) < context + 2:
            raise SystemExit(f"the text has {len(text)} bytes; one window needs {context + 2}")
        self.text, self.batch_size, self.context, self.seed = text, batch_size, context, seed

    def batch(self, step: int, share: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64, each of shape (batch_size, context)."""
        last = len(self.text) - self.context
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + step) * 65_537 + share)
        starts = torch.randint(last, (self.batch_size, 1), generator=generator)
        windows = self.text[starts + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]


# -- the run -------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The command line."""
    default = Config()
    parser = argparse.ArgumentParser(description="Train a small GPT on text, byte by byte.")
    add = parser.add_argument
    add("--steps", type=int, default=200)
    add("--data", type=Path, default=None, help="a file or a folder; default: the standard library")
    add("--data-limit", type=int, default=8_000_000, help="bytes of text to read at most")
    add("--batch-size", type=int, default=6, help="windows per rank and step")
    add("--context", type=int, default=default.context, help="bytes per window")
    add("--layers", type=int, default=default.layers)
    add("--heads", type=int, default=default.heads)
    add("--width", type=int, default=default.width)
    add("--dropout", type=float, default=default.dropout)
    add("--lr", type=float, default=1e-3)
    add("--warmup", type=int, default=20, help="steps until the full learning rate")
    add("--weight-decay", type=float, default=0.1)
    add("--clip", type=float, default=1.0, help="largest norm of the gradients")
    add("--seed", type=int, default=int(os.environ.get("TRAINMOVER_SEED", "1337")))
    add("--compile", action="store_true", help="compile the model with torch.compile")
    add("--print-every", type=int, default=10)
    add("--times", type=Path, default=None, help="rank 0 writes the seconds of every step here, as JSON")
    return parser.parse_args()


def make_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norms alone."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


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

    config = Config(args.layers, args.heads, args.width, args.context, args.dropout)
    torch.manual_seed(args.seed)
    gpt = GPT(config)
    if args.compile:
        gpt.compile()
    model = DistributedDataParallel(gpt)
    torch.manual_seed(args.seed + 1)  # the same everywhere: each share has dropout of its own
    optimizer = make_optimizer(model, args.lr, args.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, args.warmup, args.steps)
    )
    text = read_text(args.data, args.data_limit)
    data = Batches(text, args.batch_size, args.context, seed=args.seed)
    if job.rank == 0:
        size = sum(p.numel() for p in model.parameters())
        print(f"{size / 1e6:.1f} M parameters, {len(text) / 1e6:.1f} MB of text, {job.world_size} ranks")

    times: list[float] = []
    before = time.perf_counter()
    job.track(model=model, optimizer=optimizer, scheduler=scheduler)  # (3)
    for step in job.steps(args.steps):  # (4)
        for share in step.shares():  # (6) one, or more while another rank is away
            x, y = data.batch(step.index, share.index)
            with nullcontext() if share.last else model.no_sync():
                loss = model(x, y)
                loss.backward()
            step.log(loss=loss)  # (5) before optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step.committed and job.rank == 0 and int(step) % args.print_every == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)
        now = time.perf_counter()
        times.append(now - before)
        before = now
    if args.times is not None and job.rank == 0:
        args.times.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
