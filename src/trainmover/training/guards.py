"""Guards: the optimizer's and scheduler's ``step`` obey the vote.

The vote must come before anything changes, so it is taken in the first ``optimizer.step()`` of an
iteration; on a void step neither the optimizer nor a scheduler moves.

What they let through is noted (:class:`Calls`).  All ranks run the same script, so what one called after
the vote of a step, the others did as well: a joiner that receives the state as of the vote repeats what its
guardian did, and has the state after the step.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainmover.training import plainly

if TYPE_CHECKING:
    from trainmover.training.state import TrackedState

_repeating = threading.local()


@contextmanager
def unguarded() -> Iterator[None]:
    """Let this thread's calls through: the step that they belong to is committed."""
    _repeating.now = True
    try:
        yield
    finally:
        _repeating.now = False


@dataclass
class Calls:
    """What was called of the tracked optimizers and schedulers after the vote on a step, in order.

    Attributes:
        step: committed steps with this one.
        made: name under which it is tracked, and the arguments of its ``step``.
        scalers: states of the gradient scalers afterwards; these follow from gradients, not from calls.
    """

    step: int = 0
    made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    scalers: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, *args: Any, **kwargs: Any) -> None:
        """``step`` of something tracked was let through."""
        self.made.append((name, args, kwargs))

    def pack(self) -> bytes:
        """As plain data.

        Raises:
            ConfigError: an argument is not plain data.
        """
        rows = [[name, list(args), kwargs] for name, args, kwargs in self.made]
        return plainly.pack([self.step, rows, self.scalers], "what is called after the vote")

    @classmethod
    def unpack(cls, data: bytes) -> Calls:
        """From :meth:`pack`."""
        step, rows, scalers = plainly.unpack(data)
        return cls(step, [(name, tuple(args), kwargs) for name, args, kwargs in rows], scalers)

    def repeat(self, tracked: TrackedState) -> None:
        """Do the same with this rank's optimizers and schedulers."""
        with unguarded():
            for name, args, kwargs in self.made:
                (tracked.optimizers.get(name) or tracked.shared[name]).step(*args, **kwargs)
        for name, state in self.scalers.items():
            tracked.shared[name].load_state_dict(state)


def nothing(*_: Any, **__: Any) -> None:
    """Notes no call."""


def guard_optimizer(
    optimizer: Optimizer, committed: Callable[[], bool], note: Callable[..., None] = nothing
) -> None:
    """Let ``optimizer.step`` run only when ``committed()`` says so; it returns None otherwise.

    A bound method on the instance: that is where schedulers put their own, and where a scheduler
    made later expects one.
    """
    original = optimizer.step

    @functools.wraps(original)
    def step(_self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if _allowed(committed, note, args, kwargs) else None

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def guard_scheduler(
    scheduler: LRScheduler, committed: Callable[[], bool], note: Callable[..., None] = nothing
) -> None:
    """Let ``scheduler.step`` run only when ``committed()`` says so.

    By a subclass: a scheduler's ``state_dict`` is its instance's dictionary, where a function has
    no place.
    """
    kind = type(scheduler)

    class Guarded(kind):  # type: ignore[valid-type, misc]
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return super().step(*args, **kwargs) if _allowed(committed, note, args, kwargs) else None

    Guarded.__name__ = Guarded.__qualname__ = kind.__name__
    scheduler.__class__ = Guarded


def _allowed(
    committed: Callable[[], bool], note: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    if getattr(_repeating, "now", False):
        return True
    if not committed():
        return False
    note(*args, **kwargs)
    return True
