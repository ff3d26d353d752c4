"""A script under plain python: the same lines, a world of one, and every step counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainmover.errors import ConfigError
from trainmover.training import Job, Step, join
from trainmover.training.boundary import Verdict
from trainmover.training.job import PlainCourse
from trainmover.training.state import TrackedState

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "TRAINMOVER_SOCKET")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher's environment; torch.distributed is left as it was found."""
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_script_runs_under_plain_python() -> None:
    """join, track, steps: a group of one in which DDP works and all steps commit."""
    job = join()
    assert (job.rank, job.world_size, job.local_rank) == (0, 1, 0)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    job.track(model=model, optimizer=optimizer, scheduler=scheduler)
    digests, seen = {job.digest()}, []
    for step in job.steps(3):
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        step.log(loss=loss, twice=2, none=None)
        assert not step.committed
        optimizer.step()
        assert step.committed
        scheduler.step()
        optimizer.zero_grad()
        digests.add(job.digest())
        assert "none" not in step.metrics
        seen.append((int(step), f"{step:02}", str(step), step % 2, step.metrics["twice"]))
    assert seen == [(0, "00", "0", 0, 2.0), (1, "01", "1", 1, 2.0), (2, "02", "2", 0, 2.0)]
    assert len(digests) == 4
    assert scheduler.get_last_lr() == [0.1 / 8]


@pytest.mark.usefixtures("alone")
def test_join_comes_first() -> None:
    """A process group made before join() is an error that says what to call instead."""
    join()
    with pytest.raises(ConfigError, match="instead of"):
        join()


class Scripted(PlainCourse):
    """A course whose votes are given beforehand."""

    def __init__(self, *commits: bool) -> None:
        self.commits = list(commits)
        self.voted: list[dict[str, float]] = []

    def positions(self, total: int) -> Iterator[int]:
        done = 0
        while done < total:
            before = len(self.voted)
            yield done
            done += self.verdicts[before].commit

    @property
    def verdicts(self) -> list[Verdict]:
        return [Verdict(commit, {"loss": 0.25} if commit else {}) for commit in self.commits]

    def vote(self, metrics: dict[str, float]) -> Verdict:
        self.voted.append(dict(metrics))
        return self.verdicts[len(self.voted) - 1]


def test_a_void_step_comes_again() -> None:
    """The body runs again for the same step; the optimizer moves once; metrics become the means."""
    course = Scripted(True, False, False, True)
    job = Job(course, TrackedState())
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    job.track(optimizer=optimizer)
    ran, metrics = [], []
    for step in job.steps(2):
        parameter.grad = torch.ones(1)
        step.log(loss=float(step.index))
        optimizer.step()
        ran.append((step.index, step.committed))
        metrics.append(step.metrics)
    assert ran == [(0, True), (1, False), (1, False), (1, True)]
    assert parameter.item() == -2.0
    assert [m["loss"] for m in metrics] == [0.25, 1.0, 1.0, 0.25]


def test_a_body_without_an_optimizer_step_votes_at_its_end() -> None:
    """Every iteration is decided exactly once, however often optimizers step in it."""
    course = Scripted(True, True)
    job = Job(course, TrackedState())
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2)]
    job.track(a=optimizers[0], b=optimizers[1])
    for step in job.steps(2):
        if step == 1:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.step()
    assert len(course.voted) == 2
    optimizers[0].step()
    assert len(course.voted) == 2, "outside an iteration nothing is voted on"


def test_logging_after_the_vote_is_an_error() -> None:
    """Numbers that come too late to be averaged are refused, with the place where they belong."""
    job = Job(Scripted(True), TrackedState())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    job.track(optimizer=optimizer)
    for step in job.steps(1):
        optimizer.step()
        with pytest.raises(ConfigError, match=r"before optimizer\.step"):
            step.log(loss=1.0)


def test_a_step_is_a_number() -> None:
    """Comparisons, hashing, indexing and arithmetic on a step use its index."""
    step = Step(Job(PlainCourse(), TrackedState()), 6)
    assert step == 6
    assert step == Step(Job(PlainCourse(), TrackedState()), 6)
    assert step != 7
    assert {step: 1}[6] == 1
    assert list(range(10))[step] == 6
    assert step % 4 == 2


class Breaking(Scripted):
    """A scripted course whose epoch is broken in the steps that will be void."""

    @property
    def broken(self) -> bool:
        return not self.commits[len(self.voted)]


def test_an_exception_in_a_broken_epoch_only_makes_the_step_void() -> None:
    """``with step:`` turns what a body raises on a broken epoch's values into a void step, redone."""
    job = Job(Breaking(False, True), TrackedState())
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    job.track(optimizer=optimizer)
    ran = []
    for step in job.steps(1):
        with step:
            ran.append(job.broken)
            if job.broken:
                raise EOFError("a shape from a lost rank")
            parameter.grad = torch.ones(1)
            optimizer.step()
    assert ran == [True, False]
    assert parameter.item() == -1.0


def test_an_exception_in_a_whole_epoch_is_the_scripts_own() -> None:
    """``with step:`` hides nothing of a script that is wrong by itself."""
    job = Job(Breaking(True), TrackedState())
    step = next(iter(job.steps(1)))
    with pytest.raises(EOFError), step:
        raise EOFError("wrong by itself")
