"""Small models and the data they are trained on, the same for every back end and version of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

WIDTH = 16


def mlp(width: int = WIDTH, depth: int = 3) -> nn.Sequential:
    """Linear layers with GELU between them; always the same weights."""
    torch.manual_seed(7)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


class Block(nn.Module):
    """A feed-forward block with a norm, as transformers have it."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual around the two layers."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


def batch(rank: int, step: int, rows: int = 6, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one rank and step."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, width, generator=source), torch.randn(rows, 4, generator=source)


def train(
    model: nn.Module,
    parameters: Iterable[nn.Parameter],
    rank: int,
    steps: int = 3,
    optimizer: torch.optim.Optimizer | None = None,
    before_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train on the rank's own batches; losses by step."""
    optimizer = optimizer or torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for step in range(steps):
        x, y = batch(rank, step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if before_step is not None:
            before_step()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, copied; sharded ones are gathered."""
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A plain copy of a tensor or DTensor."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()
