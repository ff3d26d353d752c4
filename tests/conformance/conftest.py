"""Fixtures of the conformance tests: processes that are forked, not started."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some of torch's packages use what torch itself deprecates
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

from tests.conformance.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Whoever runs a program on several ranks."""
    made = Ranks()
    yield made
    made.close()
