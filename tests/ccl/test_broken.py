"""Broken is a state: calls end at once, healthy links survive it, the next epoch ends it."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import GROUP, LIMIT, PROMPT, Member, World, by_hand, done_within, hear, say, sum_call
from tests.waiting import wait_until
from trainmover.ccl import frames, walks
from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import EpochBroken
from trainmover.ccl.table import Peer, Plan
from trainmover.ccl.tags import tag_of
from trainmover.topology.links import link

LARGE = 8_000_000
"""Elements of an all_reduce that is under way for a while."""
DETAIL = sum_call(torch.ones(2)).detail
SUM_TAG = sum_call(torch.zeros(4)).tag


def in_flight(world: World, ranks: list[int], count: int = LARGE) -> tuple[list, list[torch.Tensor]]:
    """Some ranks' all_reduces, which wait for the others."""
    tensors = [torch.full((count,), float(rank + 1)) for rank in ranks]
    futures = [world[rank].all_reduce(tensor) for rank, tensor in zip(ranks, tensors, strict=True)]
    return futures, tensors


@pytest.mark.parametrize("count", [4, LARGE])
def test_a_killed_rank_ends_everybodys_calls(world: MakeWorld, count: int) -> None:
    """Every pending call completes within a second, and in-place outputs hold finite values."""
    made = world(4)
    futures, tensors = in_flight(made, [0, 1, 2], count)
    made[3].kill()
    done_within(futures, PROMPT)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
    assert all(made[rank].engine.broken for rank in range(3))
    assert all(made[rank].engine.fatal is None for rank in range(3))
    assert all(any("rank 3" in b.reason or b.told for b in made[rank].breaks) for rank in range(3))
    assert any(b.peer == 3 and not b.told for rank in range(3) for b in made[rank].breaks)


def test_a_rank_killed_while_everybody_sends_to_it(world: MakeWorld) -> None:
    """A walk whose own send finds the peer gone breaks the epoch once, in good order."""
    made = world(3)
    for attempt in range(5):
        victim = attempt % 3
        others = [rank for rank in range(3) if rank != victim]
        tensors = [torch.ones(LARGE) for _ in others]
        start = threading.Barrier(3)

        def run(rank: int, tensor: torch.Tensor, start: threading.Barrier = start) -> None:
            start.wait(LIMIT)
            made[rank].all_reduce(tensor).wait()

        threads = [
            threading.Thread(target=run, args=item, daemon=True) for item in zip(others, tensors, strict=True)
        ]
        for thread in threads:
            thread.start()
        start.wait(LIMIT)
        made[victim].kill()
        for thread in threads:
            thread.join(PROMPT + 2)
        assert not any(thread.is_alive() for thread in threads)
        for rank in others:
            wait_until(lambda rank=rank: made[rank].engine.broken, "broken")
            assert made[rank].engine.fatal is None
            wait_until(lambda rank=rank: bool(made[rank].breaks), "told")
            assert [b.epoch for b in made[rank].breaks] == [made.epoch]
            made[rank].breaks.clear()
        made.replace(victim)
        made.switch()
        made.check()


def test_later_calls_complete_at_once(world: MakeWorld) -> None:
    """In a broken epoch a call keeps in-place values, and pure outputs become zeros."""
    made = world(2)
    made[1].kill()
    wait_until(lambda: made[0].engine.broken, "broken")
    tensor, out = torch.tensor([7.0]), torch.tensor([1.0, 2.0])
    gather = Call("all_gather", "", [out], False, lambda group, tag: hear(group, out, 1, tag))
    started = time.monotonic()
    made[0].all_reduce(tensor).wait()
    made[0].start(gather).wait()
    assert time.monotonic() - started < PROMPT
    assert tensor.tolist() == [7.0]
    assert out.tolist() == [0.0, 0.0]
    assert made[0].comm.groups[GROUP].swallowed == 2


