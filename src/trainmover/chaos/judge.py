"""The judge: whether a disturbed run is what it was to be.

What lives here: all that is looked at when a round has ended.  What never lives here: runs.

- It completed, with the digest of the undisturbed run and the loss of every step.  In that one all losses are
  finite: where they are not, all ends are alike, and none tells anything.
- No step was committed with two results; no epoch was both committed and given up.
- No machine was declared dead for its silence to which nothing was done.
- Its log, fed to fresh services, makes them say the same.
- Nothing of it is left: no process, no port that listens, no shared-memory segment, no file outside its
  folder, no network.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trainmover.chaos.disk import BALLAST
from trainmover.chaos.plan import NETWORK
from trainmover.chaos.round import Order, Result
from trainmover.errors import TrainMoverError
from trainmover.events import catalogue as say
from trainmover.events.copies import opened
from trainmover.events.envelope import Envelope
from trainmover.events.log import read_log
from trainmover.machine.rundir import RunDir
from trainmover.monitor.report import Report, build_report
from trainmover.monitor.steps import StepFacts, read_steps
from trainmover.services.reasons import is_silence
from trainmover.services.replay import replay

MARK: Final = "TRAINMOVER_CHAOS"
"""Variable in the environment of every process of a round."""

LEFT_SECONDS: Final = 8.0
"""How long after its end something of a round may still be going away."""

SEGMENTS: Final = Path("/dev/shm")  # noqa: S108 - looked at, not written to
PATIENCE: Final = 0.1
MOST_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class Truth:
    """What the undisturbed run came to."""

    digest: str
    losses: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round came to.

    Attributes:
        complaints: what does not hold; empty when all does.
        faults: what went wrong in it, as it was done.
        incidents: kind and machine of each replacement.
        truth: its digest and losses.
    """

    complaints: tuple[str, ...]
    faults: tuple[str, ...]
    incidents: tuple[str, ...]
    truth: Truth


def judge(order: Order, result: Result | None, truth: Truth | None, mark: str) -> Verdict:
    """Look at a round that has ended.

    Args:
        order: what it was told.
        result: what it told; None: it ended without a word.
        truth: what the undisturbed run came to; None: this is it.
        mark: of its processes.
    """
    complaints = list(left(order, mark))
    run = RunDir(order.run_dir)
    facts = read_steps(run.steps)
    envelopes: list[Envelope] = []
    if result is None:
        complaints.insert(0, "the run did not end in time")
    else:
        if result.code:
            complaints.insert(0, f"the run ended with code {result.code}: {result.failure}")
        try:
            envelopes = opened(record.envelope for record in read_log(run.events))
        except (TrainMoverError, OSError) as error:
            complaints.append(f"its log cannot be read: {error}")
    report = build_report(envelopes, facts)
    complaints += report.problems
    if truth is None:
        complaints += _not_finite(facts)
    elif result is not None and not result.code:
        complaints += _differences(report, truth)
    complaints += _halves(envelopes)
    complaints += _wronged(order, envelopes)
    if envelopes:
        complaints += _replayed(envelopes)
    found = Truth(report.digest or "", tuple(report.losses))
    incidents = tuple(f"{item.kind} of {item.machine}" for item in report.incidents)
    return Verdict(tuple(complaints), _done(order, result, facts), incidents, found)


def _differences(report: Report, truth: Truth) -> Iterable[str]:
    if report.digest != truth.digest:
        yield f"its digest is {report.digest}, that of the undisturbed run {truth.digest}"
    losses = tuple(report.losses)
    if losses != truth.losses:
        steps = [
            str(step)
            for step in range(max(len(losses), len(truth.losses)))
            if losses[step : step + 1] != truth.losses[step : step + 1]
        ]
        yield f"its losses differ in step {', '.join(steps[:MOST_LINES])}"


def _not_finite(facts: StepFacts) -> Iterable[str]:
    """The first step of a run that diverges: what is not a number swallows every difference."""
    steps = [fact.step for fact in facts.steps if fact.loss is not None and not math.isfinite(fact.loss)]
    if steps:
        yield f"its loss is no finite number from step {min(steps)} on: nothing can be compared with that"


