"""The matrix: a service, the bus or a machine fails at every phase of a switch.

A machine of four is replaced, because it failed or because it is asked to move, with two standbys parked.
At each event of that switch one more thing goes wrong.  Whatever it is, the switch is completed or given up,
never half; a joiner that is lost is followed by the next standby; the incident ends, its story is whole, and
what watches every simulation (``simulator.watch``) has nothing to complain of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

import pytest

from trainmover.events import catalogue as say
from trainmover.services import SERVICES
from trainmover.simulator import Outcome, Setup, draw, simulate
from trainmover.simulator.cluster import Cluster
from trainmover.simulator.report import violation_lines

Kind = Literal["failure", "move"]

LEAVER: Final = "m1"
PHASES: Final[dict[str, tuple[type[say.Event], int]]] = {
    "assigned": (say.StandbyAssigned, 0),
    "planned": (say.PlanReady, 0),
    "prepare": (say.SwitchPrepare, 0),
    "first prepared": (say.SwitchPrepared, 0),
    "all prepared": (say.SwitchPrepared, 3),
    "first adopted": (say.SwitchAdopted, 0),
    "all adopted": (say.SwitchAdopted, 3),
    "committed": (say.SwitchCommitted, 0),
    "replenish": (say.StandbyReplenish, 0),
}
"""The phases of a switch: the event that begins each, and how many like it come before."""

OPENED: Final[dict[Kind, type[say.Event]]] = {"failure": say.MachineFailed, "move": say.MoveRequested}


def setup() -> Setup:
    """Four machines and two standbys; nothing goes wrong by chance."""
    return replace(
        draw(0),
        machines=4,
        slots=1,
        standbys=2,
        roles=1,
        fault_seconds=12.0,
        faults=0,
        step_seconds=0.3,
        start_seconds=0.5,
        warm_seconds=1.0,
        memory="resident",
        on_exhausted="hold",
        supply=1.0,
        total_steps=0,
        latency=0.005,
        loss=0.0,
    )


Disturb = Callable[[Cluster], str]


def disturbed(kind: Kind, phase: str, disturb: Disturb) -> Outcome:
    """A run in which one machine is replaced, and that is disturbed when this phase begins."""

    def beforehand(cluster: Cluster) -> None:
        def begin(_: say.Event) -> str:
            event, skip = PHASES[phase] if phase != "opened" else (OPENED[kind], 0)
            cluster.faults.ambush(event, lambda _: disturb(cluster), skip=skip)
            if kind == "failure":
                cluster.machines[LEAVER].kill()
                return f"{LEAVER} is killed"
            cluster.operator(say.MoveRequested(machine=LEAVER))
            return f"{LEAVER} is asked to move"

        # Both standbys are parked.
        cluster.faults.ambush(say.StandbyParked, begin, skip=1)

    return simulate(setup(), beforehand=beforehand)


def events(outcome: Outcome, kind: type[say.Event], *, after_start: bool = True) -> list[say.Event]:
    """The events of one kind in the log; of switches without the start of the job."""
    found = [envelope.event for envelope in outcome.log if isinstance(envelope.event, kind)]
    return [event for event in found if not after_start or getattr(event, "kind", "") != "start"]


def check(outcome: Outcome, kind: Kind) -> None:
    """The run completed, every switch that was begun has one end, and the story of the incident is whole."""
    assert outcome.violation is None, "\n".join(violation_lines(outcome))
    assert outcome.ending == "completed"
    assert not outcome.forgetful
    ends: dict[int, set[str]] = {}
    for envelope in outcome.log:
        event = envelope.event
        if isinstance(event, (say.SwitchPrepare, say.SwitchCommitted, say.SwitchAborted)):
            ends.setdefault(event.epoch, set())
        if isinstance(event, (say.SwitchCommitted, say.SwitchAborted)):
            ends[event.epoch].add(event.type)
    assert all(len(end) == 1 for end in ends.values()), ends
    commits = events(outcome, say.SwitchCommitted)
    assert LEAVER not in commits[-1].machines  # type: ignore[attr-defined]
    first = next(e for e in outcome.log if isinstance(e.event, say.StandbyAssigned))
    assert isinstance(first.event, say.StandbyAssigned)
    assert first.event.kind == kind
    told = [
        e.type
        for e in outcome.log
        if first.event.incident in (e.incident, *getattr(e.event, "incidents", ()))
    ]
    for needed in ("standby.assigned", "plan.ready", "switch.prepare", "switch.committed"):
        assert needed in told, f"the story of {first.event.incident} lacks {needed}: {told}"


def dies(service: str, publishes: int, pause: float) -> Disturb:
    """A service dies, at once or in the place of one of its next publishes, and is started again."""

    def disturb(cluster: Cluster) -> str:
        cluster.hosts[service].crash(publishes, pause)
        return f"service {service} dies"

    return disturb


def freezes(service: str, seconds: float) -> Disturb:
    """A service stands still for a while."""

    def disturb(cluster: Cluster) -> str:
        host = cluster.hosts[service]
        host.freeze()
        cluster.later(seconds, host.thaw)
        return f"service {service} is frozen"

    return disturb


def away(seconds: float) -> Disturb:
    """The bus is away for a while, as when it is killed and started again."""

    def disturb(cluster: Cluster) -> str:
        cluster.exchange.go_out()
        cluster.later(seconds, cluster.exchange.come_back)
        return "the bus is away"

    return disturb


def stalls(seconds: float) -> Disturb:
    """What is said is heard, but the log takes nothing for a while."""

    def disturb(cluster: Cluster) -> str:
        cluster.exchange.stalled = True

        def end() -> None:
            cluster.exchange.stalled = False

        cluster.later(seconds, end)
        return "the log stalls"

    return disturb


def stands(seconds: float) -> Disturb:
    """The server stops, with all that was given to it, and goes on; nobody is told."""

    def disturb(cluster: Cluster) -> str:
        cluster.exchange.stand_still()
        cluster.later(seconds, cluster.exchange.go_on)
        return "the bus stands still"

    return disturb


def loses(who: Literal["joiner", "leaver", "stayer"], *, hanging: bool) -> Disturb:
    """A machine that has a part in the switch is gone, at once or without a word (as by a power loss)."""

    def disturb(cluster: Cluster) -> str:
        joiner = next(e.event for _, e in cluster.said if isinstance(e.event, say.StandbyAssigned)).joiner  # type: ignore[attr-defined]
        name = {"joiner": joiner, "leaver": LEAVER, "stayer": "m3"}[who]
        cluster.machines[name].kill(hanging=hanging)
        return f"{name} is lost"

    return disturb


CONTROL: Final[dict[str, Disturb]] = {
    **{f"{name} dies": dies(name, 0, 0.5) for name in SERVICES},
    **{f"{name} dies before it speaks": dies(name, 1, 0.5) for name in SERVICES},
    **{f"{name} is gone for long": dies(name, 0, 8.0) for name in SERVICES},
    **{f"{name} is frozen": freezes(name, 5.0) for name in SERVICES},
    "the bus restarts": away(0.4),
    "the bus is away for long": away(9.0),
    "the log stalls": stalls(6.0),
    **{f"the bus stands still for {seconds:g} s": stands(seconds) for seconds in (1.0, 2.6, 3.0, 6.0, 9.0)},
}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("phase", ["opened", *PHASES])
@pytest.mark.parametrize("kind", ["failure", "move"])
def test_the_control_plane_is_disturbed(kind: Kind, phase: str) -> None:
    """Services and the bus may fail in any phase: the one switch comes through all the same."""
    for what, disturb in CONTROL.items():
        outcome = disturbed(kind, phase, disturb)
        check(outcome, kind)
        commits = events(outcome, say.SwitchCommitted)
        assert len(commits) - len(events(outcome, say.LinkRepair)) <= 1, f"{what}: {commits}"
        lost = {event.machine for event in events(outcome, say.MachineFailed)}  # type: ignore[attr-defined]
        assert lost == ({LEAVER} if kind == "failure" else set()), f"{what}: {lost}"


def test_everything_fails_together() -> None:
    """All four services die at once in the middle, and the bus is away."""

    def all_of_it(cluster: Cluster) -> str:
        for name in SERVICES:
            dies(name, 0, 0.5)(cluster)
        return away(3.0)(cluster)

    for kind in OPENED:
        for phase in PHASES:
            check(disturbed(kind, phase, all_of_it), kind)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("phase", list(PHASES))
@pytest.mark.parametrize(
    ("kind", "who"),
    [*((kind, who) for kind in OPENED for who in ("joiner", "stayer")), ("move", "leaver")],
)
def test_a_machine_is_lost(kind: Kind, who: Literal["joiner", "leaver", "stayer"], phase: str) -> None:
    """The joiner, the leaver of a move or a machine that stays may be lost in any phase, too."""
    for hanging in (False, True):
        outcome = disturbed(kind, phase, loses(who, hanging=hanging))
        check(outcome, kind)
        joiners = [event.joiner for event in events(outcome, say.StandbyAssigned)]  # type: ignore[attr-defined]
        last = events(outcome, say.SwitchCommitted)[-1].machines  # type: ignore[attr-defined]
        if who == "joiner":
            assert len(set(joiners)) == 2, "the next standby takes over"
            assert joiners[0] not in last
        if who == "stayer":
            assert "m3" not in last


@pytest.mark.parametrize("kind", list(OPENED))
def test_a_machine_dies_while_the_log_takes_nothing(kind: Kind) -> None:
    """What it had just said is put into the log by those who heard it, so that the log replays."""
    copies = 0
    for phase in PHASES:
        for who, delay in (("joiner", 0.02), ("stayer", 0.2)):

            def stalls_and_loses(cluster: Cluster, who: Any = who, delay: float = delay) -> str:
                stalls(6.0)(cluster)
                cluster.later(delay, loses(who, hanging=False), cluster)
                return f"the log stalls and the {who} is lost"

            outcome = disturbed(kind, phase, stalls_and_loses)
            check(outcome, kind)
            copies += len(events(outcome, say.JournalCopy))
    assert copies, "some had said something that nobody else could store"