def test_a_waiting_walk_is_told_why(world: MakeWorld) -> None:
    """Whoever waits for a walk directly gets EpochBroken with the reason."""
    made = world(2)
    got = torch.empty(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(made[0].walk, lambda group: hear(group, got, 1, 0))
        wait_until(
            lambda: made[0].engine.ask(lambda: bool(made[0].engine.schedule.labels(GROUP))), "it waits"
        )
        made[0].engine.break_epoch(made[0].engine.epoch, "the user's step raised", told=True)
        with pytest.raises(EpochBroken, match="the user's step raised"):
            waiting.result(PROMPT)
    with pytest.raises(EpochBroken, match="is broken: the user's step raised"):
        made[0].walk(lambda group: hear(group, got, 1, 0))
    wait_until(lambda: bool(made[1].breaks), "the other one is told")
    assert made[1].breaks[0].told


def test_a_break_reaches_who_waits_on_another_link(world: MakeWorld) -> None:
    """Rank 2 waits for rank 1 only; rank 0 tells it that the epoch is over."""
    made = world(3)
    future = made[2].start(
        Call("broadcast", "", [torch.empty(3)], True, lambda g, tag: hear(g, torch.empty(3), 1, tag))
    )
    made[0].engine.break_epoch(made[0].engine.epoch, "machine m9 failed", told=True)
    done_within([future], PROMPT)
    assert made[2].breaks[0].told
    assert "says that epoch 1 is broken" in made[2].breaks[0].reason


def test_a_break_overtakes_what_nobody_reads(world: MakeWorld) -> None:
    """A BREAK behind frames that nobody has asked for still arrives: over the boundary's own links."""
    made = world(2)
    made[0].start(Call("send/recv", "", [], True, lambda g, tag: say(g, torch.zeros(100_000), 1, tag)))
    made[0].engine.break_epoch(made[0].engine.epoch, "machine m9 failed", told=True)
    wait_until(lambda: made[1].engine.broken, "rank 1 hears of it", PROMPT)


def test_healthy_links_survive_a_switch(world: MakeWorld) -> None:
    """After a newcomer's epoch the stayers' connections are the same objects, with the same memory."""
    made = world(4)
    values = [torch.ones(LARGE) for _ in range(4)]
    for future in [member.all_reduce(value) for member, value in zip(made.members, values, strict=True)]:
        future.wait()
    stayers = [0, 1, 3]
    before = {rank: made[rank].connections() for rank in stayers}
    staging = {rank: made[rank].table.staging_bytes() for rank in stayers}
    futures, _ = in_flight(made, stayers, 200_000)
    made[2].kill()
    done_within(futures, PROMPT)
    made.replace(2)
    counts = made.switch()
    for rank in stayers:
        after = made[rank].connections()
        assert set(after) == set(before[rank])
        for item, connection in before[rank].items():
            assert (after[item] is connection) == (item.other(rank) != 2), str(item)
        assert counts[rank] == {"swapped": 2, "kept": 4, "closed": 0}
    made.check()
    values = [torch.ones(LARGE) for _ in range(4)]
    for future in [member.all_reduce(value) for member, value in zip(made.members, values, strict=True)]:
        future.wait()
    assert all(torch.equal(value, torch.full((LARGE,), 4.0)) for value in values)
    assert {rank: made[rank].table.staging_bytes() for rank in stayers} == staging


def test_frames_of_a_void_epoch_are_thrown_away(world: MakeWorld) -> None:
    """What was sent in a broken epoch and never received does not reach the next epoch's calls."""
    made = world(2)
    stale = torch.full((50_000,), -1.0)
    for _ in range(3):
        made[0].start(Call("send/recv", "", [], True, lambda g, tag: say(g, stale, 1, tag))).wait()
    made[1].engine.break_epoch(made[1].engine.epoch, "for the test", told=True)
    wait_until(lambda: made[0].engine.broken, "both know")
    made.switch()
    got = torch.empty(50_000)
    fresh = torch.full((50_000,), 5.0)
    made[0].start(Call("send/recv", "", [], True, lambda g, tag: say(g, fresh, 1, tag)))
    made[1].walk(lambda g: hear(g, got, 0, tag_of("send/recv", 0)))
    assert torch.equal(got, fresh)
    made.check()


def test_frames_of_a_coming_epoch_wait(world: MakeWorld) -> None:
    """A rank that enters an epoch first may send at once; the others read it when they get there."""
    made = world(2)
    wait_until(made.prepare(2), "prepared")
    plans = [made.plan(rank, 2) for rank in range(2)]
    made[0].engine.adopt(plans[0])
    value, other = torch.ones(3), torch.ones(3)
    first = made[0].all_reduce(value)
    assert not first.done()
    assert not made[1].engine.broken
    made[1].engine.adopt(plans[1])
    made[1].all_reduce(other).wait()
    first.wait()
    assert value.tolist() == other.tolist() == [2.0, 2.0, 2.0]


def test_a_break_of_a_coming_epoch_is_remembered(world: MakeWorld) -> None:
    """Rank 0 enters epoch 2 and breaks it; rank 1, still in epoch 1, finds it broken on entering."""
    made = world(2)
    wait_until(made.prepare(2), "prepared")
    made[0].engine.adopt(made.plan(0, 2))
    made[0].engine.break_epoch(made[0].engine.epoch, "at once", told=True)
    wait_until(lambda: bool(made[1].engine._void), "heard")
    assert not made[1].engine.broken
    made[1].engine.adopt(made.plan(1, 2))
    assert made[1].engine.broken
    assert made[1].breaks[-1].epoch == 2
    assert made[1].breaks[-1].told
    made.epoch = 2
    made.switch()
    made.check()


def test_a_connection_cut_in_the_middle_of_a_frame() -> None:
    """Half a frame, then silence for ever: the call ends and its memory is not touched again."""
    with by_hand() as (member, wire):
        tensor = torch.zeros(1000)
        future = member.start(
            Call("broadcast", "", [tensor], True, lambda g, tag: walks.broadcast(g, tensor, 0, tag))
        )
        tag = tag_of("broadcast", 0)
        payload = torch.ones(1000).numpy().tobytes()
        wire.send(frames.pack(frames.DATA, 1, 0, tag, 4000) + payload[:1999])
        wait_until(lambda: bool(tensor[0] == 1.0), "half of it is there")
        wire.sock.close()
        done_within([future], PROMPT)
        assert bool(torch.isfinite(tensor).all())
        assert member.breaks[0].peer == 0
        assert "closed the connection" in member.breaks[0].reason


def test_a_break_in_the_middle_of_a_frame_keeps_the_connection_in_step() -> None:
    """The rest of a cancelled frame is thrown away, and the next epoch goes on over the connection."""
    with by_hand() as (member, wire):
        tensor = torch.zeros(1000)
        future = member.start(
            Call("broadcast", "", [tensor], True, lambda g, tag: walks.broadcast(g, tensor, 0, tag))
        )
        tag, payload = tag_of("broadcast", 0), torch.ones(1000).numpy().tobytes()
        wire.send(frames.pack(frames.DATA, 1, 0, tag, 4000) + payload[:2000])
        wait_until(lambda: bool(tensor[0] == 1.0), "half of it is there")
        member.engine.break_epoch(member.engine.epoch, "for the test", told=True)
        done_within([future], PROMPT)
        assert frames.unpack(wire.receive(frames.HEADER_SIZE)).kind == frames.BREAK
        member.engine.adopt(next_plan(member))
        tensor.zero_()
        wire.send(payload[2000:] + frames.pack(frames.DATA, 2, 0, tag, 4000) + b"\0" * 4000)
        again = member.start(
            Call("broadcast", "", [tensor], True, lambda g, tag: walks.broadcast(g, tensor, 0, tag))
        )
        done_within([again], PROMPT)
        assert not member.engine.broken
        assert not bool(tensor.any())


def next_plan(member: Member) -> Plan:
    """Epoch 2 of a rank whose only peer is a wire."""
    peers = (Peer("127.0.0.1", 1, "wire"), member.peer)
    return Plan(2, 1, peers, frozenset({link(GROUP, "collective", 0, 1)}), LIMIT)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0" * 64, "garbage on the link"),
        (frames.pack(frames.DATA, 1, 5, SUM_TAG, 16) + b"\0" * 16, "frame 5 arrived where 0 was due"),
        (frames.pack(7, 1), "unknown frame kind 7"),
        (frames.pack(frames.DATA, 1, 0, SUM_TAG, 12) + b"\0" * 12, "12 bytes there.*16 bytes here"),
    ],
)
def test_garbage_on_a_live_connection_breaks_the_epoch(data: bytes, said: str) -> None:
    """A peer that breaks the protocol loses its connection; the rank lives on in a broken epoch."""
    with by_hand() as (member, wire):
        future = member.all_reduce(torch.zeros(4))
        wire.send(data)
        done_within([future], PROMPT)
        assert member.breaks[0].peer == 0
        assert re.search(said, member.breaks[0].reason), member.breaks[0].reason
        assert wire.hung_up()
        assert member.engine.ask(lambda: "alive") == "alive"


