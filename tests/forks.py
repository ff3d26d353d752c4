"""Processes of tests that want torch: forked from one that has loaded it.

To load torch takes a fresh process seconds, and a fork milliseconds.  The server of forks is a process of its
own, without threads; each process of pytest has at most one, begun when it is first needed.  What a fork does
not do is end as a script does: functions registered with ``atexit`` are not called in it.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

LOADED = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "numpy", "pytest")
"""What every fork has; making an optimizer or wrapping a model would load torch's compiler."""


def forks() -> ForkServerContext:
    """Where to make processes and pipes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    return context
