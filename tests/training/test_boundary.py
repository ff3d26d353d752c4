"""The promise: whatever dies, and whenever, the run ends with the bytes of one that was never disturbed."""

from __future__ import annotations

import threading

import pytest

from tests.ccl.worlds import LIMIT
from tests.training.clusters import at, released
from tests.training.conftest import MakeCluster
from tests.waiting import wait_until
from trainmover.errors import JobError
from trainmover.events.catalogue import LinkBroken, TrainingResumed, TrainingStarted
from trainmover.training.handover import Handover
from trainmover.training.session import Order


def test_an_undisturbed_run(cluster: MakeCluster) -> None:
    """Without faults every step commits at the first attempt, with the right losses and digest."""
    made = cluster()
    made.switch("start")
    ranks = made.finish()
    assert all(rank.ran == [(i, True) for i in range(6)] for rank in ranks)
    assert len(ranks[0].losses) == 6
    assert [event.step for event in ranks[0].said(TrainingStarted)] == [1]


@pytest.mark.parametrize("where", ["before", "reduced", "voted"])
@pytest.mark.parametrize("index", [1, 3, 5])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_in_a_step(cluster: MakeCluster, victim: int, index: int, where: str) -> None:
    """Killed before, between or after its collectives, it is replaced and nothing is lost."""
    made = cluster()
    made.standby("s0")
    rank = made.ranks[victim]
    dead = at(rank, index, where, rank.kill)
    made.switch("start")
    assert dead.wait(LIMIT)
    made.failed(f"m{victim}")
    made.switch("failure", {f"m{victim}": "s0"})
    ranks = made.finish()
    assert ranks[victim].machine == "s0"


OUT = [(2, "with its ballot out", [0, 1])] + [
    (0, "with the tally out", told) for told in ([], [1], [2], [1, 2])
]
"""Who dies with the vote half over, and who has the outcome then."""


@pytest.mark.parametrize(
    ("victim", "when", "told"),
    [(rank, when, []) for when in ("before the mirror", "after the mirror") for rank in (0, 2)] + OUT,
)
@pytest.mark.parametrize("candidate", [2, 4, 6])
def test_a_torn_vote(cluster: MakeCluster, candidate: int, victim: int, when: str, told: list[int]) -> None:
    """A rank dies inside the vote: some survivors may have committed the step; all end alike."""
    made = cluster()
    made.standby("s0")
    doomed = made.ranks[victim].boundary
    doomed.when, doomed.candidate, doomed.told = when, candidate, told
    doomed.learned = lambda: all(made.ranks[rank].boundary.committed == candidate for rank in told)
    made.switch("start")
    machine = f"m{victim}"
    wait_until(lambda: made.on(machine)[0].dead, "killed in the vote")
    made.switch("failure", {machine: "s0"})
    ranks = made.finish()
    redone = [rank.machine for rank in ranks if (candidate - 1, False) in rank.ran]
    survivors = [rank.machine for rank in ranks if rank.machine != "s0"]
    assert redone == ([] if told else survivors), "a step that anybody committed is rolled forward"


@pytest.mark.parametrize(("victim", "when", "told"), OUT[:1] + OUT[2:])
def test_a_torn_first_vote(cluster: MakeCluster, victim: int, when: str, told: list[int]) -> None:
    """Who committed the very first step has history, who only voted for it has not: both go on."""
    test_a_torn_vote(cluster, 1, victim, when, told)


def test_nothing_to_continue(cluster: MakeCluster) -> None:
    """Before anybody has committed a step there is nothing to keep: the ranks say so and leave."""
    made = cluster()
    made.standby("s0")
    dead = at(made.ranks[1], 0, "reduced", made.ranks[1].kill)
    made.switch("start")
    assert dead.wait(LIMIT)
    made.prepare("failure", {"m1": "s0"})
    wait_until(lambda: made.ranks[0].error is not None, "it gives up")
    assert "nothing can be continued" in str(made.ranks[0].error)