def test_garbage_breaks_only_the_epoch(world: MakeWorld) -> None:
    """After garbage on one link a repair epoch makes that link anew and keeps the others."""
    made = world(3)
    before = made[2].connections()
    bad = made[0].connection(1)
    futures, _ = in_flight(made, [0, 1, 2][1:], 4)
    made[0].engine.call(lambda: bad.sock.send(b"\xff" * 64) and None)
    done_within(futures, PROMPT)
    wait_until(lambda: all(member.engine.broken for member in made.members), "all know")
    made.switch()
    made.check()
    assert made[2].connections() == before


def test_leaving_in_good_order_breaks_nothing(world: MakeWorld) -> None:
    """A rank that says BYE and closes is no failure for those who need nothing more from it."""
    made = world(3)
    made.check()
    made[1].stop()
    wait_until(lambda: all(made[0].connection(1, g).ended for g in (GROUP,)), "rank 0 saw it go")
    wait_until(lambda: made[2].connection(1).ended, "rank 2 saw it go")
    assert not made[0].engine.broken
    assert not made[2].engine.broken
    assert made[0].breaks == made[2].breaks == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["receive", "send"])
def test_whoever_still_needs_a_rank_that_left_is_told(world: MakeWorld, when: str, how: str) -> None:
    """A call that waits for a rank that has left in good order ends at once; it does not hang."""
    made = world(2)
    tensor = torch.zeros(4_000_000)

    def body(group: walks.Group, tag: int) -> object:
        return hear(group, tensor, 1, tag) if how == "receive" else say(group, tensor, 1, tag)

    call = Call("broadcast", "", [tensor], True, body)
    if when == "after":
        made[1].stop()
        wait_until(lambda: made[0].connection(1).ended, "it is seen to go")
        future = made[0].start(call)
    else:
        future = made[0].start(call)
        made[1].stop()
    done_within([future], PROMPT)
    assert made[0].breaks[0].peer == 1


