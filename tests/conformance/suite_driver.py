"""A process that runs cases of PyTorch's suite on demand, for one back end.

It reads names of cases from its standard input, one per line, and answers each on its standard output
with one line of JSON: ``{"case", "outcome", "why", "seconds", "output"}``.  What the case and its
processes print goes to a file and comes back as ``output`` when the case has failed.  Asked for ``*`` it
says the names of all cases, as ``why``.

By hand, for the whole suite::

    python -m tests.conformance.suite_driver trainmover --all > result.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Iterator

from tests.conformance import suite

TAIL = 6000
"""Characters of a failed case's output that are handed back."""


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["gloo", "trainmover"])
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per case")
    parser.add_argument("--all", action="store_true", help="every case there is, nothing is read")
    options = parser.parse_args()

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    own_errors = os.fdopen(os.dup(2), "w", buffering=1)
    sys.excepthook = lambda _, error, __: traceback.print_exception(error, file=own_errors)
    log = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - lives as long as the process
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    cases = suite.load(options.backend, options.world_size, options.limit)
    for name in _names(cases) if options.all else (line.strip() for line in sys.stdin):
        log.seek(0)
        log.truncate()
        started = time.monotonic()
        outcome, why = ("listed", " ".join(_names(cases))) if name == "*" else suite.run(cases, name)
        sys.stdout.flush()
        log.seek(0)
        answer = {
            "case": name,
            "outcome": outcome,
            "why": why if outcome == "listed" else why[-TAIL:],
            "seconds": round(time.monotonic() - started, 2),
            "output": log.read()[-TAIL:] if outcome == "failed" else "",
        }
        answers.write(json.dumps(answer) + "\n")


def _names(cases: type[unittest.TestCase]) -> Iterator[str]:
    yield from unittest.TestLoader().getTestCaseNames(cases)


if __name__ == "__main__":
    main()