def test_only_the_bus_says_that_a_machine_failed(cluster: MakeCluster) -> None:
    """A machine that is declared dead while its sockets live is fenced out by all others."""
    made = cluster(steps=8)
    made.standby("s0")
    frozen, go_on = made.ranks[1], threading.Event()
    stopped = at(frozen, 3, "before", lambda: go_on.wait(LIMIT) and None)
    made.switch("start")
    assert stopped.wait(LIMIT)
    made.failed("m1")
    made.switch("failure", {"m1": "s0"})
    go_on.set()
    made.finish()
    assert frozen.session.engine.broken
    assert (3, True) not in frozen.ran


def test_a_planned_move(cluster: MakeCluster) -> None:
    """The leaver takes part until the switch; no step is void; it is released afterwards."""
    made = cluster(steps=12)
    made.standby("s0")
    hold = threading.Event()
    reached = at(made.ranks[0], 4, "before", lambda: hold.wait(LIMIT) and None)
    made.switch("start")
    assert reached.wait(LIMIT)
    leaver = made.ranks[2]
    machines = made.prepare("move", {"m2": "s0"})
    made.prepared()
    hold.set()
    made.adopted(machines, "move")
    ranks = made.finish()
    assert all(committed for rank in ranks for _, committed in rank.ran)
    leaver.threads[1].join(LIMIT)
    assert released(leaver)
    assert [event.epoch for event in ranks[0].said(TrainingResumed)] == [2]
    assert not any(event for rank in made.all for event in rank.said(LinkBroken))


def test_two_machines_one_after_the_other(cluster: MakeCluster) -> None:
    """With two standbys two losses are mended, whichever seats they had."""
    made = cluster(steps=8)
    made.standby("s0")
    made.standby("s1")
    first = at(made.ranks[0], 2, "reduced", made.ranks[0].kill)
    made.switch("start")
    assert first.wait(LIMIT)
    second = at(made.ranks[2], 5, "before", made.ranks[2].kill)
    made.switch("failure", {"m0": "s0"})
    assert second.wait(LIMIT)
    made.switch("failure", {"m2": "s1"})
    assert [rank.machine for rank in made.finish()] == ["s0", "m1", "s1"]


def test_a_joiner_dies_during_its_switch(cluster: MakeCluster) -> None:
    """Another standby takes the place; the first one's epoch is left behind by all."""
    made = cluster(steps=6)
    made.standby("s0")
    made.standby("s1")
    dead = at(made.ranks[1], 2, "reduced", made.ranks[1].kill)
    made.switch("start")
    assert dead.wait(LIMIT)
    joiner = made.on("s0")[0]

    class Dies(Handover):
        def receiving(self, *args):
            yield from ()
            joiner.boundary.die()
            yield from super().receiving(*args)

    joiner.boundary.handover = Dies
    made.prepare("failure", {"m1": "s0"})
    wait_until(lambda: joiner.dead, "the joiner dies in the copy")
    made.abort()
    made.failed("s0")
    made.switch("failure", {"m1": "s1"})
    made.finish()


def test_a_stayer_dies_during_a_switch(cluster: MakeCluster) -> None:
    """While one machine is replaced another one dies: both places are filled in the next epoch."""
    made = cluster(machines=4, steps=6)
    made.standby("s0")
    made.standby("s1")
    dead = at(made.ranks[1], 2, "reduced", made.ranks[1].kill)
    made.switch("start")
    assert dead.wait(LIMIT)
    stayer = made.ranks[3]

    class Dies(Handover):
        def sending(self, *args):
            yield from ()
            stayer.boundary.die()
            yield from super().sending(*args)

    stayer.boundary.handover = Dies
    made.prepare("failure", {"m1": "s0"})
    wait_until(lambda: stayer.dead, "the stayer dies in the copy")
    made.abort()
    made.failed("m3")
    made.switch("failure", {"m1": "s0", "m3": "s1"})
    assert [rank.machine for rank in made.finish()] == ["m0", "s0", "m2", "s1"]


