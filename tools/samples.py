"""What a usual run of the tests leaves out, read from the tests: the table in CONTRIBUTING.md.

What lives here: how tests marked ``long`` are found.  What the mark does is in ``tests/conftest.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def marked() -> Iterator[tuple[str, str, str]]:
    """File, test, and how many of its cases are run each time."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.long":
                    every = ast.literal_eval(mark.keywords[0].value)
                    name = node.name.removeprefix("test_").replace("_", " ")
                    share = f"1 in {every}" if every else "none"
                    yield str(path.relative_to(ROOT / "tests")), name, share


def table() -> str:
    """The table, a row for each test that is marked."""
    lines = ["| file in `tests` | test | of its cases |", "|---|---|---|"]
    lines += [f"| `{file}` | {name} | {share} |" for file, name, share in marked()]
    return "\n".join(lines) + "\n"
