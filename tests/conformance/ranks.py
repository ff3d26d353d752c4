"""Run one function on several real processes, once per back end, and compare what it returns.

A *program* is a module-level function ``program(rank, size, **arguments)`` that is called on every rank
with the default group there already, seeded alike everywhere, and returns plain data: tensors,
numbers, strings, lists and dicts of these.  :meth:`Ranks.compare` runs it on Gloo and on ours and
compares rank by rank.

How exact?  Two ranks leave only one way to add two numbers, so results on two ranks must be equal to
the last bit, unless a test says otherwise and why.  From three ranks on Gloo's order of additions is
another than our canonical bracketing; there floats may differ by rounding, everything else not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.conformance.zygote import Request

ROOT = Path(__file__).parents[2]
OURS = "trainmover"
GLOO = "gloo"
ROUNDING = 1e-5
"""Relative and absolute difference that another order of float32 additions may make in these programs."""

PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""So that what is tested is the code beside the tests."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONPATH": PYTHONPATH}
"""Forked ranks share two cores, and must not start processes of their own to compile in."""

Program = Callable[..., Any]


class Ranks:
    """A zygote, started when it is first needed."""

    def __init__(self) -> None:
        self._zygote: subprocess.Popen[str] | None = None

    def run(
        self, program: Program, backend: str, size: int = 2, limit: float = 60.0, **arguments: Any
    ) -> list[Any]:
        """Results of ``program`` by rank.

        Raises:
            AssertionError: a rank failed or did not end; with its traceback, or the stack it hung in.
        """
        with tempfile.TemporaryDirectory() as folder:
            request = Request(program.__module__, program.__name__, backend, size, limit, folder, arguments)
            failures = self._ask(request)
            if failures:
                raise AssertionError("\n\n".join([f"{program.__name__} on {size} ranks:", *failures]))
            return [torch.load(Path(folder, f"rank{rank}.pt")) for rank in range(size)]

    def compare(
        self,
        program: Program,
        size: int = 2,
        limit: float = 60.0,
        tolerance: float | None = None,
        **arguments: Any,
    ) -> list[Any]:
        """Run on both; the results must be the same. Returns ours, by rank.

        Args:
            program: what every rank calls.
            size: number of ranks.
            limit: seconds for each of the two runs.
            tolerance: what floats may differ by (relative and absolute); None: nothing on two ranks,
                ``ROUNDING`` on more.
            arguments: for the program.
        """
        allowed = tolerance if tolerance is not None else (0.0 if size <= 2 else ROUNDING)
        theirs = self.run(program, GLOO, size, limit, **arguments)
        ours = self.run(program, OURS, size, limit, **arguments)
        for rank in range(size):
            same(ours[rank], theirs[rank], allowed, f"rank {rank}")
        return ours

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            assert self._zygote.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._zygote.stdin.close()
            try:
                self._zygote.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._zygote.pid, signal.SIGKILL)
                self._zygote.wait()
            assert self._zygote.stdout is not None
            self._zygote.stdout.close()
            self._zygote = None

    def _ask(self, request: Request) -> list[str]:
        if self._zygote is None:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "tests.conformance.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )
        line = ""
        try:
            line = _answer(self._zygote, json.dumps(asdict(request)), request.limit + 60.0)
        finally:
            if not line:  # also when the test is interrupted: the next one must not read this one's answer
                os.killpg(self._zygote.pid, signal.SIGKILL)
                self.close()
        if not line:
            return ["the process that forks the ranks has died or hangs; its errors are printed above"]
        failures: list[str] = json.loads(line)["failures"]
        return failures


def _answer(process: subprocess.Popen[str], question: str, limit: float) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    readable, _, _ = select.select([process.stdout], [], [], limit)
    return process.stdout.readline() if readable else ""


def same(ours: Any, theirs: Any, tolerance: float, where: str) -> None:
    """Compare two results in depth."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)} against {type(theirs)}"
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), f"{where}: keys {list(ours)} against {list(theirs)}"
        for key in ours:
            same(ours[key], theirs[key], tolerance, f"{where}, {key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), f"{where}: {len(ours)} entries against {len(theirs)}"
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            same(our, their, tolerance, f"{where}, entry {index}")
    elif isinstance(ours, torch.Tensor):
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{where}: {m}"
        )
    elif isinstance(ours, float):
        assert abs(ours - theirs) <= tolerance * max(1.0, abs(theirs)), f"{where}: {ours} against {theirs}"
    else:
        assert ours == theirs, f"{where}: {ours!r} against {theirs!r}"