def test_a_cut_link_is_repaired(cluster: MakeCluster) -> None:
    """Two machines that live but have lost their link: the same machines go on in a new epoch."""
    made = cluster()

    def cut() -> None:
        engine = made.ranks[0].session.engine
        connections = [c for c in engine.table.connections() if c.peer == 1]
        engine.ask(lambda: [connection.sock.shutdown(2) for connection in connections])

    done = at(made.ranks[0], 2, "before", cut)
    made.switch("start")
    assert done.wait(LIMIT)
    wait_until(lambda: any(rank.said(LinkBroken) for rank in made.all), "reported")
    made.switch("repair")
    made.finish()


def test_an_aborted_plan_leaves_training_alone(cluster: MakeCluster) -> None:
    """A move that is given up costs no step, and a later one is carried out."""
    made = cluster(steps=14)
    made.standby("s0")
    hold, more = threading.Event(), threading.Event()
    gate = at(made.ranks[0], 3, "before", lambda: hold.wait(LIMIT) and None)
    made.switch("start")
    assert gate.wait(LIMIT)
    made.prepare("move", {"m1": "s0"})
    made.prepared()
    made.abort()
    second = at(made.ranks[0], 7, "before", lambda: more.wait(LIMIT) and None)
    hold.set()
    assert second.wait(LIMIT)
    machines = made.prepare("move", {"m1": "s0"})
    made.prepared()
    more.set()
    made.adopted(machines, "move")
    assert all(committed for rank in made.finish() for _, committed in rank.ran)


def test_an_abort_while_a_joiner_enters_the_epoch(cluster: MakeCluster) -> None:
    """The joiner notices that the epoch it enters was given up, and comes to the next one."""
    made = cluster(steps=8)
    (joiner,) = made.standby("s0")
    hold = threading.Event()
    gate = at(made.ranks[0], 3, "before", lambda: hold.wait(LIMIT) and None)
    original, entered = joiner.session.adopt, threading.Event()

    def adopt(order: Order) -> dict[str, int]:
        if order.epoch == 2:
            made.abort()
            wait_until(lambda: joiner.session.orders.is_aborted(2), "the abort is heard")
        counts = original(order)
        entered.set()
        return counts

    joiner.session.adopt = adopt
    made.switch("start")
    assert gate.wait(LIMIT)
    made.prepare("move", {"m1": "s0"})
    assert entered.wait(LIMIT)
    machines = made.prepare("move", {"m1": "s0"})
    made.prepared()
    hold.set()
    made.adopted(machines, "move", limit=3.0)
    made.finish()


@pytest.mark.parametrize("where", ["reduced", "voted"])
def test_machines_of_several_ranks(cluster: MakeCluster, where: str) -> None:
    """All ranks of a machine die and are replaced together, whichever slot died first."""
    made = cluster(machines=3, steps=5, ranks_per_machine=2)
    made.standby("s0")
    victims = made.on("m1")
    dead = at(victims[1], 2, where, lambda: [rank.kill() for rank in victims] and None)
    made.switch("start")
    assert dead.wait(LIMIT)
    made.failed("m1")
    made.switch("failure", {"m1": "s0"})
    assert [rank.machine for rank in made.finish()] == ["m0", "m0", "s0", "s0", "m2", "m2"]


def test_a_lost_guardian_is_said(cluster: MakeCluster) -> None:
    """When a machine and the keeper of its private state die together, the survivors say what is lost."""
    made = cluster(machines=4, steps=6)
    made.standby("s0")
    made.standby("s1")
    both = [made.ranks[1], made.ranks[2]]
    dead = at(made.ranks[1], 2, "reduced", lambda: [rank.kill() for rank in both] and None)
    made.switch("start")
    assert dead.wait(LIMIT)
    made.prepare("failure", {"m1": "s0", "m2": "s1"})
    survivor = made.ranks[0]
    wait_until(lambda: survivor.error is not None, "the survivor gives up")
    assert isinstance(survivor.error, JobError)
    assert "private state of rank 1" in str(survivor.error)
    assert "rank 2" in str(survivor.error)
