"""A training job as the user's script sees it: ``join``, ``track``, ``steps``.

    job = trainmover.join()
    job.track(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for step in job.steps(1000):
        loss = model(*data.next_batch())
        loss.backward()
        step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

Read :meth:`Job.steps` for the life of an iteration.  The same script runs under torchrun and plain
python, where every step simply commits.

One iteration is one optimizer step, and it is decided there: what a joiner receives is the state as
of the vote.  So the batch is fetched, and collectives that change the state are called, before
``optimizer.step()``; what is only logged or printed may come after it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainmover.errors import ConfigError
from trainmover.training import shares
from trainmover.training.agreement import Metric, Sum, own_means
from trainmover.training.boundary import Verdict
from trainmover.training.guards import guard_optimizer, guard_scheduler
from trainmover.training.shares import Share, Standing
from trainmover.training.state import TrackedState

log = logging.getLogger(__name__)


class Step:
    """One iteration. Usable as a number: ``int(step)``, ``f"{step}"``, ``step % 10``.

    ``with step:`` round the body is for scripts whose body may raise on the values of a broken epoch
    (a shape received from a lost rank, say): the exception then only makes the step void.  Plain data
    parallel bodies do not need it.
    """

    def __init__(self, job: Job, index: int) -> None:
        self.index = index
        self.metrics: dict[str, float] = {}
        """What was logged here; after the vote, the means over the ranks that have a value."""
        self.logged: dict[str, Metric] = {}
        """What is voted with: None where this rank has no value."""
        self._job = job
        self._shares = 0
        self._in_share = False
        self.verdict: Verdict | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or self.verdict is not None or not self._job.broken:
            return False
        log.warning("step %d raised in a broken epoch and is void: %r", self.index, error)
        return True

    @property
    def committed(self) -> bool:
        """True once the ranks have agreed that this step counts (after ``optimizer.step()``)."""
        return self.verdict is not None and self.verdict.commit

    def shares(
        self, parts: int = 1, group: dist.ProcessGroup | Sequence[int] | None = None
    ) -> Iterator[Share]:
        """The shares of the global batch that this rank computes: see :mod:`trainmover.training.shares`.

        Args:
            parts: shares of each member of the group at full strength.
            group: the data-parallel group, or its global ranks; None: all ranks.

        Raises:
            ConfigError: called twice in a step, or after it was decided.
        """
        if self.verdict is not None or self._shares:
            raise ConfigError("step.shares() is called once in a step, before optimizer.step()")
        found = self._job._shares_now(parts, group)
        self._shares = len(found)
        for share in shares.seeded(found, self._job._seed(), self.index):
            self._in_share = True
            yield share
            self._in_share = False
        self._in_share = False

    def log(self, **metrics: float | torch.Tensor | None) -> None:
        """Log numbers of this step; they are averaged over the ranks when the step commits.

        Every rank logs the same names.  One that has no value says None (in a pipeline only the last
        stage has a loss), and the mean is over the others.  A value logged in a share of the batch is one of
        several: the mean is over all shares.  One logged after them counts as often as this rank has had
        shares.

        Raises:
            ConfigError: called after ``optimizer.step()``, when the step is decided already.
        """
        if self.verdict is not None:
            raise ConfigError("step.log() comes too late: call it before optimizer.step()")
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor):
                value = value.detach().item()
            known = self.logged.get(name)
            if value is None:
                self.logged[name] = known if self._in_share else None
            elif self._in_share:
                before = known if isinstance(known, Sum) else Sum(0.0, 0.0)
                self.logged[name] = Sum(before.total + float(value), before.count + 1.0)
            else:
                many = float(self._shares)
                self.logged[name] = Sum(float(value) * many, many) if many else float(value)
        self.metrics.update(own_means({name: self.logged[name] for name in metrics}))

    def __int__(self) -> int:
        return self.index

    __index__ = __int__

    def __format__(self, spec: str) -> str:
        return format(self.index, spec)

    def __str__(self) -> str:
        return str(self.index)

    def __mod__(self, other: int) -> int:
        return self.index % other

    def __eq__(self, other: object) -> bool:
        return self.index == (other.index if isinstance(other, Step) else other)

    def __hash__(self) -> int:
        return hash(self.index)


class Course(Protocol):
    """How iterations run here: live, in the sandbox, or without TrainMover."""

    def positions(self, total: int) -> Iterator[int]:
        """The index of each iteration to run, in order; a void one comes again."""

    def vote(self, metrics: dict[str, Metric]) -> Verdict:
        """Decide the iteration that runs."""

    @property
    def broken(self) -> bool:
        """True while collective calls complete without their peers: the iteration will be void."""

    @property
    def standing(self) -> Standing:
        """Where this rank is among the others, and which seats nobody has."""


class Job:
    """The running job. Made by :func:`join`."""

    def __init__(self, course: Course, tracked: TrackedState) -> None:
        self._course = course
        self._tracked = tracked
        self._step: Step | None = None
        self._born = 0

    @property
    def rank(self) -> int:
        """Own global rank. A property: a promoted standby takes the rank of the one it replaces."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """Number of ranks; never changes."""
        return dist.get_world_size()

    @property
    def local_rank(self) -> int:
        """Own slot on this machine."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    def track(self, **things: Any) -> None:
        """Name what makes up the training state.

        Modules, optimizers, schedulers and scalers are the same on all replicas and are copied to a
        joiner; anything else (a data loader, say) belongs to its rank: a joiner receives what the
        lost rank had.

        Raises:
            ConfigError: an object has no ``state_dict`` and ``load_state_dict``, or holds what
                cannot travel as plain data.
        """
        for name, thing in things.items():
            self._tracked.add(name, thing)
            if isinstance(thing, Optimizer):
                guard_optimizer(thing, self._decide, partial(self._tracked.note_call, name))
            elif isinstance(thing, LRScheduler):
                guard_scheduler(thing, self._decide, partial(self._tracked.note_call, name))
        self._tracked.check()

    def steps(self, total: int) -> Iterator[Step]:
        """Iterate until ``total`` steps are committed.

        Each iteration runs the body once.  ``optimizer.step()`` inside asks all ranks whether the
        step counts; when it does not (a machine died in it), the optimizer and the scheduler do
        nothing, state and data position are put back, and the next iteration is the same step
        again.  Between two iterations machines may change places.
        """
        self._born = torch.initial_seed()
        for index in self._course.positions(total):
            self._step = Step(self, index)
            yield self._step
            self._decide()
        self._step = None

    def _shares_now(self, parts: int, group: dist.ProcessGroup | Sequence[int] | None) -> list[Share]:
        ranks = dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else group
        return shares.shares(self._course.standing, parts, ranks)

    def _seed(self) -> int:
        if self._tracked.seed is None:
            self._tracked.seed = self._born
        return self._tracked.seed

    def _decide(self) -> bool:
        step = self._step
        if step is None:
            return True
        if step.verdict is None:
            step.verdict = self._course.vote(step.logged)
            step.metrics.update(step.verdict.metrics)
        return step.verdict.commit

    @property
    def broken(self) -> bool:
        """True while collective calls complete without their peers: the current step will be void."""
        return self._course.broken

    def digest(self) -> str:
        """SHA-256 (hex) over parameters, buffers, optimizer and scheduler state, in a fixed order."""
        return self._tracked.digest()


