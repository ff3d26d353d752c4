"""Guards: the optimizer's and scheduler's ``step`` obey the vote.

The vote must come before anything changes, so it is taken in the first ``optimizer.step()`` of an
iteration; on a void step neither the optimizer nor a scheduler moves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def guard(thing: Any, committed: Callable[[], bool]) -> None:
    """Let ``thing.step`` run only when ``committed()`` says so; it returns None otherwise."""
    original = thing.step

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        if committed():
            return original(*args, **kwargs)
        return None

    thing.step = step
