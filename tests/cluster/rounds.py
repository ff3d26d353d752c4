"""One round of a chaos campaign as a test has it: run in a process of its own, and judged."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from trainmover.chaos.judge import MARK, Truth, Verdict, judge
from trainmover.chaos.round import Order, Result


def played(order: Order, truth: Truth | None, limit: float) -> Verdict:
    """Run a round to its end, and judge what came of it.

    Args:
        order: the round; its folder is made, and holds the temporary files, too.
        truth: what the undisturbed run came to, if that is compared.
        limit: seconds that it may take.
    """
    temporary = Path(order.folder) / "tmp"
    temporary.mkdir(parents=True)
    mark = secrets.token_hex(8)
    done = subprocess.run(
        [sys.executable, "-m", "trainmover.chaos.round", str(order.write())],
        env={**os.environ, "TMPDIR": str(temporary), MARK: mark},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert order.result.is_file(), done.stderr
    return judge(order, Result(**json.loads(order.result.read_text("utf-8"))), truth, mark)
