"""PyTorch's own distributed suite (``DistributedTest``, inside the torch wheel), loaded for one back end.

The suite decides at import, by environment variables, which of its cases run for which back end, and
it knows only torch's own.  So it is imported as if for Gloo, and only then told the name it shall use:
what Gloo runs on CPU tensors, every other back end runs too.  Some of its reasons to leave a case out
are about the suite and not about a back end (:data:`LIFTED`): those cases are let free, and whether
they can pass is seen with Gloo.

The suite starts its processes anew for every case, and nearly all of the half hour that takes is torch
being imported; here they are forked from one process that has it already.  One process serves one
back end: the module is loaded once.
"""

from __future__ import annotations

import importlib
import os
import unittest
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

MODULE = "torch.testing._internal.distributed.distributed_test"

LIFTED = (
    "Only MPI supports CPU all_to_all_single",  # Gloo does too
    "Only MPI supports all_to_all",
    "https://github.com/pytorch/pytorch/",  # switched off for torch's own CI, where they were unsteady
    "Test is failing, see https://github.com/pytorch/pytorch/",
    "Skipped due to flakiness",
)
"""How reasons begin that do not keep a case from being run here."""


def load(backend: str, world_size: int, limit: float) -> type[unittest.TestCase]:
    """The suite's cases as a test class whose processes use ``backend``.

    Args:
        backend: ``gloo`` or ``trainmover``.
        world_size: number of processes per case.
        limit: seconds after which the suite ends a case of its own accord.
    """
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(world_size),
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",  # with fewer devices than ranks the suite would skip everything
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(int(limit)),
        INIT_METHOD="file://",
    )
    if backend == "trainmover":
        importlib.import_module("trainmover").register_backend()
        dist.monitored_barrier = monitored_barrier
    module = importlib.import_module(MODULE)
    common = importlib.import_module("torch.testing._internal.common_distributed")
    common.TIMEOUT_OVERRIDE.clear()
    common.initialize_temp_directories()  # the suite's own class wants them while it is only looked at
    module.BACKEND = AsGloo(backend)
    # Cases "for at least 8 ranks" are skipped unless the back end is MPI; nothing else asks this variable.
    os.environ["BACKEND"] = "mpi"
    return _cases(module)


class AsGloo(str):
    """A back end's name that also answers to Gloo's where a case asks which one it runs on."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """``dist.monitored_barrier`` without its refusal of every back end that is not called Gloo."""
    group = group or dist.group.WORLD
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        limit = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout
        group.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)


def _cases(module: ModuleType) -> type[unittest.TestCase]:
    base: Any = module.DistributedTest._DistTestBase

    class Cases(module.TestDistBackend, base):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            module.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    for name in unittest.TestLoader().getTestCaseNames(Cases):
        case = getattr(Cases, name)
        if getattr(case, "__unittest_skip_why__", "").startswith(LIFTED):
            setattr(Cases, name, _free(case))
    return Cases


def _free(case: Any) -> Any:
    """The case behind its skip: a mark on the function, or a wrapper that raises."""
    inner = case.__wrapped__ if case.__code__.co_name == "skip_wrapper" else case
    inner.__unittest_skip__ = False
    return inner


def run(cases: type[unittest.TestCase], name: str) -> tuple[str, str]:
    """Run one case here and now: ("passed" | "skipped" | "failed" | "missing", why)."""
    if not hasattr(cases, name):
        return "missing", f"torch {torch.__version__} has no case of this name"
    result = unittest.TestResult()
    cases(name).run(result)
    bad = result.failures + result.errors
    if bad:
        return "failed", bad[0][1]
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""
