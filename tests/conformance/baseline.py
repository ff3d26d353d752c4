"""Find out with Gloo which cases of PyTorch's suite can run on CPUs, and write ``torch_cases.toml``.

    python -m tests.conformance.baseline

Takes a few minutes.  A case that Gloo passes is one that ours must pass; whatever does not run is
listed with the reason, in the suite's own words or in ours (:data:`WORDS`).  What Gloo fails and ours
passes is listed as *beyond*.  The few cases that want exactly four processes run with four.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("torch_cases.toml")
SIZE, SIZE_4 = 3, 4

WORDS = (
    ("world size of 4", "wants four processes: run with four"),
    ("CUDA device", "moves its tensors to CUDA: needs one GPU for each rank"),
    ("CUDA is not available", "moves its tensors to CUDA: needs one GPU for each rank"),
    ("Only Nccl supports CUDA", "moves its tensors to CUDA: needs one GPU for each rank"),
    ("Only NCCL supports CUDA", "moves its tensors to CUDA: needs one GPU for each rank"),
    ("NCCL Batch Send Recv Only", "for NCCL only, on CUDA tensors"),
    ("NCCL Send Recv Only", "for NCCL only, on CUDA tensors"),
    ("{'nccl'}", "for NCCL only, on CUDA tensors"),
    ("NCCL only", "for NCCL only, on CUDA tensors"),
    ("Only NCCL backend", "for NCCL only, on CUDA tensors"),
    ("Only Nccl supports", "for NCCL only, on CUDA tensors"),
    ("no torchvision", "needs torchvision"),
    ("subprocess level", "switched off inside the suite, as failing (pytorch pull request 113620)"),
)
"""Parts of the suite's reasons, and what they come to."""

OURS_FAILS = {
    "test_barrier_timeout_arg": (
        "rank 0 waits for one millisecond in a group that the others leave at once: ours may name the rank "
        "that left before the time is out (torch has switched the case off: issue 179691)"
    ),
}
"""Cases that Gloo passes and ours does not, with the reason."""


def main() -> None:
    """Run Gloo on everything, ours on what Gloo failed."""
    gloo = answers("gloo", SIZE)
    passed = [name for name in cases(gloo, "passed") if name not in OURS_FAILS]
    failed = cases(gloo, "failed")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in OURS_FAILS.items():
        reasons[reason].append(name)
    for answer in gloo:
        if answer["outcome"] == "skipped":
            reasons[in_words(answer["why"])].append(answer["case"])
    of_four = reasons.pop(WORDS[0][1], [])
    on_four = answers("gloo", SIZE_4, of_four)
    four = cases(on_four, "passed")
    for answer in on_four:
        if answer["outcome"] != "passed":
            reasons[in_words(answer["why"])].append(answer["case"])
    beyond = cases(answers("trainmover", SIZE, failed), "passed")
    for name in {*failed} - {*beyond}:
        reasons["Gloo fails it too"].append(name)
    FILE.write_text(written(passed, four, beyond, reasons))


def answers(backend: str, size: int, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """What the driver says about some cases, or about all."""
    command = [sys.executable, "-m", "tests.conformance.suite_driver", backend, "--world-size", str(size)]
    asked = None if names is None else "".join(f"{name}\n" for name in names)
    done = subprocess.run(
        command + (["--all"] if names is None else []),
        input=asked, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def cases(given: Iterable[dict[str, Any]], outcome: str) -> list[str]:
    """Names of the cases that ended so."""
    return [answer["case"] for answer in given if answer["outcome"] == outcome]


def in_words(reason: str) -> str:
    """A reason as one of few."""
    return next((words for part, words in WORDS if part in reason), reason)


def written(
    passed: Sequence[str], four: Sequence[str], beyond: Sequence[str], reasons: dict[str, list[str]]
) -> str:
    """The data file's text."""
    lines = [
        "# The cases of PyTorch's own distributed suite, as Gloo runs them on CPUs.",
        "# Written by `python -m tests.conformance.baseline`; docs/reference/conformance.md is made from it.",
        "",
        f'torch = "{torch.__version__.split("+")[0]}"',
        "",
        f"# Gloo passes these with {SIZE} processes, so ours must.",
        *array("passed", passed),
        "",
        f"# Gloo passes these with {SIZE_4} processes, which they ask for.",
        *array("passed_by_four", four),
        "",
        "# Gloo fails these, ours passes them.",
        *array("beyond", beyond),
    ]
    for reason in sorted(reasons):
        lines += ["", "[[left_out]]", f'reason = "{reason}"', *array("cases", reasons[reason])]
    return "\n".join(lines) + "\n"


def array(key: str, names: Sequence[str]) -> list[str]:
    """A TOML array with a name on each line."""
    return [f"{key} = [", *(f'    "{name}",' for name in sorted(names)), "]"]


if __name__ == "__main__":
    main()