def test_dropping_a_link_is_no_failure_for_the_other_end(world: MakeWorld) -> None:
    """A group may be destroyed, or a state link dropped, on one rank before the other."""
    made = world(2)
    item = link(GROUP, "collective", 0, 1)
    old = made[1].connection(0)
    made[0].engine.ask(lambda: made[0].table.drop([item]))
    wait_until(lambda: old.ended, "rank 1 sees it go")
    made[1].engine.ask(lambda: made[1].table.drop([item]))
    assert [member.breaks for member in made.members] == [[], []]
    assert [member.lost for member in made.members] == [[], []]
    made.switch()
    made.check()


def test_a_dropped_process_is_closed_on_every_link(world: MakeWorld) -> None:
    """A machine known to be dead is cut off, although its sockets still look alive."""
    made = world(3)
    life = made[1].table.life
    made[0].engine.ask(lambda: made[0].table.drop_process(life))
    assert {item.other(0) for item in made[0].connections()} == {2}
    wait_until(lambda: made[1].engine.broken, "the one cut off cannot go on")


def test_a_walk_beyond_its_limit_breaks_the_epoch(world: MakeWorld) -> None:
    """A peer that never comes ends the epoch after the call's limit, with the call's name."""
    made = world(2, limit=0.2)
    future = made[0].all_reduce(torch.zeros(3))
    done_within([future], 5.0)
    wait_until(lambda: made[0].breaks, "the break is told")
    assert "all_reduce (SUM, 3 x torch.float32) of group 'g'" in made[0].breaks[0].reason
    assert "Timed out waiting 200ms" in made[0].breaks[0].reason
    assert made[0].breaks[0].peer is None


def test_a_walk_that_raises_is_fatal(world: MakeWorld) -> None:
    """An error in a walk ends the epoch for everybody and is kept for the one who caused it."""
    made = world(2)

    def bad(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        raise RuntimeError("no such operation")

    call = Call(
        "all_reduce",
        DETAIL,
        [torch.ones(2)],
        True,
        lambda g, tag: walks.all_reduce(g, torch.ones(2), bad, tag),
    )
    future = made[0].start(call)
    other = made[1].all_reduce(torch.ones(2))
    done_within([future], PROMPT)
    wait_until(lambda: made[1].engine.broken and other.done(), "the other one is told")
    assert "no such operation" in str(made[0].engine.fatal)


def test_a_result_that_cannot_be_delivered_does_not_hang(world: MakeWorld) -> None:
    """When copying the result back fails, the call still completes and the error is kept."""
    made = world(2)

    def after() -> None:
        raise RuntimeError("no room for the result")

    call = sum_call(torch.ones(2))
    call.after = after
    done_within([made[0].start(call), made[1].all_reduce(torch.ones(2))], PROMPT)
    assert "no room for the result" in str(made[0].engine.fatal)


def test_a_stopped_engine_hangs_nobody(world: MakeWorld) -> None:
    """Calls under way when the engine stops complete, and so do calls made afterwards."""
    made = world(2)
    before = made[0].all_reduce(torch.ones(2))
    made[0].stop()
    after = made[0].all_reduce(torch.ones(2))
    done_within([before, after], PROMPT)
    with pytest.raises(EpochBroken, match="the engine has stopped"):
        made[0].walk(lambda group: walks.broadcast(group, torch.ones(1), 0, 0))
    with pytest.raises(EpochBroken, match="the engine has stopped"):
        made[0].engine.ask(lambda: None)
    made[0].stop()
