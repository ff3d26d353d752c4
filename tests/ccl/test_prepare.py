"""Phase 1 beside traffic, phase 2 at a boundary, and every way in which a plan may not come to pass."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Self

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import GROUP, LIMIT, PROMPT, World, done_within, sum_call
from tests.waiting import wait_until
from trainmover.ccl.connection import Connection
from trainmover.ccl.engine import EpochBroken
from trainmover.ccl.table import Peer, new_life
from trainmover.errors import LinkError
from trainmover.topology.links import WORLD, link


class Traffic:
    """All_reduces on every rank, one after the other, until told to stop at a common count."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rounds = 0
        self.stop_at = 1 << 30
        self.wrong: list[str] = []
        self._barrier = threading.Barrier(world.size, action=self._count)
        self._members = list(world.members)  # a test may put newcomers into the world meanwhile
        self._threads = [
            threading.Thread(target=self._run, args=(rank,), daemon=True) for rank in range(world.size)
        ]

    def _count(self) -> None:
        self.rounds += 1

    def _run(self, rank: int) -> None:
        total = self.world.size * (self.world.size + 1) / 2
        while self.rounds < self.stop_at:
            value = torch.full((30_000,), float(rank + 1))
            self._members[rank].all_reduce(value).wait()
            if not torch.equal(value, torch.full((30_000,), total)):
                self.wrong.append(f"rank {rank}, round {self.rounds}")
            self._barrier.wait(LIMIT)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.flows()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_at = self.rounds + 2
        for thread in self._threads:
            thread.join(LIMIT)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.wrong == []

    def flows(self) -> None:
        """Wait until a few more rounds have gone by."""
        now = self.rounds
        wait_until(lambda: self.rounds > now + 3, "all_reduces go on")


def aside(world: World, rank: int) -> dict[object, tuple[int, Connection]]:
    """What a rank has put aside for coming epochs."""
    return world[rank].engine.ask(lambda: dict(world[rank].table._aside))


def test_an_epoch_is_prepared_beside_traffic(make_world: MakeWorld) -> None:
    """While a newcomer's links are made the others' all_reduces go on, and no connection changes."""
    made = make_world(4)
    made.switch()
    leaver = made[3]
    with Traffic(made) as traffic:
        before = {rank: made[rank].connections() for rank in range(3)}
        made.members[3] = made._member(3)
        newcomer = made.members[3]
        ready = made.prepare(2)
        made.members[3] = leaver
        wait_until(ready, "prepared")
        traffic.flows()
        assert {rank: made[rank].connections() for rank in range(3)} == before
    made.members[3] = newcomer
    made.gone.append(leaver)
    counts = made.adopt(2)
    assert [count["swapped"] for count in counts] == [2, 2, 2, 6]
    assert [count["kept"] for count in counts] == [4, 4, 4, 0]
    made.check()


def test_preparing_says_what_was_made_and_kept(world: MakeWorld) -> None:
    """ready() is called once with the seconds it took and the counts of links."""
    made = world(3)
    made.replace(2)
    said: dict[int, list[tuple[float, int, int]]] = {0: [], 1: [], 2: []}
    for rank in range(3):
        plan, table, note = made.plan(rank, 2), made[rank].table, said[rank]
        made[rank].engine.call(
            lambda table=table, plan=plan, note=note: table.prepare(plan, lambda *answer: note.append(answer))
        )
    wait_until(lambda: all(said.values()), "prepared")
    made.adopt(2)
    made.check()
    assert {rank: [answer[1:] for answer in answers] for rank, answers in said.items()} == {
        0: [(2, 2)],
        1: [(2, 2)],
        2: [(4, 0)],
    }
    assert 0.0 <= said[0][0][0] < LIMIT


def test_an_abandoned_plan_leaves_everything_as_it_was(world: MakeWorld) -> None:
    """After an abort traffic goes on in the old epoch, and a later plan is carried out."""
    made = world(3)
    old = made.replace(2)
    wait_until(made.prepare(2), "prepared")
    newcomer, made.members[2] = made.members[2], old
    for rank in range(2):
        made[rank].engine.ask(lambda rank=rank: made[rank].table.abandon(2))
    newcomer.kill()
    made.check()
    wait_until(lambda: not aside(made, 0) and not aside(made, 1), "its links are forgotten")
    made.gone = []
    made.replace(2)
    made.epoch = 2
    made.switch()
    made.check()
    assert made.epoch == 3


def test_connections_of_an_abandoned_plan_serve_a_later_one(world: MakeWorld) -> None:
    """The next plan with the same newcomer finds its links ready made."""
    made = world(3)
    made.replace(2)
    wait_until(made.prepare(2), "prepared")
    for member in made.members:
        member.engine.ask(lambda member=member: member.table.abandon(2))
    before = {key: entry[1] for key, entry in aside(made, 0).items()}
    assert len(before) == 2
    wait_until(made.prepare(3), "prepared")
    assert {key: entry[1] for key, entry in aside(made, 0).items()} == before
    made.adopt(3)
    made.check()