def _halves(envelopes: Iterable[Envelope]) -> Iterable[str]:
    """Epochs that were both committed and given up."""
    ends: dict[int, set[str]] = {}
    for envelope in envelopes:
        if isinstance(envelope.event, (say.SwitchCommitted, say.SwitchAborted)):
            ends.setdefault(envelope.event.epoch, set()).add(envelope.type)
    return [f"epoch {epoch} was committed and given up" for epoch, how in ends.items() if len(how) > 1]


def _wronged(order: Order, envelopes: Iterable[Envelope]) -> Iterable[str]:
    """Machines that were declared dead because nothing was heard of them, though they were well."""
    plan = order.plan
    hit = {fault.machine for fault in plan.faults if fault.kind in ("kill", "stop")}
    for trouble in plan.troubles:
        if trouble.kind in NETWORK:
            hit.update(trouble.target.split("+"))
    for event in (envelope.event for envelope in envelopes):
        if isinstance(event, say.MachineFailed) and event.machine not in hit and is_silence(event.reason):
            yield f"{event.machine} was well, and was declared dead: {event.reason}"


def _replayed(envelopes: list[Envelope]) -> Iterable[str]:
    found = replay(envelopes)
    if not found.same:
        yield f"its log replays with {len(found.differences)} differences; the first: {found.differences[0]}"


def _done(order: Order, result: Result | None, facts: StepFacts) -> tuple[str, ...]:
    """What went wrong, as ranks and hands tell of it."""
    specs = dict.fromkeys(fact.spec for fact in facts.faults if not fact.spec.startswith("pause:"))
    slow = [str(fault) for fault in order.plan.faults if fault.kind == "slow"]
    return (*specs, *slow, *(result.done if result is not None else ()))


# -- what is left ----------------------------------------------------------------------------------


def left(order: Order, mark: str) -> Iterable[str]:
    """What is left of a round that has ended, after a moment in which it may go away."""
    looks: list[Callable[[], list[str]]] = [
        lambda: [f"process {process}" for process in marked(mark)],
        lambda: _ports(order, mark),
        _segments,
        lambda: _files(Path(order.folder)),
    ]
    until = time.monotonic() + LEFT_SECONDS
    for look in looks:
        while found := look():
            if time.monotonic() > until:
                yield f"left of it: {', '.join(found[:MOST_LINES])}"
                break
            time.sleep(PATIENCE)


def marked(mark: str) -> list[psutil.Process]:
    """Processes of a round."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(MARK) == mark
            if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _ports(order: Order, mark: str) -> list[str]:
    """Ports that processes of the round, or nobody that can be seen, still listen at."""
    pids = {process.pid for process in marked(mark)}
    ports = _ports_of(RunDir(order.run_dir))
    if not pids and not ports:
        return []
    try:
        there = psutil.net_connections("inet")
    except psutil.Error:
        return []
    listening = [c for c in there if c.status == psutil.CONN_LISTEN]
    mine = [c for c in listening if c.pid in pids or (c.pid is None and c.laddr.port in ports)]
    return [f"port {connection.laddr.port}" for connection in mine]


def _ports_of(run: RunDir) -> set[int]:
    try:
        events = [record.envelope.event for record in read_log(run.events)]
    except (TrainMoverError, OSError):
        return set()
    return {event.endpoint.port for event in events if isinstance(event, say.RankStarted)}


def _segments() -> list[str]:
    """Shared-memory segments that processes have left which are gone."""
    found: list[str] = []
    if SEGMENTS.is_dir():
        for path in SEGMENTS.iterdir():
            name = re.fullmatch(r"(?:torch|trainmover)_(\d+)_.*", path.name)
            if name is not None and not psutil.pid_exists(int(name[1])):
                found.append(f"segment {path}")
    return found


def _files(folder: Path) -> list[str]:
    """Files of the round outside the run's folder, and its ballast."""
    temporary = [path for path in (folder / "tmp").rglob("*") if path.is_file() or path.is_socket()]
    ballast = [path for path in (folder / "run").glob(BALLAST) if path.exists()]
    return [f"file {path}" for path in (*temporary, *ballast)]
