"""A rehearsal: the iterations of one process in which steps are void and the process is replaced, on purpose.

The script runs as it is, alone in one process, and :func:`~trainmover.training.job.join` gives it this
course.  A step that is to be void is voted down once: its gradients are spoilt, as those of a lost peer's
collective calls would be, everything is put back and the same step runs again.  When the process is to be
replaced, :class:`Replaced` ends the script where it stands; what is tracked has been taken off before, and
the script's next life gets it after shadow steps of its own, as a standby does.

What is rehearsed is the script's part: whether what it tracks is all that decides its next step.  Ranks,
links and services have no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from trainmover.training.agreement import Metric, own_means
from trainmover.training.boundary import Verdict
from trainmover.training.job import PlainCourse
from trainmover.training.state import TrackedState

SHADOW_STEPS = 2
"""Steps that a joiner has made on data of its own before it receives the state."""


class Replaced(BaseException):
    """Ends the script's life at the boundary at which another process takes over."""


@dataclass(frozen=True, slots=True)
class Baggage:
    """What a joiner receives: the state as of the last committed step."""

    committed: int
    tensors: tuple[tuple[str, torch.Tensor], ...]
    shared: bytes
    private: bytes


class Rehearsal(PlainCourse):
    """The iterations of one life of the script.

    Args:
        tracked: its state.
        void: steps whose first attempt is void.
        replace: step before which the process is replaced; None: it is not.
        received: what this life begins with, if it is a joiner's.

    Attributes:
        baggage: what the next life begins with, once this one was replaced.
        metrics: what each committed step logged.
    """

    def __init__(
        self,
        tracked: TrackedState,
        void: Collection[int] = (),
        replace: int | None = None,
        received: Baggage | None = None,
    ) -> None:
        self._tracked = tracked
        self._void, self._replace, self._received = set(void), replace, received
        self._committed = 0
        self._shadow = False
        self._mine = b""
        self.baggage: Baggage | None = None
        self.metrics: dict[int, dict[str, float]] = {}

    def positions(self, total: int) -> Iterator[int]:
        """See :meth:`trainmover.training.job.Course.positions`."""
        if self._received is not None:
            yield from self._shadow_steps(total)
            self._take_over(self._received)
        else:
            self._mine = self._tracked.private_values()
        while self._committed < total:
            if self._committed == self._replace:
                self.baggage = self._pack()
                raise Replaced
            self._tracked.keep()
            before = self._committed
            yield before
            if self._committed == before:
                self._tracked.put_back()
                self._tracked.load_private_values(self._mine)
            else:
                self._tracked.settle_random()
                if before == 0:
                    self._tracked.rebuild_buckets()

    def vote(self, metrics: dict[str, Metric]) -> Verdict:
        """See :meth:`trainmover.training.job.Course.vote`."""
        found = own_means(metrics)
        if self._shadow:
            return Verdict(True, found)
        if self._committed in self._void:
            self._void.discard(self._committed)
            for gradient in self._tracked.gradients():
                gradient.fill_(torch.nan)
            return Verdict(False, {})
        self._mine = self._tracked.private_values()
        self.metrics[self._committed] = found
        self._committed += 1
        return Verdict(True, found)

    def _shadow_steps(self, total: int) -> Iterator[int]:
        self._shadow = True
        yield from range(min(SHADOW_STEPS, total))
        self._tracked.rebuild_buckets()
        self._shadow = False

    def _pack(self) -> Baggage:
        tensors = tuple((name, tensor.detach().clone()) for name, tensor in self._tracked.tensors())
        return Baggage(self._committed, tensors, self._tracked.shared_values(), self._mine)

    def _take_over(self, received: Baggage) -> None:
        self._tracked.load_shared_values(received.shared)
        with torch.no_grad():
            for (_, own), (_, sent) in zip(self._tracked.tensors(), received.tensors, strict=True):
                own.copy_(sent)
        for optimizer in self._tracked.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        self._tracked.load_private_values(received.private)
        self._mine = received.private
        self._committed = received.committed