def test_a_superseding_plan_needs_no_abort(world: MakeWorld) -> None:
    """Two plans prepared at once, with the same newcomer: no link is made twice, either can be entered."""
    for epoch in (2, 3):
        made = world(4)
        made.replace(3)
        first, second = made.prepare(2), made.prepare(3)
        wait_until(first, "the first is prepared")
        wait_until(second, "the second is prepared")
        made.adopt(epoch)
        made.check()
        if epoch == 2:
            made.adopt(3)
            made.check()
        assert [member.lost for member in made.members] == [[]] * 4


def test_another_newcomer_supersedes_the_first(world: MakeWorld) -> None:
    """A plan for another newcomer is prepared while the first one's links are still there."""
    made = world(3)
    made.replace(1)
    wait_until(made.prepare(2), "prepared")
    first = made.replace(1)
    wait_until(made.prepare(3), "prepared")
    made.adopt(3)
    made.check()
    assert not aside(made, 0)
    wait_until(lambda: not first.engine.ask(lambda: dict(first.table._aside)), "the first newcomer is let go")


def test_a_joiner_that_dies_before_the_switch(world: MakeWorld) -> None:
    """Its loss is reported at once; whoever enters the epoch finds it broken; the next one mends it."""
    made = world(3)
    made.replace(2)
    wait_until(made.prepare(2), "prepared")
    made[2].kill()
    wait_until(lambda: bool(made[0].lost and made[1].lost), "the loss is reported")
    assert made[0].lost[0] == "2: the peer closed the connection"
    assert not made[0].engine.broken
    for rank in (0, 1):
        made[rank].engine.adopt(made.plan(rank, 2))
    wait_until(lambda: made[0].engine.broken and made[1].engine.broken, "epoch 2 is broken")
    assert any(b.peer == 2 and "no connection for" in b.reason for r in (0, 1) for b in made[r].breaks)
    made.epoch = 2
    made.replace(2)
    made.switch()
    made.check()


def test_a_process_that_is_not_up_yet_is_waited_for(make_world: MakeWorld) -> None:
    """Dialling is tried again until the other side listens, and then goes on by itself."""
    made = make_world(2)
    absent = made[1].peer
    made[1].kill()
    plan = made.plan(0, 1)
    ready = threading.Event()
    made[0].engine.call(lambda: made[0].table.prepare(plan, lambda *_: ready.set()))
    made.replace(1)
    assert made[1].peer != absent
    assert not ready.wait(0.2)
    made[0].engine.ask(lambda: made[0].table.abandon(1))
    made.switch()
    made.check()


def test_an_epoch_never_comes_back(world: MakeWorld) -> None:
    """Epochs only grow: an old or equal one cannot be entered, and preparing it does nothing."""
    made = world(2)
    with pytest.raises(LinkError, match="epoch 1 cannot follow epoch 1"):
        made[0].engine.adopt(made.plan(0, 1))
    said: list[object] = []
    made[0].engine.ask(lambda: made[0].table.prepare(made.plan(0, 1), lambda *a: said.append(a)))
    made[0].engine.ask(lambda: None)
    assert said == []
    made.check()


def test_no_switch_while_calls_are_open(world: MakeWorld) -> None:
    """A healthy epoch with calls under way is not left; the error names them."""
    made = world(2)
    wait_until(made.prepare(2), "prepared")
    future = made[0].all_reduce(torch.ones(4))
    with pytest.raises(LinkError, match=r"calls are still open at the boundary: all_reduce .*group 'g'"):
        made[0].engine.adopt(made.plan(0, 2))
    made[1].all_reduce(torch.ones(4)).wait()
    future.wait()
    made.adopt(2)
    made.check()


def test_a_new_group_within_an_epoch(world: MakeWorld) -> None:
    """Links of a new group are made at once, and lost again when it is destroyed on all its ranks."""
    made = world(4)
    made.each(lambda member: member.comm.add_group("half", (1, 3)), [1, 3])
    values = {rank: torch.ones(5) for rank in (1, 3)}
    for future in [made[rank].start(sum_call(value), "half") for rank, value in values.items()]:
        future.wait()
    assert values[1].tolist() == values[3].tolist() == [2.0] * 5
    made.switch()
    for rank in (1, 3):
        assert link("half", "collective", 1, 3) in made[rank].connections()
        made[rank].comm.remove_group("half")
    made.check()
    wait_until(
        lambda: all(link("half", "collective", 1, 3) not in made[r].connections() for r in (1, 3)), "gone"
    )
    made.switch()
    made.check()
    assert [member.breaks for member in made.members] == [[]] * 4


