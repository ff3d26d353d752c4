"""A GPT trained with data, tensor and pipeline parallelism at once, one file, top to bottom.

The ranks form a mesh of data x pipe x tensor.  Neighbouring ranks share every matrix of a stage
(*tensor*, DTensor plans), stages follow each other (*pipe*, 1F1B over microbatches), and whole
pipelines run side by side on different text (*data*, gradients averaged).  With twelve ranks, two
on a machine, a machine is the two halves of one stage::

    torchrun --nproc-per-node 12 examples/train_gpt_3d.py
    trainmover run --machines 6 --ranks-per-machine 2 --standbys 1 examples/train_gpt_3d.py
    python examples/train_gpt_3d.py --data-ranks 1 --pipe-ranks 1 --tensor-ranks 1  # one process

The lines marked (1) to (5) are what TrainMover asks for.  Line (4) has a ``with step:`` below it, because
a pipeline may trip over what it hears when a machine is lost in its very first exchange.  With line (6) a
whole pipeline can pause when a machine of it is lost for good: the others compute its share of each batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import trainmover  # (1)

# -- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """The model's shape; the defaults give 0.2 million parameters, a layer for each of three stages."""

    layers: int = 3
    heads: int = 4
    width: int = 64
    context: int = 64
    dropout: float = 0.1
    vocabulary: int = 256  # one entry per byte: no tokenizer to fetch
    seed: int = 1337


class Attention(nn.Module):
    """Causal self-attention over the heads that this rank has.

    The rows of ``qkv`` are ordered by head, so a half of them is half of the heads, whole.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_size = config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, 3, self.head_size))  # batch, length, own heads, 3, size
        q, k, v = heads.permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each beside a residual path.

    Dropout is where all tensor ranks of a stage have the same activations, so they must, and do,
    draw the same numbers.
    """

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


class Embedding(nn.Module):
    """What a byte is, plus where it stands."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.token(tokens) + self.place(places))


class Head(nn.Module):
    """From the residual path to logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.logits = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


class Stage(nn.Module):
    """Stage ``index`` of ``count``: its share of the layers; the first embeds, the last has the head.

    Every layer has a seed of its own, so the model is the same however it is cut.  Layers are numbered
    within the stage: two stages between the ends have the same names, and only the weights differ.
    """

    def __init__(self, config: Config, index: int, count: int) -> None:
        super().__init__()
        if config.layers % count:
            raise SystemExit(f"{config.layers} layers cannot be cut into {count} equal stages")
        share = config.layers // count
        self.embedding = initialised(Embedding, config, 0) if index == 0 else nn.Identity()
        self.blocks = nn.Sequential(
            *(initialised(Block, config, 1 + index * share + layer) for layer in range(share))
        )
        self.head = initialised(Head, config, config.layers + 1) if index == count - 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x)))


def initialised(kind: type[nn.Module], config: Config, number: int) -> nn.Module:
    """A part of the model with weights that depend on the seed and its number alone."""
    torch.manual_seed(config.seed * 1009 + number)
    module = kind(config)
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            # Layers that write to the residual path start smaller, so depth does not add noise.
            writes = name in ("attention.out.weight", "mlp.2.weight")
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if writes else 0.02)
    return module


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions of a microbatch."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# -- tensor parallel: the two halves of a stage -----------------------------------------------------


def cut(stage: Stage, mesh: DeviceMesh) -> None:
    """Turn the stage's matrices into DTensors, each rank of the one-dimensional ``mesh`` with its part.

    Between modules every rank has the whole activation; a column-wise and a row-wise layer after it
    need one sum between them.  Norms stay whole on every rank.
    """
    plan: dict[str, Any] = {
        "embedding.token": ColwiseParallel(output_layouts=Replicate()),
        "embedding.place": ColwiseParallel(output_layouts=Replicate()),
        "blocks.*.attention.qkv": ColwiseParallel(),
        "blocks.*.attention.out": RowwiseParallel(),
        "blocks.*.mlp.0": ColwiseParallel(),
        "blocks.*.mlp.2": RowwiseParallel(),
        "head.logits": ColwiseParallel(output_layouts=Replicate()),
    }
    there = {name for name, _ in stage.named_modules()}
    plan = {name: how for name, how in plan.items() if "*" in name or name in there}
    parallelize_module(stage, mesh, plan, src_data_rank=None)  # all ranks drew the same weights


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# -- data parallel: the same stage in several pipelines --------------------------------------------


class Replicated(nn.Module):
    """Every data rank has all of its stage's optimizer state; gradients are averaged."""

    def __init__(self, groups: list[list[nn.Parameter]], ranks: dist.ProcessGroup) -> None:
        super().__init__()
        self.groups, self.ranks = groups, ranks

    def before_forward(self) -> None:
        """Nothing: the parameters are there."""

    @torch.no_grad()
    def after_backward(self) -> None:
        """Average the gradients over the data ranks, all in one call."""
        gradients = [local(p.grad) for group in self.groups for p in group]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.ranks)
        flat /= self.ranks.size()
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def summed_over(self) -> list[dist.ProcessGroup]:
        """No two data ranks have different gradients to count."""
        return []


