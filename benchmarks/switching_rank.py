"""One rank process of ``benchmarks/switching.py``: an engine, its links and its groups, told by a pipe.

It is what a rank process has below torch's process group; there is no machine program and no bus.
A process serves one life after another: one that was replaced becomes the next newcomer.
"""

from __future__ import annotations

import itertools
import resource
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from types import SimpleNamespace
from typing import Any

import torch

from trainmover.ccl import algorithms
from trainmover.ccl.communicator import Call, Communicator
from trainmover.ccl.engine import Engine, Steps
from trainmover.ccl.reduce import combine_of
from trainmover.ccl.table import LinkTable, Peer, Plan, new_life
from trainmover.ccl.tags import tag_of
from trainmover.ccl.view import Group
from trainmover.topology.layout import Layout
from trainmover.topology.links import BOUNDARY, WORLD
from trainmover.training.boundary import KEY, Boundary
from trainmover.training.points import Points
from trainmover.training.state import TrackedState

JOB, SECRET = "bench", b"a secret of thirty-two bytes...."
LIMIT = 60.0
DATA, TENSOR = "data", "tensor"
TENSOR_SIZE = 4
"""Ranks of a tensor group; every rank is also in the data group of all."""
PAUSE_SECONDS = 0.02
"""From vote to vote, where they are not one right after the other."""


@dataclass
class Course:
    """A training thread's steps: how many have begun, begin and end of each, and when to stop."""

    begun: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)
    stop: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)