def test_a_promoted_rank_closes_the_links_of_its_new_place(make_world: MakeWorld) -> None:
    """A group that a standby made under another rank loses, when destroyed, the links it really has."""
    made = make_world(3)
    made[2].comm.rank = 1
    for member in made.members:
        member.comm.add_group("extra", (0, 1, 2))
    made[2].comm.rank = 2
    made.switch()
    held = {link("extra", "collective", rank, 2) for rank in (0, 1)}
    assert held <= set(made[2].connections())
    made.each(lambda member: member.comm.remove_group("extra"))
    wait_until(lambda: not any(item.group == "extra" for item in made[2].connections()), "gone")
    made.check()


def test_a_new_group_of_ranks_that_entered_the_epoch_first(make_world: MakeWorld) -> None:
    """A rank that enters the epoch late finds the links that faster ranks made for a new group."""
    made = make_world(2)
    wait_until(made.prepare(1), "prepared")
    plans = [made.plan(rank, 1) for rank in range(2)]
    for member, plan in zip(made.members, plans, strict=True):
        member.comm.plan = plan
    made[0].engine.adopt(plans[0])
    made[0].comm.add_group("early", (0, 1))
    wait_until(lambda: link("early", "collective", 0, 1) in made[0].connections(), "made")
    wait_until(lambda: any(key[0].group == "early" for key in aside(made, 1)), "put aside")
    made[1].engine.adopt(plans[1])
    made[1].comm.add_group("early", (0, 1))
    values = [torch.ones(2), torch.ones(2)]
    for future in [made[rank].start(sum_call(values[rank]), "early") for rank in range(2)]:
        future.wait()
    assert values[0].tolist() == values[1].tolist() == [2.0, 2.0]


def test_a_group_that_only_one_rank_makes(world: MakeWorld) -> None:
    """The error says which group, and what must be the same on all ranks; nothing else suffers."""
    made = world(2)
    plan = made[1].comm.plan
    assert plan is not None
    made[1].comm.plan = replace(plan, limit=0.2)
    with pytest.raises(LinkError, match=r"'lonely'.*same groups in the same order"):
        made[1].comm.add_group("lonely", (0, 1))
    made.check()


def test_links_of_a_state_copy_live_only_as_long_as_their_epoch(world: MakeWorld) -> None:
    """A link that the next plan lacks is closed by the switch, without a failure on either side."""
    made = world(2)
    state = link(WORLD, "state", 0, 1)
    for member in made.members:
        plan, table = made.plan(member.rank, 2, [state]), member.table
        member.engine.call(lambda table=table, plan=plan: table.prepare(plan, lambda *_: None))
    wait_until(lambda: all(len(aside(made, rank)) == 1 for rank in range(2)), "made")
    made.each(lambda member: member.engine.adopt(made.plan(member.rank, 2, [state])))
    assert all(state in member.connections() for member in made.members)
    wait_until(made.prepare(3), "prepared")
    counts = made[0].engine.adopt(made.plan(0, 3))
    assert counts["closed"] == 1
    old = made[1].connections()[state]
    wait_until(lambda: old.ended, "rank 1 sees it go")
    assert not made[1].engine.broken
    made[1].engine.adopt(made.plan(1, 3))
    made.epoch = 3
    made.check()
    assert [member.breaks for member in made.members] == [[], []]


def test_a_rank_that_stays_behind_is_cut_off(world: MakeWorld) -> None:
    """A leaver that does not hear of the switch loses its links, and its calls end."""
    made = world(3)
    leaver = made.replace(2)
    wait_until(made.prepare(2), "prepared")
    future = leaver.all_reduce(torch.ones(3))
    made.adopt(2)
    done_within([future], PROMPT)
    assert leaver.engine.broken
    made.check()


def test_lives_are_never_the_same() -> None:
    """Every process has its own name, so that nobody takes a newcomer for the one before."""
    assert len({new_life("m0", 0) for _ in range(100)}) == 100
    assert new_life("m0", 1).startswith("m0.1.")


def test_a_slot_without_a_connection_says_so(world: MakeWorld) -> None:
    """A walk over a link that does not exist ends its epoch with the link's name."""
    made = world(2)
    group = made[0].comm.view("nowhere", (0, 1))
    with pytest.raises(EpochBroken, match="link nowhere/collective 0-1 has no connection"):
        made[0].engine.run(GROUP, "lost walk", lambda: iter_send(group), LIMIT)
    assert Peer("h", 1, "l") == Peer("h", 1, "l")


def iter_send(group):
    """Send one number over the group's link."""
    yield [group.send(1, torch.ones(1), 0)]