class PlainCourse:
    """Iterations without TrainMover: all commit."""

    def positions(self, total: int) -> Iterator[int]:
        yield from range(total)

    def vote(self, metrics: dict[str, Metric]) -> Verdict:
        return Verdict(True, own_means(metrics))

    @property
    def broken(self) -> bool:
        return False

    @property
    def standing(self) -> Standing:
        return Standing(dist.get_rank(), dist.get_world_size())


rehearsed: ContextVar[Callable[[TrackedState], Course] | None] = ContextVar("rehearsed", default=None)
"""Makes the course of the next job where a test rehearses a script (:mod:`trainmover.testing`)."""


def join(backend: str | None = None, timeout: float = 1800.0) -> Job:
    """Join the job: initialise ``torch.distributed`` and return the job.

    Under ``trainmover run`` the process group's backend is ``trainmover``.  Under torchrun it is
    ``backend`` (default: nccl where there is CUDA, else gloo); under plain python a group of one.

    Args:
        backend: torch backend to use outside TrainMover.
        timeout: seconds that one collective call may take.

    Raises:
        ConfigError: torch.distributed was initialised before.
        JobError: the job ended before this rank could join it.
    """
    from trainmover.training.environment import read

    if dist.is_initialized():
        raise ConfigError("call trainmover.join() instead of torch.distributed.init_process_group()")
    tracked = TrackedState()
    env = read()
    if env is not None:
        from trainmover.training.live import join_live

        return Job(join_live(env, tracked, timeout), tracked)
    kind = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:
        dist.init_process_group(kind, timeout=timedelta(seconds=timeout))
    else:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    course_of = rehearsed.get()
    return Job(PlainCourse() if course_of is None else course_of(tracked), tracked)
