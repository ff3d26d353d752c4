"""Two machines that do not reach each other, in virtual time: every incident ends, whoever is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

import pytest

from tests.simulator.test_disturbed_switches import events, setup
from trainmover.events import catalogue as say
from trainmover.services.core import noted
from trainmover.services.health import HealthCore
from trainmover.simulator.cluster import Cluster
from trainmover.simulator.faults import Act
from trainmover.simulator.report import violation_lines
from trainmover.simulator.run import Outcome, simulate

FOREVER: Final = 0.0


def part(cluster: Cluster, one: str, other: str, seconds: float, *, narrow: bool = False) -> str:
    """Two machines do not reach each other for so long; ``narrow``: only their large packets are lost."""
    pair, reach = frozenset({one, other}), cluster.training.reach
    pairs = reach.narrow if narrow else reach.parted
    pairs.add(pair)
    if seconds:
        cluster.later(seconds, pairs.discard, pair)
    return f"{one} and {other} do not reach each other"


def run(
    begin: type[say.Event],
    act: Callable[[Cluster, Any], str],
    *,
    skip: int = 0,
    cores: Any = None,
    **changes: Any,
) -> Outcome:
    """A run of four machines and two standbys to which something happens at one event."""

    def beforehand(cluster: Cluster) -> None:
        spring: Act = lambda event: act(cluster, event)  # noqa: E731
        cluster.faults.ambush(begin, spring, skip=skip)

    return simulate(replace(setup(), **changes), cores, beforehand)


def replaced(outcome: Outcome) -> list[str]:
    """Machines that were declared dead; the run must have been all right."""
    assert outcome.violation is None, "\n".join(violation_lines(outcome))
    assert outcome.ending == "completed"
    return [event.machine for event in events(outcome, say.MachineFailed)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(5.0, []), (20.0, []), (30.0, []), (60.0, ["m2"]), (FOREVER, ["m2"])],
    ids=["before it is noticed", "while it is repaired", "just in time", "too late", "never"],
)
def test_two_members(seconds: float, expected: list[str]) -> None:
    """The network heals in time, or the one with the higher position goes."""
    outcome = run(say.StandbyParked, lambda cluster, _: part(cluster, "m1", "m2", seconds), skip=1)
    assert replaced(outcome) == expected


@pytest.mark.parametrize("seconds", [32.0, 32.5, 33.0, 33.5, 34.0, 34.5, 35.0])
def test_a_network_that_heals_about_the_verdict(seconds: float) -> None:
    """Whichever comes first, the run goes on, and at most one machine goes."""
    outcome = run(say.StandbyParked, lambda cluster, _: part(cluster, "m1", "m2", seconds), skip=1)
    assert replaced(outcome) in ([], ["m2"])


@pytest.mark.parametrize(
    ("seconds", "expected", "repairs"),
    [(30.0, [], 2), (FOREVER, ["m2"], 2)],
    ids=["it heals", "never"],
)
def test_a_network_that_loses_large_packets(seconds: float, expected: list[str], repairs: int) -> None:
    """Links are made, and break in the first step: two repairs, and then somebody goes."""
    outcome = run(
        say.StandbyParked, lambda cluster, _: part(cluster, "m1", "m2", seconds, narrow=True), skip=1
    )
    assert replaced(outcome) == expected
    assert len(events(outcome, say.LinkRepair)) == repairs
    for failed in events(outcome, say.MachineFailed):
        assert failed.unreached == ("m1",)  # type: ignore[attr-defined]
        said = "the link of m1 and m2 broke in the epochs 1, 2, 3, without a step between"
        assert said in failed.evidence  # type: ignore[attr-defined]


def test_two_cuts_with_a_common_end() -> None:
    """The machine that is in both goes, once."""

    def act(cluster: Cluster, _: say.Event) -> str:
        return part(cluster, "m1", "m2", FOREVER) + part(cluster, "m0", "m1", FOREVER)

    assert replaced(run(say.StandbyParked, act, skip=1)) == ["m1"]


def test_a_joiner_and_a_member() -> None:
    """Both standbys are tried: the member keeps its place where only the first is not reached."""

    def act(cluster: Cluster, event: say.StandbyAssigned) -> str:
        return part(cluster, "m0", event.joiner, FOREVER)

    def kill(cluster: Cluster, _: say.Event) -> str:
        cluster.faults.ambush(say.StandbyAssigned, lambda event: act(cluster, event))  # type: ignore[arg-type]
        cluster.machines["m1"].kill()
        return "m1 is killed"

    outcome = run(say.StandbyParked, kill, skip=1)
    joiner = events(outcome, say.StandbyAssigned)[0].joiner  # type: ignore[attr-defined]
    assert replaced(outcome) == ["m1", joiner]


def test_beside_a_move_only_the_joiner_goes() -> None:
    """Training goes on all the time: no step waits for the network."""

    def move(cluster: Cluster, _: say.Event) -> str:
        cluster.training.reach.parted |= {frozenset({"m0", "m4"})}
        cluster.operator(say.MoveRequested(machine="m1", to="m4"))
        return "m0 does not reach m4, to which m1 is to move"

    assert replaced(run(say.StandbyParked, move, skip=1)) == ["m4"]


def test_a_machine_that_only_the_bus_reaches() -> None:
    """No packet gets from or to its peers, and each of them tells: it goes, though its position is lowest."""

    def act(cluster: Cluster, _: say.Event) -> str:
        cluster.machines["m0"].cut(bus=False)
        return "m0 is cut off from its peers"

    assert replaced(run(say.StandbyParked, act, skip=1)) == ["m0"]


@pytest.mark.parametrize("policy", ["hold", "shrink"])
def test_without_a_spare(policy: str) -> None:
    """As for any failure: the job is held until a machine comes, or the replica pauses."""
    outcome = run(
        say.RolesFound,
        lambda cluster, _: part(cluster, "m1", "m2", FOREVER),
        standbys=0,
        on_exhausted=policy,
    )
    assert replaced(outcome)[0] == "m2"
    assert bool(events(outcome, say.JobHeld)) == (policy == "hold")
    assert bool(events(outcome, say.StandbyExhausted)) == (policy == "shrink")


class Patient(HealthCore):
    """Takes no notice of links that are dialled in vain."""

    HEARS: ClassVar[Any] = {**HealthCore.HEARS, say.LinkUnreached: noted}


def test_waiting_for_the_network_for_ever_is_caught() -> None:
    """A core that only repairs leaves an incident that does not end."""
    act = lambda cluster, _: part(cluster, "m1", "m2", FOREVER)  # noqa: E731
    outcome = run(say.StandbyParked, act, skip=1, cores={"health": Patient})
    assert "no rest" in str(outcome.violation)
