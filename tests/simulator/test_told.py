"""What the monitor tells of a simulated job's incidents is what happened in it, however its log came about.

The truth is what the simulated ranks did: the next epoch in which a step was committed after a machine was
lost is a switch of the same generation, which costs no step, or a start again, which costs those that are
done once more.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from trainmover.events import catalogue as say
from trainmover.monitor.report import build_report
from trainmover.monitor.steps import StepFact, StepFacts
from trainmover.monitor.view import ClusterView
from trainmover.simulator import Setup, draw, simulate
from trainmover.simulator.cluster import Cluster
from trainmover.simulator.setup import BEGIN


class Done(NamedTuple):
    """One rank committed a step: virtual time, where, which."""

    now: float
    epoch: int
    step: int
    machine: str
    rank: int


def watched(done: list[Done], cluster: Cluster) -> None:
    """Write down every step that a simulated rank commits."""
    check = cluster.training.on_step

    def on_step(assembly) -> None:
        check(assembly)
        for place, rank in sorted(assembly.ranks.items()):
            done.append(Done(cluster.now, assembly.epoch, rank.committed, rank.machine.name, place))

    cluster.training.on_step = on_step


def fact(row: Done) -> StepFact:
    """As its rank would have written it."""
    end = BEGIN + row.now
    return StepFact(row.machine, 0, 0, row.step, row.epoch, row.rank, end - 0.1, end, 0.1, 1.0, 0, False)


def complaints(setup: Setup) -> list[str]:
    """What is told of a run and is not true."""
    done: list[Done] = []
    outcome = simulate(setup, beforehand=lambda cluster: watched(done, cluster))
    assert outcome.violation is None, outcome.violation
    report = build_report(outcome.log, StepFacts(steps=[fact(row) for row in done]))
    view = ClusterView()
    starts, lost = set(), {}
    for envelope in outcome.log:
        view.apply(envelope)
        event = envelope.event
        if isinstance(event, say.SwitchPrepare) and event.kind == "start":
            starts.add(event.epoch)
        elif isinstance(event, say.MachineFailed):
            lost[event.machine, envelope.incident] = envelope.time - BEGIN
    found = []
    if outcome.ending == "completed":
        found += [f"{item.id} ({item.kind}) never ends" for item in view.open_incidents]
    for item in report.incidents:
        when = lost.get((item.machine, item.id))
        if when is None:
            if item.steps_lost:
                found.append(f"{item.id} ({item.kind}) cost {item.steps_lost} steps")
            continue
        before = max((row.epoch for row in done if row.now <= when), default=0)
        after = min((row for row in done if row.epoch > before), default=None)
        if after is None:
            continue
        again = {row.step for row in done if row.epoch < after.epoch and row.step >= after.step}
        cost = len(again) if after.epoch in starts else 0
        if item.steps_lost != cost:
            found.append(f"{item.id} ({item.machine}) cost {cost} steps, not {item.steps_lost}")
    return found


@pytest.mark.parametrize("seed", [27, 35, 109, 187])
def test_logs_that_told_nonsense(seed: int) -> None:
    """Events in another order than they were said, an epoch that broke before its first step."""
    assert complaints(draw(seed)) == []


@pytest.mark.long(every=4)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1000, 1400, 100))
@pytest.mark.parametrize("on_exhausted", ["hold", "shrink"])
def test_many_logs(first: int, on_exhausted: str) -> None:
    """Whatever goes wrong."""
    found = {
        seed: told
        for seed in range(first, first + 100)
        if (told := complaints(draw(seed, on_exhausted=on_exhausted)))
    }
    assert found == {}
