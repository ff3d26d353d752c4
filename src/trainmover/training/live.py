"""Iterations under TrainMover: the live course, and the sandbox that leads into it.

A live rank loops: settle what changed, run the body, vote.  A standby first runs *shadow*
iterations on recorded results, parks at the boundary until its machine is given a place, receives
the state of the rank it becomes, and from there on is a live rank like any other.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from collections.abc import Iterator

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from trainmover import clock, logs
from trainmover.ccl import backend
from trainmover.errors import ConfigError
from trainmover.events.catalogue import (
    MoveRequested,
    RankFinished,
    StepSample,
    TrainingResumed,
    TrainingStarted,
)
from trainmover.faults import FaultSpec
from trainmover.sandbox.player import Player
from trainmover.training.agreement import Metric, own_means
from trainmover.training.boundary import Boundary, Settled, Verdict
from trainmover.training.describe import Describer
from trainmover.training.environment import Environment
from trainmover.training.resume import Keeper
from trainmover.training.session import Released, Session
from trainmover.training.shadow import Shadow
from trainmover.training.shares import Standing
from trainmover.training.state import TrackedState
from trainmover.training.steplog import StepLog, peak_rss_bytes

log = logging.getLogger(__name__)

COMPLETION_SECONDS = 900.0
"""Longest wait, after the last step, for the other ranks and the switcher."""


class LiveCourse:
    """The iterations of one rank process.

    Args:
        session: its connection to its machine and its peers.
        tracked: its state.
        player: answers its calls while it warms up; None on a live rank.
    """

    def __init__(self, session: Session, tracked: TrackedState, player: Player | None) -> None:
        self._session = session
        self._env = session.env
        self._tracked = tracked
        self._boundary = Boundary(session, tracked)
        self._log = StepLog(session.env.run_dir, session.env.machine, session.env.slot)
        self._describer: Describer | None = None
        self._shadow = None if player is None else Shadow(session, tracked, player)
        self._index = 0
        self._started = 0.0
        self._cpu_started = 0.0
        self._voted = 0.0
        self._metrics: dict[str, float] = {}
        self._first = player is None
        self._rebuilt = False
        self._resumed = False
        self._born = time.monotonic()
        self._keeper = Keeper(session, tracked, self._boundary)
        self._watch_points()
        if session.env.record and player is None:
            self._describer = Describer(session, tracked)

    def begin(self) -> None:
        """Enter the job's first epoch (a live rank of a job that starts from nothing)."""
        self._boundary.begin()

    def facts(self) -> dict[str, int]:
        """Where this rank stands, for its log lines."""
        return {"rank": self._session.rank, "epoch": self._session.engine.epoch, "step": self._index}

    # -- the iterations ------------------------------------------------------------------------

    def positions(self, total: int) -> Iterator[int]:
        """See :meth:`trainmover.training.job.Course.positions`."""
        try:
            yield from self._positions(total)
        except Released:
            self._keeper.leave()
            raise

    def _positions(self, total: int) -> Iterator[int]:
        built = time.monotonic()
        if self._shadow is not None:
            for index in self._shadow.positions(total):
                yield index
                self._shadow.end_phase()
                self._rebuild()
            self._shadow.park(self._boundary.residence, self._born, built)
            self._first = True
            self._settle(total, joining=True)
            self._shadow.forget()
            self._shadow = None
        else:
            self._keeper.go_on()
            self._end_phase(True)
        while True:
            self._settle(total)
            if self._boundary.committed >= total:
                if self._finish():
                    return
                continue
            yield from self._iteration(self._boundary.committed, total)

    def _settle(self, total: int, *, joining: bool = False) -> None:
        settled = self._boundary.settle(joining=joining)
        if settled is not None:
            self._note_switch(settled)
            self._keeper.settled(total)

    def _iteration(self, index: int, total: int) -> Iterator[int]:
        self._index, self._voted = index, 0.0
        self._tracked.keep()
        self._session.points.begin(index)
        self._boundary.mirrors.begin(index)
        self._started, self._cpu_started = clock.now(), time.thread_time()
        yield index
        self._session.points.end(self._boundary.committed > index)
        if self._boundary.committed > index:
            self._tracked.settle_random()
            self._tracked.keep_calls(self._boundary.committed)
            self._boundary.mirrors.ended(self._boundary.committed)
            self._note_step(index)
            self._keeper.keep(total)
            self._end_phase(True)
            self._rebuild()
        else:
            self._tracked.put_back()
            self._tracked.load_private_values(self._boundary.mine)
            self._log.write("void", step=index, epoch=self._session.engine.epoch)
            self._end_phase(False)

    def vote(self, metrics: dict[str, Metric]) -> Verdict:
        """See :meth:`trainmover.training.job.Course.vote`."""
        if self._shadow is not None:
            return Verdict(True, own_means(metrics))
        self._slow_down()
        verdict = self._boundary.vote(metrics)
        if verdict.commit:
            self._session.points.hit("voted")
        self._voted = clock.now()
        self._metrics = verdict.metrics
        if verdict.commit and self._session.leads:
            self._say_progress()
        return verdict

    @property
    def broken(self) -> bool:
        """See :meth:`trainmover.training.job.Course.broken`."""
        return self._shadow is None and self._session.communicator.swallowing

    @property
    def standing(self) -> Standing:
        """See :meth:`trainmover.training.job.Course.standing`."""
        comm = self._session.communicator
        vacant = frozenset[int]() if self._shadow is not None else comm.vacant
        return Standing(comm.rank, comm.world_size, comm.ranks_per_machine, vacant)

    def _say_progress(self) -> None:
        epoch = self._session.engine.epoch
        if self._boundary.committed == self._keeper.start + 2:
            # Whoever voted on the second step has the first: from here on no loss of a machine,
            # this one's neither, takes everybody back to the start.
            groups = {info.name: info.ranks for info in self._session.communicator.groups.values()}
            self._session.say(
                TrainingStarted(
                    generation=self._env.generation,
                    epoch=epoch,
                    step=self._boundary.committed - 1,
                    groups=groups,
                )
            )
        if self._resumed:
            self._resumed = False
            self._session.say(TrainingResumed(epoch=epoch, step=self._boundary.committed))

    def _finish(self) -> bool:
        """All steps are committed. False: the membership changes once more before the end."""
        self._keeper.finish()
        self._session.say(
            RankFinished(
                machine=self._env.machine,
                slot=self._env.slot,
                rank=self._session.rank,
                step=self._boundary.committed,
                digest=self._tracked.digest(),
                peak_rss_bytes=peak_rss_bytes(),
            )
        )
        ended = self._session.wait_for_end(COMPLETION_SECONDS)
        if ended:
            self._log.finish()
        return ended

    # -- the first steps -----------------------------------------------------------------------

    def _end_phase(self, committed: bool) -> None:
        if self._describer is not None and not self._describer.end_phase(committed):
            self._describer = None

    def _rebuild(self) -> None:
        """After the first step of this process: let DDP settle its buckets at the same point everywhere."""
        if self._rebuilt:
            return
        self._rebuilt = True
        if self._shadow is not None:
            self._shadow.player.lenient = True
        self._tracked.rebuild_buckets()
        if self._shadow is not None:
            self._shadow.player.lenient = False

    # -- facts ---------------------------------------------------------------------------------

    def _note_step(self, index: int) -> None:
        now, epoch, rank = clock.now(), self._session.engine.epoch, self._session.rank
        rss, metrics = peak_rss_bytes(), self._metrics
        self._log.write(
            "step",
            step=index,
            epoch=epoch,
            rank=rank,
            start=self._started,
            end=self._voted,
            seconds=now - self._started,
            loss=metrics.get("loss"),
            metrics=metrics,
            rss=rss,
            mirror=self._boundary.mirrors.waited,
            first=self._first,
        )
        self._first = False
        if self._env.slot == 0:
            self._session.say(
                StepSample(
                    machine=self._env.machine,
                    rank=rank,
                    epoch=epoch,
                    step=index,
                    seconds=now - self._started,
                    metrics=metrics,
                    peak_rss_bytes=rss,
                )
            )

    def _note_switch(self, settled: Settled) -> None:
        self._resumed = True
        self._log.write(
            "switch",
            epoch=settled.epoch,
            step=self._boundary.committed,
            start=settled.started,
            end=settled.ended,
            switch_seconds=settled.switch_seconds,
            copy_seconds=settled.copy_seconds,
            verify_seconds=settled.verify_seconds,
            joiner=settled.joiner,
            rss=peak_rss_bytes(),
        )

    # -- faults --------------------------------------------------------------------------------

    def _watch_points(self) -> None:
        points = self._session.points
        points.carry_out = self._carry_out
        points.committed = lambda: self._boundary.committed if self._session.settled else None
        points.watch_calls(self._session.communicator)
        self._tracked.watch = points.watch

    def _carry_out(self, fault: FaultSpec) -> None:
        """Do what a fault says, on whichever thread has reached its point."""
        self._log.write("fault", spec=str(fault), step=self._boundary.committed)
        if fault.kind == "pause":
            time.sleep(fault.seconds or 0.0)
        elif fault.kind == "move":
            self._session.say(MoveRequested(machine=self._env.machine, reason="fault injection"))
        else:
            os.killpg(os.getpgrp(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)

    def _slow_down(self) -> None:
        for fault in self._env.faults:
            if fault.kind == "slow" and fault.factor is not None and self._index >= fault.step:
                time.sleep((time.thread_time() - self._cpu_started) * (fault.factor - 1.0))


def join_live(env: Environment, tracked: TrackedState, timeout: float) -> LiveCourse:
    """Join a job under TrainMover, as a live rank or into the sandbox."""
    _start_logs(env)
    session = Session(env, timeout)
    player = None
    if session.sandbox:
        if not env.recording:
            raise ConfigError("a sandbox rank needs TRAINMOVER_RECORDING")
        player = Player(env.recording)
    backend.register()
    backend.install(session.communicator)
    course = LiveCourse(session, tracked, player)
    logs.follow(course.facts)
    atexit.register(session.close)
    session.start()
    if player is None:
        course.begin()
    dist.init_process_group(backend.NAME, store=HashStore(), rank=env.rank, world_size=env.world_size)
    return course


def _start_logs(env: Environment) -> None:
    """Lines of this package into the rank's log, unless the script has set up logging itself."""
    logs.start(root="trainmover")
    logs.bind(job=env.job, machine=env.machine, slot=env.slot, mode=env.mode)
