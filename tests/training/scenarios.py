"""What health and switcher do while machines die: scenarios that several tests put their clusters through."""

from __future__ import annotations

from tests.ccl.worlds import wait_until
from tests.training.clusters import Cluster
from tests.training.ranks import Rank
from trainmover.events.catalogue import SwitchAdopted


def strike(cluster: Cluster, machine: str) -> None:
    """Wait until a machine has died, and tell everybody, as the health service does."""
    try:
        wait_until(lambda: any(rank.dead for rank in cluster.on(machine)), f"{machine} dies")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.describe()}") from error
    cluster.failed(machine)


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
