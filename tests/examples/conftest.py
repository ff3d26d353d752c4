"""The fixture ``script``: an example's ``main`` on several forked ranks, as torchrun would run it.

In float64, so that what another order of additions changes is too small to be printed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.conformance.ranks import Ranks

Script = Callable[..., list[str]]
"""``script(name, size, *options)``: what the ranks have printed, a line each."""


LIMIT = 240.0
"""Seconds for a run: ranks share what processors there are, and Gloo's wait badly for one another."""


def run(_rank: int, _size: int, *, module: str, options: list[str], port: int) -> str:
    """Be one rank of an example; what it printed."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [module, *options]
    torch.set_default_dtype(torch.float64)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(module).main()
    return printed.getvalue()


@pytest.fixture
def script(ranks: Ranks) -> Script:
    """Runs examples over Gloo."""

    def start(name: str, size: int, *options: Any) -> list[str]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        printed = ranks.run(
            run,
            "",
            size,
            limit=LIMIT,
            module=f"examples.{name}",
            options=[str(option) for option in options],
            port=port,
        )
        return [line for text in printed for line in text.splitlines()]

    return start


PRINTED = 6e-5
"""Losses are printed with four digits after the point."""


@pytest.fixture
def double() -> Iterator[None]:
    """In the test's process, too, numbers are float64 where nothing else is said."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def losses(lines: list[str]) -> list[float]:
    """The losses among printed lines."""
    return [float(line.split("loss ")[1].split()[0]) for line in lines if "loss " in line]
