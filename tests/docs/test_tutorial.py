"""The script that the tutorial lets its reader write is one whose machines can be replaced."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from trainmover import testing

PAGE = Path(__file__).parents[2] / "docs/tutorial/first-replacement.md"


def test_the_readers_script_can_be_moved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends in the same bytes with void steps and in another process, and prints what the page says."""
    found = re.search(
        r'^```python title="train.py"\n(.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    code = compile(found[1], "train.py", "exec")
    monkeypatch.setattr(sys, "argv", ["train.py", "4"])
    testing.check(lambda: exec(code, {"__name__": "__main__"}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4, "one for each run; a process that is replaced prints nothing"
    assert all(re.fullmatch(r"loss \d\.\d{4}, digest [0-9a-f]{12}", line) for line in lines)
    assert len(set(lines)) == 1
