"""What is tested for conformance and what is left out, as data and as docs/reference/conformance.md.

``python -m tests.conformance.tables`` writes the generated part of the document.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("torch_cases.toml")
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"


NOT_ON_THE_BACKEND_ROAD = {
    "test_ddp_logging_data_cpu": "torch calls the back end of such a group `custom`",
    "test_irecv": "a Work is not asked itself whether it has ended",
    "test_isend": "a Work is not asked itself whether it has ended",
    "test_isend_autograd_profiler": "a Work is not asked itself whether it has ended",
    "test_isend_torch_profiler": "a Work is not asked itself whether it has ended",
    "test_send_recv_any_source": "a Work is not asked itself where a message came from",
    "test_send_recv_any_source_autograd_profiler": "a Work is not asked itself where a message came from",
    "test_send_recv_any_source_torch_profiler": "a Work is not asked itself where a message came from",
}
"""Cases that fail on the ``Backend`` road (torch 2.14 and newer), for what torch does there."""


@dataclass(frozen=True)
class LeftOut:
    """Cases that do not run, and why."""

    reason: str
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Cases:
    """The suite's cases.

    Attributes:
        torch: version of torch whose suite this is.
        passed: Gloo passes them on three ranks.
        passed_by_four: Gloo passes them on four ranks, and they run on no other number.
        beyond: Gloo fails them, ours passes them.
        left_out: the others.
    """

    torch: str
    passed: tuple[str, ...]
    passed_by_four: tuple[str, ...]
    beyond: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    def names(self) -> Iterator[str]:
        """All of them."""
        yield from (*self.passed, *self.passed_by_four, *self.beyond)
        for left in self.left_out:
            yield from left.cases


def load() -> Cases:
    """Read the data file."""
    raw = tomllib.loads(FILE.read_text())
    return Cases(
        raw["torch"],
        tuple(raw["passed"]),
        tuple(raw["passed_by_four"]),
        tuple(raw["beyond"]),
        tuple(LeftOut(left["reason"], tuple(left["cases"])) for left in raw["left_out"]),
    )


CASES = load()


def chosen() -> list[str]:
    """Some of every kind: the first and the last in the alphabet of those whose name begins alike."""
    kinds: dict[str, list[str]] = {}
    for name in (*CASES.passed, *CASES.beyond):
        kinds.setdefault("_".join(name.split("_")[1:3]), []).append(name)
    return sorted({name for names in kinds.values() for name in (names[0], names[-1])})


def document() -> str:
    """docs/reference/conformance.md as it should be."""
    text = DOCS.read_text()
    for name, made in (("cases", _counts()), ("left out", _left_out()), ("road", _road())):
        mark = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(mark, lambda found, made=made: found[1] + made + found[2], text, flags=re.DOTALL)
    return text


def _counts() -> str:
    left = sum(len(each.cases) for each in CASES.left_out)
    rows = [
        ("Gloo passes on the CPU with three processes; so must ours", len(CASES.passed)),
        ("Gloo passes with four processes, which they ask for; so must ours", len(CASES.passed_by_four)),
        ("Gloo fails, ours passes", len(CASES.beyond)),
        ("left out, see below", left),
        (f"all in the suite of torch {CASES.torch}", sum(1 for _ in CASES.names())),
    ]
    return "| cases | number |\n|---|---|\n" + "".join(f"| {what} | {number} |\n" for what, number in rows)


def _left_out() -> str:
    rows = sorted(CASES.left_out, key=lambda left: -len(left.cases))
    return "| reason | number | cases |\n|---|---|---|\n" + "".join(
        f"| {left.reason} | {len(left.cases)} | {', '.join(_short(name) for name in left.cases)} |\n"
        for left in rows
    )


def _road() -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in NOT_ON_THE_BACKEND_ROAD.items():
        reasons.setdefault(reason, []).append(_short(name))
    return "| torch | cases |\n|---|---|\n" + "".join(
        f"| {reason} | {', '.join(names)} |\n" for reason, names in reasons.items()
    )


def _short(name: str) -> str:
    return f"`{name.removeprefix('test_')}`"


if __name__ == "__main__":
    DOCS.write_text(document())
