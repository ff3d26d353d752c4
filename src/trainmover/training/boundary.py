"""The iteration boundary: where the ranks agree, and where membership changes.

*Vote*, before the optimizer changes anything: each rank sends its private values to its guardian
(``wards``), and only when it holds its own ward's does it cast a ballot; so a committed step's private values
are always on two machines.  One reduction decides.  *Meeting*, when an epoch broke: the ranks of
the next epoch tell where they stand and :func:`~trainmover.training.agreement.resolve` settles the
step (roll forward or redo).  *Settling*, between two iterations: joiners receive their state,
every rank compares digests, private values are mirrored anew; then calls are open again.

Whatever breaks in any of these leads to the next epoch and another meeting: epochs only grow and
each meeting is a whole agreement, so nothing is ever half done.
"""

from __future__ import annotations

import functools
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import torch

from trainmover import clock
from trainmover.ccl import algorithms
from trainmover.ccl.engine import CallsOpen, Engine, EpochBroken, Steps
from trainmover.ccl.tags import tag_of
from trainmover.ccl.view import Group
from trainmover.ccl.vote_walks import Poll
from trainmover.errors import JobError, LinkError, StateLost
from trainmover.events.catalogue import SwitchAdopted
from trainmover.topology.links import BOUNDARY, STATE, WORLD
from trainmover.training import agreement
from trainmover.training.agreement import BALLOT_SIZE, REPORT_SIZE, Ballot, Metric, Report, Resolution
from trainmover.training.handover import Handover, sources_of
from trainmover.training.mirror import Mirrors
from trainmover.training.orders import Order
from trainmover.training.residence import Residence
from trainmover.training.session import Session
from trainmover.training.state import TrackedState
from trainmover.training.wards import Wards

log = logging.getLogger(__name__)

KEY = "boundary"
MAX_METRICS = 16
DIGEST_BYTES = 32
LOSING = ("failure", "shrink")
"""Kinds of switches in which a machine is gone that did not leave in good order."""
BOUNDARY_SECONDS = 3600.0
"""Limit of one vote or meeting: the slowest rank's step, at most."""


Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a step. ``metrics`` are means over the ranks that have a value, once it is committed."""

    commit: bool
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a switch took, in seconds, and what this rank received and sent, in bytes."""

    epoch: int
    joiner: bool
    started: float
    ended: float
    switch_seconds: float
    copy_seconds: float
    verify_seconds: float