class Sharded(nn.Module):
    """Every data rank keeps and updates one slice of its stage's parameters (ZeRO, stage 1).

    The slices are the state.  The parameters are put together from them at the beginning of a step
    and not after the update: a step that is begun again then begins from the same slices, whatever the
    one before had half done.
    """

    def __init__(self, groups: list[list[nn.Parameter]], ranks: dist.ProcessGroup) -> None:
        super().__init__()
        self.whole, self.ranks = groups, ranks
        self.slices = nn.ParameterList(
            self._flat([local(p.detach()) for p in group]).chunk(ranks.size())[ranks.rank()].clone()
            for group in groups
        )

    @property
    def groups(self) -> list[list[nn.Parameter]]:
        """What the optimizer updates."""
        return [[part] for part in self.slices]

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        """One after another, with zeros up to a multiple of the number of ranks."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        return F.pad(flat, (0, -len(flat) % self.ranks.size()))

    @torch.no_grad()
    def before_forward(self) -> None:
        """Put the parameters together from everybody's slices."""
        for part, parameters in zip(self.slices, self.whole, strict=True):
            flat = part.new_empty(len(part) * self.ranks.size())
            dist.all_gather_into_tensor(flat, part.detach(), group=self.ranks)
            for parameter in parameters:
                mine = local(parameter)
                mine.copy_(flat[: mine.numel()].view_as(mine))
                flat = flat[mine.numel() :]

    @torch.no_grad()
    def after_backward(self) -> None:
        """Average the gradients over the data ranks, each its own slice."""
        for part, parameters in zip(self.slices, self.whole, strict=True):
            part.grad = torch.empty_like(part)
            flat = self._flat([local(p.grad) for p in parameters])
            dist.reduce_scatter_tensor(part.grad, flat, group=self.ranks)
            part.grad /= self.ranks.size()

    def summed_over(self) -> list[dist.ProcessGroup]:
        """Each data rank has a different slice."""
        return [self.ranks]


@torch.no_grad()
def clip(
    groups: list[list[nn.Parameter]], largest: float, mesh: DeviceMesh, more: list[dist.ProcessGroup]
) -> Tensor:
    """Scale gradients down so that their norm over the whole model is at most ``largest``; the norm before.

    ``groups`` are the matrices, of which each tensor rank has a part, and the norms, which every tensor
    rank has whole: those count once.
    """
    matrices, norms = (torch.stack([local(p.grad).square().sum() for p in group]).sum() for group in groups)
    square = matrices + norms / mesh["tensor"].size()
    for ranks in [mesh["tensor"].get_group(), mesh["pipe"].get_group(), *more]:
        dist.all_reduce(square, group=ranks)
    norm = square.sqrt()
    for parameter in itertools.chain(*groups):
        local(parameter.grad).mul_((largest / (norm + 1e-6)).clamp(max=1.0))
    return norm


# -- pipeline parallel: one stage after another --------------------------------------------------------


