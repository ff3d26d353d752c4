"""Guards: the optimizer's and scheduler's ``step`` obey the vote.

The vote must come before anything changes, so it is taken in the first ``optimizer.step()`` of an
iteration; on a void step neither the optimizer nor a scheduler moves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def guard_optimizer(optimizer: Optimizer, committed: Callable[[], bool]) -> None:
    """Let ``optimizer.step`` run only when ``committed()`` says so; it returns None otherwise.

    A bound method on the instance: that is where schedulers put their own, and where a scheduler
    made later expects one.
    """
    original = optimizer.step

    @functools.wraps(original)
    def step(_self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if committed() else None

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def guard_scheduler(scheduler: LRScheduler, committed: Callable[[], bool]) -> None:
    """Let ``scheduler.step`` run only when ``committed()`` says so.

    By a subclass: a scheduler's ``state_dict`` is its instance's dictionary, where a function has
    no place.
    """
    kind = type(scheduler)

    class Guarded(kind):  # type: ignore[valid-type, misc]
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return super().step(*args, **kwargs) if committed() else None

    Guarded.__name__ = Guarded.__qualname__ = kind.__name__
    scheduler.__class__ = Guarded