def _telling(
    method: Callable[Concatenate[Boundary, Arguments], Found],
) -> Callable[Concatenate[Boundary, Arguments], Found]:
    """Tell the machine program why this rank ends, when no rank can go on."""

    @functools.wraps(method)
    def told(boundary: Boundary, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        try:
            return method(boundary, *args, **kwargs)
        except StateLost as error:
            boundary.session.say_lost(error)
            raise

    return told


class Boundary:
    """The boundary of one rank.

    Attributes:
        committed: number of steps committed.
        history: False until this rank has committed state, as a joiner has none.
        mine: own private values as of ``committed``.
        lost: ranks whose machines were lost, or paused, in the switches since somebody last asked.
    """

    handover = Handover
    """How state is handed over."""

    def __init__(self, session: Session, tracked: TrackedState) -> None:
        self.session = session
        self.tracked = tracked
        self.committed = 0
        self.history = False
        self.mine = b""
        self.lost: set[int] = set()
        self._pending = -1
        self._switch_to = 0
        self._resolution: Resolution | None = None
        self._last: tuple[list[str], dict[str, float]] = [], {}
        self._meeting_seconds = 0.0
        self._world: tuple[int, ...] = ()
        self.residence = Residence()
        self.mirrors = Mirrors(session, tracked)
        self.wards = Wards(session, self.mirrors)

    @property
    def _engine(self) -> Engine:
        return self.session.engine

    def _group(self, channel: str = BOUNDARY) -> Group:
        comm = self.session.communicator
        if len(self._world) != comm.world_size:
            self._world = tuple(range(comm.world_size))
        return comm.view(WORLD, self._world, channel)

    # -- vote ----------------------------------------------------------------------------------

    @_telling
    def vote(self, metrics: Mapping[str, Metric]) -> Verdict:
        """Decide the current step with all ranks. Blocks until it is decided, whatever happens.

        Args:
            metrics: numbers to average over the ranks that have some (None: this rank has not); the same
                names on every rank.
        """
        names = sorted(metrics)
        if len(names) > MAX_METRICS:
            raise JobError(f"a step may log up to {MAX_METRICS} metrics, not {len(names)}")
        self.session.points.hit("vote")
        self.session.make_sure()
        private = self.tracked.private_values()
        candidate = self.committed + 1
        ballot = Ballot(True, self.session.prepared_epoch())
        numbers = [*ballot.numbers(), *agreement.columns(metrics)]
        if not self.session.communicator.swallowing:
            try:
                self.mirrors.before_ballot(candidate)
                self.mirrors.announce()
                tally = self._engine.run(
                    KEY, "vote", lambda: self._vote(candidate, private, numbers, names), BOUNDARY_SECONDS
                )
            except EpochBroken:
                pass
            else:
                result = agreement.outcome(tally, self._engine.epoch)
                self._pending = -1
                if not result.commit:
                    return Verdict(False, {})
                self._switch_to = result.switch_to
                means = agreement.means(names, tally[BALLOT_SIZE:])
                return self._commit(candidate, private, names, means)
        self.session.communicator.close_gate()
        report = self._report()
        resolution, told = self._meet(names)
        if resolution.rolls_forward(report):
            return self._commit(resolution.committed, private, names, told)
        self._pending = -1
        return Verdict(False, {})

    def _commit(self, committed: int, private: bytes, names: list[str], metrics: dict[str, float]) -> Verdict:
        self.committed, self.mine, self._pending = committed, private, -1
        self.history = True
        self._last = names, metrics
        self.wards.committed(committed)
        return Verdict(True, metrics)

    def _vote(self, candidate: int, private: bytes, numbers: list[float], names: list[str]) -> Steps:
        group = self._group()
        mirror = self.wards.exchange(group, candidate, private)
        begun = next(mirror, ())  # its receive comes before the ballots': they may share a link
        tag = tag_of("vote", zlib.crc32(" ".join(names).encode()))
        poll = Poll(self.session.points.along(group, "voting"), len(numbers), tag)
        if begun:
            yield begun
            yield from mirror
        self._pending = candidate
        return (yield from poll.vote(numbers, agreement.tally))

    # -- meeting -------------------------------------------------------------------------------

    def _report(self) -> Report:
        return Report(self.history, self.committed, self._pending)

    def _meet(self, names: list[str], order: Order | None = None) -> tuple[Resolution, dict[str, float]]:
        """Enter the next epoch that can be entered and settle where training stands."""
        while True:
            order = order or self.session.wait_for_epoch()
            started = time.monotonic()
            self._adopt(order)
            rows = torch.zeros(order.layout.world_size, REPORT_SIZE + 2 * MAX_METRICS, dtype=torch.float64)
            mine = rows[self.session.rank].clone()
            mine[:REPORT_SIZE] = torch.tensor(self._report().numbers(), dtype=torch.float64)
            names_known, metrics_known = self._last
            row = agreement.columns({name: metrics_known.get(name) for name in names_known})
            known = torch.tensor(row, dtype=torch.float64)
            mine[REPORT_SIZE : REPORT_SIZE + len(known)] = known
            try:
                self._engine.run(KEY, "meeting", self._gathering(mine, rows, "meeting"), BOUNDARY_SECONDS)
            except EpochBroken:
                order = None
                continue
            reports = [Report.read(row) for row in rows[:, :REPORT_SIZE].tolist()]
            start, newcomers = order.event.kind == "start", order.newcomers()
            absent = self.session.communicator.absent
            resolution = agreement.resolve(reports, start=start, newcomers=newcomers, absent=absent)
            self._resolution = resolution
            self._meeting_seconds = time.monotonic() - started
            told = rows[resolution.ahead[0], REPORT_SIZE : REPORT_SIZE + 2 * len(names)].tolist()
            return resolution, agreement.means(names, told)

    def _adopt(self, order: Order) -> None:
        until = time.monotonic() + 60.0
        while True:
            try:
                self.session.adopt(order)
                return
            except LinkError as error:
                if time.monotonic() > until or not isinstance(error, CallsOpen):
                    raise JobError(
                        f"rank {self.session.rank} cannot enter epoch {order.epoch}: {error}"
                    ) from error
                time.sleep(0.001)

    def _gathering(self, mine: torch.Tensor, rows: torch.Tensor, point: str = "") -> Callable[[], Steps]:
        """The walk that brings every rank's ``mine`` into the rows of ``rows``, passing a point."""
        group = self.session.points.along(self._group(), point)
        return lambda: algorithms.all_gather(group, mine, list(rows.unbind(0)), tag_of("meeting"))

    # -- the start of a job --------------------------------------------------------------------

    def begin(self) -> None:
        """Join the first epoch of a job that starts from nothing."""
        self.session.communicator.close_gate()
        self._meet([])
        self._resolution = None
        self._say_adopted(0.0, 0.0, 0, 0, "")
        self.session.points.hit("joined")
        self.session.communicator.open_gate()

    def tell_all(self, number: int) -> list[int]:
        """Give a number to all ranks, before the first step; returns everybody's, by rank.

        Raises:
            JobError: a machine was lost meanwhile; everything starts again.
        """
        rows = torch.zeros(self.session.communicator.world_size, 1, dtype=torch.int64)
        mine = torch.tensor([number], dtype=torch.int64)
        try:
            self._engine.run(KEY, "telling", self._gathering(mine, rows), BOUNDARY_SECONDS)
        except EpochBroken as error:
            raise JobError(f"the epoch broke before the first step: {error}") from error
        return [int(row) for row in rows[:, 0].tolist()]

    # -- settling ------------------------------------------------------------------------------

    @property
    def changing(self) -> bool:
        """There is something to settle before the next iteration: the membership changes here."""
        return bool(self._resolution or self._switch_to or self._engine.broken)

    @_telling
    def settle(self, *, joining: bool = False) -> Settled | None:
        """Between two iterations: carry out what was agreed. None when nothing had changed.

        Args:
            joining: this rank comes from the sandbox and enters its first epoch.
        """
        if not (joining or self.changing):
            return None
        began = clock.now()
        self.session.communicator.close_gate()
        while True:
            if self._resolution is None:
                self._pending = -1
                self._meet([], self._agreed_order())
            assert self._resolution is not None
            assert self.session.order is not None
            resolution, order = self._resolution, self.session.order
            self._resolution, self._switch_to = None, 0
            try:
                settled = self._settle(order, resolution, began)
            except EpochBroken as error:
                log.info("settling epoch %d broke: %s", order.epoch, error)
                continue
            self.session.communicator.open_gate()
            return settled

    def _agreed_order(self) -> Order | None:
        """The order that the vote agreed on, if this rank has a place in it and it still stands."""
        epoch, self._switch_to = self._switch_to, 0
        if not epoch:
            return None
        return self.session.order_for(epoch)

    def _settle(self, order: Order, resolution: Resolution, began: float) -> Settled:
        started = time.monotonic()
        joiner = self.session.rank in resolution.joiners
        received = sent = 0
        source = ""
        if order.event.kind in LOSING:
            self.lost |= {*resolution.joiners, *self.session.communicator.absent}
        self.mirrors.placed(order)
        if resolution.joiners:
            if joiner:
                self.residence.materialise()
            group = self.session.points.along(self._group(STATE), "copy")
            copy = self.handover(self._engine, group, self.tracked, order, resolution, self.mirrors)
            if joiner:
                received, source, self.mine = copy.receive()
                self.committed = resolution.committed
            else:
                sent = copy.send(lambda rank: self.wards.of(rank, resolution.committed, self.mine))
        copied = time.monotonic()
        if resolution.joiners:
            self.session.points.hit("copied")
            self._compare(order, resolution)
        private = self.mine
        group = self._group()
        self.wards.keep_of_absent(
            group,
            resolution.committed,
            lambda walk: self._engine.run(KEY, "keeping", walk, BOUNDARY_SECONDS),
        )
        self.mirrors.announce(resolution.joiners)
        self._engine.run(
            KEY,
            "mirror",
            lambda: self.wards.exchange(group, resolution.committed, private),
            BOUNDARY_SECONDS,
        )
        self.mirrors.after_settling(resolution.committed)
        ended = time.monotonic()
        self.wards.settled()
        self.history = self.session.settled = True
        links = sorted(item for item in order.state_links() if self.session.rank in (item.low, item.high))
        table = self._engine.table
        self._engine.call(lambda: table.drop(links))
        self._say_adopted(copied - started, ended - copied, received, sent, source)
        self.session.points.hit("joined")
        return Settled(
            order.epoch, joiner, began, clock.now(), self._meeting_seconds, copied - started, ended - copied
        )

    def _compare(self, order: Order, resolution: Resolution) -> None:
        """Each joiner must have the state of those that it comes from before it counts as a member."""
        me = self.session.rank
        mine = torch.zeros(DIGEST_BYTES, dtype=torch.uint8)
        sources = sources_of(order, resolution)
        if me in sources or any(me in ranks for ranks in sources.values()):
            mine = torch.frombuffer(bytearray.fromhex(self.tracked.digest()), dtype=torch.uint8)
        rows = torch.zeros(order.layout.world_size, DIGEST_BYTES, dtype=torch.uint8)
        self._engine.run(KEY, "digests", self._gathering(mine, rows), BOUNDARY_SECONDS)
        wrong = [
            joiner
            for joiner, ranks in sources.items()
            if not all(torch.equal(rows[joiner], rows[rank]) for rank in ranks)
        ]
        if me in wrong:
            raise JobError(
                f"after the state copy of epoch {self._engine.epoch} rank {me} differs from its sources, "
                f"ranks {sources[me]} (joiners that differ: {wrong}); it leaves rather than train on"
            )
        if wrong:
            log.error(
                "after the state copy of epoch %d ranks %s differ; they leave", self._engine.epoch, wrong
            )
        if me in sources:
            self.tracked.load_private_values(self.mine)

    def _say_adopted(self, copy: float, verify: float, received: int, sent: int, source: str) -> None:
        self.session.say(
            SwitchAdopted(
                epoch=self._engine.epoch,
                rank=self.session.rank,
                machine=self.session.env.machine,
                step=self.committed,
                switch_seconds=self._meeting_seconds,
                copy_seconds=copy,
                verify_seconds=verify,
                bytes_received=received,
                bytes_sent=sent,
                source=source,
            )
        )
