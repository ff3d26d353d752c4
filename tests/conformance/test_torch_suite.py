"""PyTorch's own distributed suite: what Gloo passes on CPUs, ours passes.

``torch_cases.toml`` names the cases.  A test run takes one of every kind; with
``TRAINMOVER_CONFORMANCE=all``, as ``make conformance`` sets it, it takes all of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.conformance.ranks import PYTHONPATH, ROOT
from tests.conformance.tables import CASES, DOCS, NOT_ON_THE_BACKEND_ROAD, chosen, document

ALL = os.environ.get("TRAINMOVER_CONFORMANCE") == "all"
LIMIT = 60.0
"""Seconds for one case; the longest takes three on an idle machine."""

BACKEND_ROAD = os.environ.get("TRAINMOVER_ROAD") == "backend"
SAME_TORCH = torch.__version__.split("+")[0] == CASES.torch


class Driver:
    """A process that runs cases of the suite on our back end, with so many ranks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._process: subprocess.Popen[str] | None = None

    def ask(self, case: str) -> dict[str, str]:
        """Run one case; the driver's answer."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            process.stdin.write(case + "\n")
            process.stdin.flush()
            readable, _, _ = select.select([process.stdout], [], [], LIMIT + 40.0)
            line = process.stdout.readline() if readable else ""
        finally:
            if not line:
                self.close()
        if not line:
            return {"outcome": "failed", "why": "the driver died or hung in this case", "output": ""}
        answer: dict[str, str] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the driver and all that it has started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.conformance.suite_driver", "trainmover"]
        self._process = subprocess.Popen(
            [*command, "--world-size", str(self._size), "--limit", str(LIMIT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": PYTHONPATH},
            start_new_session=True,
        )
        return self._process


@pytest.fixture(scope="module")
def three() -> Iterator[Driver]:
    """Runs cases on three ranks."""
    driver = Driver(3)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def four() -> Iterator[Driver]:
    """Runs cases on four ranks."""
    driver = Driver(4)
    yield driver
    driver.close()


@pytest.mark.parametrize("case", [*CASES.passed, *CASES.beyond] if ALL else chosen())
def test_three_ranks(three: Driver, case: str) -> None:
    """A case of the suite passes on three ranks."""
    passes(three, case)


@pytest.mark.parametrize("case", CASES.passed_by_four if ALL else CASES.passed_by_four[:1])
def test_four_ranks(four: Driver, case: str) -> None:
    """A case of the suite that wants four ranks passes on four."""
    passes(four, case)


def passes(driver: Driver, case: str) -> None:
    if BACKEND_ROAD and case in NOT_ON_THE_BACKEND_ROAD:
        pytest.skip(f"on the backend road: {NOT_ON_THE_BACKEND_ROAD[case]}")
    answer = driver.ask(case)
    if answer["outcome"] in ("skipped", "missing") and not SAME_TORCH:
        pytest.skip(f"torch {torch.__version__}: {answer['why']}")
    assert answer["outcome"] == "passed", f"{case}: {answer['why']}\n{answer['output']}"


def test_document() -> None:
    """The document says what the data file says; `python -m tests.conformance.tables` writes it."""
    assert DOCS.read_text() == document()


@pytest.mark.skipif(not SAME_TORCH, reason=f"the list of cases is that of torch {CASES.torch}")
def test_every_case_is_listed(three: Driver) -> None:
    """Each case in this version's suite is among the passed or has a reason not to be; none twice."""
    assert sorted(CASES.names()) == sorted(three.ask("*")["why"].split())