def pipeline(
    module: nn.Module, mesh: DeviceMesh, config: Config, microbatch: int, count: int
) -> tuple[PipelineStage, Schedule1F1B]:
    """This rank's stage and its schedule, for ``count`` microbatches of ``microbatch`` windows.

    The shapes are given, or else the stages would send them to each other, pickled, in the first step.
    """
    ranks = mesh["pipe"].get_group()
    index, stages = ranks.rank(), ranks.size()
    tokens = torch.zeros(microbatch, config.context, dtype=torch.int64)
    hidden = torch.zeros(microbatch, config.context, config.width, requires_grad=True)
    logits = torch.zeros(microbatch, config.context, config.vocabulary, requires_grad=True)
    stage = PipelineStage(
        module,
        index,
        stages,
        torch.device("cpu"),
        input_args=tokens if index == 0 else hidden,
        output_args=logits if index == stages - 1 else hidden,
        group=ranks,
    )

    def share_of_loss(logits: Tensor, target: Tensor) -> Tensor:
        return loss_of(logits, target) / count

    # Not by the schedule, which would divide all gradients that there are, an earlier share's too.
    return stage, Schedule1F1B(stage, count, loss_fn=share_of_loss, scale_grads=False)


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
    """Random windows of the text, by step and share: all ranks of a pipeline draw the same.

    Which windows a share has follows from these two numbers alone, whoever computes it.
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
    parser = argparse.ArgumentParser(
        description="Train a small GPT with data, tensor and pipeline parallelism."
    )
    add = parser.add_argument
    add("--steps", type=int, default=100)
    add("--data-ranks", type=int, default=2, help="pipelines side by side")
    add("--pipe-ranks", type=int, default=3, help="stages of a pipeline")
    add("--tensor-ranks", type=int, default=2, help="parts of each matrix")
    add("--optimizer", choices=("plain", "sharded"), default="plain", help="sharded: over the data ranks")
    add("--compile", action="store_true", help="compile the stage with torch.compile")
    add("--data", type=Path, default=None, help="a file; default: the standard library")
    add("--data-limit", type=int, default=2_000_000, help="bytes of text to read at most")
    add("--microbatch-size", type=int, default=2, help="windows per microbatch")
    add("--microbatches", type=int, default=4, help="microbatches per pipeline and step; at least the stages")
    add("--context", type=int, default=default.context, help="bytes per window")
    add("--layers", type=int, default=default.layers)
    add("--heads", type=int, default=default.heads)
    add("--width", type=int, default=default.width)
    add("--dropout", type=float, default=default.dropout)
    add("--lr", type=float, default=2e-3)
    add("--warmup", type=int, default=10, help="steps until the full learning rate")
    add("--weight-decay", type=float, default=0.1)
    add("--clip", type=float, default=1.0, help="largest norm of the gradients")
    add("--seed", type=int, default=int(os.environ.get("TRAINMOVER_SEED", "1337")))
    add("--print-every", type=int, default=10)
    add("--times", type=Path, default=None, help="rank 0 writes the seconds of every step here, as JSON")
    return parser.parse_args()


def make_mesh(args: argparse.Namespace, world_size: int) -> DeviceMesh:
    """The ranks by data, pipe and tensor; the last changes fastest, so tensor ranks are neighbours."""
    shape = (args.data_ranks, args.pipe_ranks, args.tensor_ranks)
    if math.prod(shape) != world_size:
        raise SystemExit(
            f"data x pipe x tensor is {' x '.join(map(str, shape))}, which makes {math.prod(shape)} ranks, "
            f"but there are {world_size}; say --data-ranks, --pipe-ranks and --tensor-ranks"
        )
    return init_device_mesh("cpu", shape, mesh_dim_names=("data", "pipe", "tensor"))


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
    mesh = make_mesh(args, job.world_size)
    _, index, _ = mesh.get_coordinate()

    config = Config(args.layers, args.heads, args.width, args.context, args.dropout, seed=args.seed)
    model = Stage(config, index, args.pipe_ranks)
    cut(model, mesh["tensor"])
    if args.compile:
        model.compile()
    stage, schedule = pipeline(model, mesh, config, args.microbatch_size, args.microbatches)

    matrices = [p for p in model.parameters() if p.dim() >= 2]  # in parts on the tensor ranks, and decayed
    norms = [p for p in model.parameters() if p.dim() < 2]  # whole on each, and left alone
    kind = Sharded if args.optimizer == "sharded" else Replicated
    parallel = kind([matrices, norms], mesh["data"].get_group())
    decayed, others = parallel.groups
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, args.warmup, args.steps)
    )
    text = read_text(args.data, args.data_limit)
    batch_size = args.microbatch_size * args.microbatches
    data = Batches(text, batch_size, args.context, seed=args.seed)
    torch.manual_seed(args.seed * 2003 + index)  # dropout: one for each stage, and each share of a batch
    if job.rank == 0:
        print(f"data x pipe x tensor = {tuple(mesh.shape)}, {args.optimizer} optimizer", flush=True)

    times: list[float] = []
    before = time.perf_counter()
    job.track(model=model, parallel=parallel, optimizer=optimizer, scheduler=scheduler)  # (3)
    for step in job.steps(args.steps):  # (4)
        with step:
            model.zero_grad()
            parallel.before_forward()
            for share in step.shares(
                group=mesh["data"].get_group()
            ):  # (6) more than one while others are away
                x, y = data.batch(step.index, share.index)
                losses: list[Tensor] = []
                given = (x,) if stage.is_first else ()
                wanted = {"target": y, "losses": losses} if stage.is_last else {}
                schedule.step(*given, return_outputs=False, **wanted)
                step.log(loss=torch.stack(losses).sum() if stage.is_last else None)  # (5) who has one says it
            parallel.after_backward()
            step.log(norm=clip(parallel.groups, args.clip, mesh, parallel.summed_over()))
            optimizer.step()
            scheduler.step()
        if not step.committed and step == 0:
            # The stages' first exchange, how to talk, was interrupted: all of them begin it again.
            stage, schedule = pipeline(model, mesh, config, args.microbatch_size, args.microbatches)
        tells = mesh.get_coordinate() == (0, args.pipe_ranks - 1, 0)  # the first with a loss
        if tells and step.committed and int(step) % args.print_every == 0:
            print(f"step {step}  loss {step.metrics['loss']:.4f}", flush=True)
        now = time.perf_counter()
        times.append(now - before)
        before = now
    if args.times is not None and job.rank == 0:
        args.times.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
