"""What health and switcher do while machines die: scenarios that several tests put their clusters through."""

from __future__ import annotations

import threading

from tests.ccl.worlds import LIMIT
from tests.training.clusters import Cluster, at
from tests.training.ranks import Rank
from tests.waiting import wait_until
from trainmover.events.catalogue import SwitchAdopted


def strike(cluster: Cluster, machine: str) -> None:
    """Wait until a machine has died, and tell everybody, as the health service does."""
    try:
        wait_until(lambda: any(rank.dead for rank in cluster.on(machine)), f"{machine} dies")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.describe()}") from error
    cluster.failed(machine)


def lose(made: Cluster, victim: str, joiner: str = "s0") -> None:
    """The job starts, a machine dies of its fault, and a standby takes its place."""
    made.standby(joiner)
    made.switch("start")
    strike(made, victim)
    made.switch("failure", {victim: joiner})


def start_up_to(made: Cluster, rank: Rank, step: int) -> threading.Event:
    """The job starts, and a rank is held before this step: nobody commits it before the event is set."""
    go = threading.Event()
    reached = at(rank, step, "before", lambda: go.wait(LIMIT) and None)
    made.switch("start")
    assert reached.wait(LIMIT), made.describe()
    return go


def move(made: Cluster, leaver: str, joiner: str, go: threading.Event) -> None:
    """A machine is moved away at the boundary after the step that a rank is held before."""
    machines = made.prepare("move", {leaver: joiner})
    made.prepared()
    go.set()
    made.adopted(machines, "move")


def has_adopted(rank: Rank, epoch: int) -> bool:
    """Whether a rank works in an epoch, and has said so."""
    return any(event.epoch == epoch for event in rank.said(SwitchAdopted))


def end_switch(made: Cluster, machines: list[str], kind: str, victim: str) -> bool:
    """What the switcher does when a machine has died in a switch; returns whether it was committed.

    It is if it was complete, else it is given up; a leaver's death does not end it.
    """
    wait_until(lambda: any(rank.dead for rank in made.on(victim)), f"{victim} dies")
    members = [rank for machine in machines for rank in made.on(machine)]
    epoch = made.epoch

    def knows(rank: Rank) -> bool:
        return has_adopted(rank, epoch) or rank.session.engine.broken or rank.session.engine.epoch < epoch

    if victim in machines:
        wait_until(
            lambda: all(rank.dead or knows(rank) for rank in members), "everybody has adopted or broken"
        )
        if not all(has_adopted(rank, epoch) for rank in members):
            made.abort()
            made.failed(victim)
            return False
    made.failed(victim)
    made.adopted(machines, kind)
    return True


def lose_another(made: Cluster, victim: str) -> None:
    """Machine m1 dies, and while s0 takes its place another one does (s0 itself, or m3): s1 takes that."""
    made.standby("s0")
    made.standby("s1")
    made.switch("start")
    strike(made, "m1")
    machines = made.prepare("failure", {"m1": "s0"})
    if end_switch(made, machines, "failure", victim):
        made.switch("failure", {victim: "s1"})
    elif victim == "s0":
        made.switch("failure", {"m1": "s1"})
    else:
        made.switch("failure", {"m1": "s0", victim: "s1"})