class Standing:
    """As much of a session as the boundary's vote asks for."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.engine = communicator.engine
        self.points = Points((), 0)
        machines = tuple(f"m{rank}" for rank in range(communicator.world_size))
        self.order = SimpleNamespace(layout=Layout(1, machines, 1))

    @property
    def rank(self) -> int:
        return self.communicator.rank

    def make_sure(self) -> None:
        """No move is under way."""

    def prepared_epoch(self) -> int:
        return 0

    def unreplicated(self, rank: int) -> bool:
        """Every rank has the same state."""
        return False


class RankProcess:
    """What the parent can ask for; every method is a command."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.plan: Plan | None = None
        torch.set_num_threads(1)

    def fresh(self, rank: int, size: int) -> Peer:
        """Begin a new life, which is to sit on a rank; says where it listens."""
        if self.engine is not None:
            self.engine.stop()
        self.table = LinkTable(JOB, new_life(f"m{rank}", 0), SECRET, "127.0.0.1")
        self.engine = Engine(self.table, lambda *_: None)
        self.comm = Communicator(self.engine, rank, size, 1, LIMIT)
        self.comm.add_group(DATA, tuple(range(size)))
        first = rank - rank % TENSOR_SIZE
        self.comm.add_group(f"{TENSOR}:{first}", tuple(range(first, min(size, first + TENSOR_SIZE))))
        return Peer(self.table.host, self.table.port, self.table.life)

    def prepare(self, epoch: int, peers: Mapping[int, Peer]) -> dict[str, Any]:
        """Phase 1: returns when all links of the epoch are there."""
        self.plan = plan = Plan(epoch, self.comm.rank, peers, self.comm.links(), LIMIT)
        ready, table = threading.Event(), self.table
        told: list[tuple[float, int, int]] = []

        def note(*answer: Any) -> None:
            told.append(answer)
            ready.set()

        began = time.monotonic()
        assert self.engine is not None
        self.engine.call(lambda: table.prepare(plan, note))
        if not ready.wait(LIMIT):
            raise RuntimeError(f"rank {self.comm.rank}: epoch {epoch} was not prepared")
        return {"began": began, "ended": time.monotonic(), "made": told[0][1], "kept": told[0][2]}

    def abandon(self, epoch: int) -> None:
        """The epoch will not come."""
        assert self.engine is not None
        self.engine.ask(lambda: self.table.abandon(epoch))

    def adopt(self, at: float) -> dict[str, Any]:
        """Phase 2, at a moment that all processes of this machine know."""
        assert self.plan is not None
        assert self.engine is not None
        time.sleep(max(0.0, at - time.monotonic()))
        cpu, began = time.process_time(), time.monotonic()
        plan = self.comm.as_of_now(self.plan)
        counts = self.engine.adopt(plan)
        ended, cpu = time.monotonic(), time.process_time() - cpu
        self.comm.plan = plan
        return {"seconds": ended - began, "cpu_seconds": cpu, **counts}

    def meet(self) -> float:
        """The meeting of an epoch: everybody's row to everybody, over the boundary's links; when it ended."""
        assert self.engine is not None
        group, size = (
            self.comm.view(WORLD, tuple(range(self.comm.world_size)), BOUNDARY),
            self.comm.world_size,
        )
        rows = torch.zeros(size, 19, dtype=torch.float64)
        mine = torch.full((19,), float(self.comm.rank), dtype=torch.float64)

        def walk() -> Steps:
            return algorithms.all_gather(group, mine, list(rows.unbind(0)), tag_of("meeting"))

        self.engine.run(KEY, "meeting", walk, LIMIT)
        ended = time.monotonic()
        assert rows[:, 0].tolist() == [float(rank) for rank in range(size)]
        assert not self.engine.broken
        return ended

    # -- training beside phase 1 ---------------------------------------------------------------

    def train(self, compute: bool, seconds: float, elements: int) -> None:
        """Begin to train on a thread: steps of arithmetic (else of sleep) and one all_reduce."""
        self.course = Course()
        self.trainer = threading.Thread(target=self._train, args=(compute, seconds, elements), daemon=True)
        self.trainer.start()

    def _train(self, compute: bool, seconds: float, elements: int) -> None:
        weight, gradient, flag = torch.randn(256, 256) / 16, torch.ones(elements), torch.zeros(1)
        rounds = self._rounds(weight, seconds) if compute else 0
        course = self.course
        while not flag.item():
            began = time.monotonic()
            with course.changed:
                course.begun += 1
                course.changed.notify_all()
            if compute:
                self._compute(weight, rounds)
            else:
                time.sleep(seconds / 2)
            gradient.fill_(1.0)
            self._sum(gradient)
            flag[0] = float(course.stop)
            self._sum(flag)
            course.spans.append((began, time.monotonic()))

    @staticmethod
    def _compute(weight: torch.Tensor, rounds: int) -> None:
        value = weight
        for _ in range(rounds):
            value = torch.tanh(value @ weight)

    def _rounds(self, weight: torch.Tensor, seconds: float) -> int:
        """How many rounds of arithmetic take so long here."""
        times = []
        for _ in range(9):
            began = time.monotonic()
            self._compute(weight, 20)
            times.append(time.monotonic() - began)
        return max(1, int(20 * seconds / min(times)))

    def _sum(self, tensor: torch.Tensor) -> None:
        combine = combine_of("SUM")

        def walk(group: Group, tag: int) -> Steps:
            return algorithms.all_reduce(group, tensor, combine, tag)

        call = Call("all_reduce", f"{tensor.numel()}", [tensor], True, walk, begins="waits")
        self.comm.run(DATA, call).wait()

    def next_step(self) -> int:
        """Wait until the training thread begins a step; returns its number."""
        course = self.course
        with course.changed:
            now = course.begun
            if not course.changed.wait_for(lambda: course.begun > now, LIMIT):
                raise RuntimeError(f"rank {self.comm.rank} begins no step")
            return course.begun - 1

    def trained(self) -> list[tuple[float, float]]:
        """Stop at the next common step; returns the steps' spans."""
        self.course.stop = True
        self.trainer.join(LIMIT)
        return self.course.spans

    # -- votes -----------------------------------------------------------------------------------

    def vote(self, count: int) -> dict[str, Any]:
        """Vote on so many steps, one right after the other.

        Returns:
            The mean costs of one vote, and ``each_seconds``: how long each has taken here.
        """
        assert self.engine is not None
        boundary = self._boundary()
        run, inside = Engine.run.__get__(self.engine), [0.0, 0.0]

        def timed(*args: Any) -> Any:
            cpu, began = time.process_time(), time.monotonic()
            try:
                return run(*args)
            finally:
                inside[0] += time.monotonic() - began
                inside[1] += time.process_time() - cpu

        self.engine.run = timed  # type: ignore[method-assign]
        for _ in range(20):
            assert boundary.vote({"loss": 1.0}).commit
        inside[:] = 0.0, 0.0
        switches, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, time.process_time()
        ends = [time.monotonic()]
        for _ in range(count):
            assert boundary.vote({"loss": 1.0}).commit
            ends.append(time.monotonic())
        cpu = time.process_time() - cpu
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches
        del self.engine.run
        return {
            "seconds": (ends[-1] - ends[0]) / count,
            "collective_seconds": inside[0] / count,
            "cpu_seconds": cpu / count,
            "collective_cpu_seconds": inside[1] / count,
            "switches": switches / count,
            "each_seconds": [end - begin for begin, end in itertools.pairwise(ends)],
        }

    def vote_after_steps(self, count: int, first: float) -> list[tuple[float, float]]:
        """Vote so many times after a pause and a small sum, as in a step; its begin and end each time.

        Args:
            count: how many.
            first: moment of the first one's sum, known to all processes of this machine.
        """
        boundary, flag, spans = self._boundary(), torch.zeros(1), []
        for number in range(count):
            time.sleep(max(0.0, first + number * PAUSE_SECONDS - time.monotonic()))
            self._sum(flag)
            began = time.monotonic()
            assert boundary.vote({"loss": 1.0}).commit
            spans.append((began, time.monotonic()))
        return spans

    def _boundary(self) -> Boundary:
        return Boundary(Standing(self.comm), TrackedState())  # type: ignore[arg-type]

    def end(self) -> None:
        """Leave in good order."""
        if self.engine is not None:
            self.engine.stop()


def serve(pipe: Pipe) -> None:
    """Carry out commands until the parent hangs up; the answer is ``(True, result)`` or ``(False, text)``."""
    process = RankProcess()
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(process, name)(*arguments)))
        except Exception:  # noqa: BLE001 - told to whoever gave the command
            pipe.send((False, traceback.format_exc()))
