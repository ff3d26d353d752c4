"""Messages between two ranks: links made on demand, matching by source and tag, large groups, switches."""

from __future__ import annotations

import pytest
import torch

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import GROUP, LIMIT, Member, World, done_within
from tests.waiting import wait_until
from trainmover.ccl import algorithms
from trainmover.ccl.communicator import Call
from trainmover.ccl.engine import Steps
from trainmover.ccl.group import TrainMoverGroup
from trainmover.ccl.reduce import combine_of
from trainmover.ccl.tags import MESSAGE, message_tag
from trainmover.ccl.view import Group
from trainmover.topology.bracket import reduce_in_order
from trainmover.topology.links import pair_link

LARGE = 17
"""One more than a full mesh."""


Receive = tuple[Call, torch.futures.Future]


def send(member: Member, tensor: torch.Tensor, to: int, tag: int = 0) -> torch.futures.Future:
    """Send a message as a process group does."""

    def walk(group: Group, _: int) -> Steps:
        return algorithms.send(group, tensor, to, message_tag(tag))

    return member.comm.run(GROUP, Call(MESSAGE, f"tag {tag}", [], True, walk, peer=to), f"{GROUP} to {to}")


def receive(member: Member, tensor: torch.Tensor, source: int | None, tag: int = 0) -> Receive:
    """Start to receive a message; the call's result tells the source if none is named."""

    def walk(group: Group, _: int) -> Steps:
        if source is None:
            return algorithms.receive_any(group, tensor, message_tag(tag))
        return algorithms.receive(group, tensor, source, message_tag(tag))

    call = Call(MESSAGE, f"tag {tag}", [tensor], False, walk)
    return call, member.comm.run(GROUP, call, f"{GROUP} receive {id(call)}")


def arrived(*receives: Receive) -> None:
    """Wait for receives."""
    done_within([future for _, future in receives], LIMIT)


def number(value: float, count: int = 5) -> torch.Tensor:
    """A message."""
    return torch.full((count,), float(value))


@pytest.fixture
def three(make_world: MakeWorld) -> World:
    """Three ranks in their first epoch."""
    world = make_world(3)
    world.switch()
    return world


def test_messages_are_matched_by_tag_in_any_order(three: World) -> None:
    """A receive takes the message of its tag, also when one of another tag was sent before it."""
    first, second = torch.zeros(5), torch.zeros(5)
    one = receive(three[1], first, 0, tag=1)
    done_within([send(three[0], number(2), 1, tag=2), send(three[0], number(1), 1, tag=1)], LIMIT)
    arrived(one)
    two = receive(three[1], second, 0, tag=2)
    arrived(two)
    assert (first[0], second[0]) == (1.0, 2.0)


def test_messages_of_one_tag_keep_their_order(three: World) -> None:
    """What is sent first with a tag is received first with it, wherever it waited in between."""
    got = [torch.zeros(5) for _ in range(4)]
    other = receive(three[1], torch.zeros(5), 0, tag=9)
    sent = [send(three[0], number(k), 1, tag=3) for k in range(4)]
    done_within(sent, LIMIT)
    done_within([send(three[0], number(0), 1, tag=9)], LIMIT)
    arrived(other)
    arrived(*[receive(three[1], tensor, 0, tag=3) for tensor in got])
    assert [float(tensor[0]) for tensor in got] == [0.0, 1.0, 2.0, 3.0]


def test_receives_keep_their_order_whichever_way_they_take(three: World) -> None:
    """One that has to ask for the wheel, because somebody is at it, comes before one that finds it free."""
    group, wheel = TrainMoverGroup(three[1].comm, GROUP, range(3)), three[1].engine._wheel
    first, second = torch.zeros(5), torch.zeros(5)
    assert wheel.take(LIMIT)
    one = group.recv([first], 0)
    wheel._lock.release()  # and no other thread comes to it, as the guest is still there
    two = group.recv([second], 0)
    wheel._guest.release()
    done_within([send(three[0], number(1), 1), send(three[0], number(2), 1)], LIMIT)
    assert one.wait()
    assert two.wait()
    assert (first[0], second[0]) == (1.0, 2.0)


def test_a_receive_that_waits_does_not_hold_back_another_source(three: World) -> None:
    """Receives from different ranks complete in the order in which the messages come."""
    late, soon = torch.zeros(5), torch.zeros(5)
    waiting, quick = receive(three[2], late, 0), receive(three[2], soon, 1)
    send(three[1], number(7), 2)
    arrived(quick)
    assert (float(soon[0]), float(late[0])) == (7.0, 0.0)
    send(three[0], number(8), 2)
    arrived(waiting)
    assert float(late[0]) == 8.0


def test_a_receive_from_anybody_says_who_sent(three: World) -> None:
    """A receive without a source takes the first message of its tag and names the sender's group rank."""
    got = torch.zeros(5)
    call = receive(three[0], got, None, tag=4)
    send(three[2], number(1), 0, tag=5)
    send(three[1], number(6), 0, tag=4)
    arrived(call)
    assert (call[0].result, float(got[0])) == (1, 6.0)
    rest = torch.zeros(5)
    call = receive(three[0], rest, None, tag=5)
    arrived(call)
    assert (call[0].result, float(rest[0])) == (2, 1.0)


def test_collectives_and_messages_do_not_meet(three: World) -> None:
    """A message under way in a group does not disturb the group's collectives."""
    got = torch.zeros(5)
    call = receive(three[1], got, 0)
    three.check()
    send(three[0], number(3), 1)
    three.check()
    arrived(call)
    assert float(got[0]) == 3.0


def test_a_message_of_another_size_is_an_error_on_both_sides(three: World) -> None:
    """A receive that is too small for its message breaks the epoch and names both sizes."""
    receive(three[1], torch.zeros(4), 0)
    send(three[0], number(1), 1)
    wait_until(lambda: three[0].engine.broken and three[1].engine.broken, "both break")
    assert "20 bytes there" in str(three[1].engine.fatal)
    assert "16 bytes here" in str(three[1].engine.fatal)


def test_the_links_are_kept_through_a_switch_and_prepared_for_a_joiner(three: World) -> None:
    """Between stayers the link stays; to a newcomer it is made in phase 1, before anybody sends."""
    got = [torch.zeros(5), torch.zeros(5)]
    calls = [receive(three[1], got[0], 0), receive(three[2], got[1], 0)]
    send(three[0], number(1), 1)
    send(three[0], number(2), 2)
    arrived(*calls)
    stays = pair_link(GROUP, 0, 1)
    before = three[0].connections()[stays]
    three.replace(2).kill()
    wait_until(lambda: three[0].engine.broken, "the loss is noticed")
    three.switch()
    assert three[0].connections()[stays] is before
    assert three[0].connections()[pair_link(GROUP, 0, 2)].peer_life == three[2].table.life
    last = torch.zeros(5)
    call = receive(three[2], last, 0)
    send(three[0], number(9), 2)
    arrived(call)
    assert float(last[0]) == 9.0


def test_nothing_of_a_void_epoch_is_received_in_the_next(three: World) -> None:
    """Messages, letters and receives of a broken epoch are gone; the redo is matched anew."""
    waiting = receive(three[1], torch.zeros(5), 0, tag=1)
    done_within([send(three[0], number(5), 1, tag=2)], LIMIT)
    three[2].engine.break_epoch(three.epoch, "test", told=False)
    wait_until(lambda: all(member.engine.broken for member in three.members), "all break")
    arrived(waiting)
    three.switch()
    got = torch.zeros(5)
    call = receive(three[1], got, 0, tag=2)
    send(three[0], number(6), 1, tag=2)
    arrived(call)
    assert float(got[0]) == 6.0


def test_a_peer_that_dies_ends_the_receive(three: World) -> None:
    """A receive from a rank that is killed ends; it does not wait for its limit."""
    call = receive(three[1], torch.zeros(5), 0)
    three[0].kill()
    arrived(call)
    assert three[1].engine.broken


@pytest.fixture(scope="module")
def large() -> World:
    """A group that is no full mesh."""
    world = World(LARGE, 2)
    world.switch()
    yield world
    world.stop()


def walk_all(world: World, body) -> None:
    """Run a walk on every rank."""
    world.each(lambda member: member.walk(body))


def test_data_is_moved_in_a_large_group(large: World) -> None:
    """Gather, scatter, all_to_all and broadcast bring everybody its parts above the mesh's limit too."""
    mine = [number(10 + rank, 3) for rank in range(LARGE)]
    gathered = [[torch.zeros(3) for _ in range(LARGE)] if rank == 5 else [] for rank in range(LARGE)]
    walk_all(large, lambda group: algorithms.gather(group, mine[group.me], gathered[group.me], 5, 1))
    assert [float(tensor[0]) for tensor in gathered[5]] == [10.0 + rank for rank in range(LARGE)]

    out = [torch.zeros(3) for _ in range(LARGE)]
    walk_all(
        large, lambda group: algorithms.scatter(group, mine if group.me == 3 else [], out[group.me], 3, 2)
    )
    assert [float(tensor[0]) for tensor in out] == [10.0 + rank for rank in range(LARGE)]

    sent = [[number(100 * rank + to, 2) for to in range(LARGE)] for rank in range(LARGE)]
    came = [[torch.zeros(2) for _ in range(LARGE)] for _ in range(LARGE)]
    walk_all(large, lambda group: algorithms.all_to_all(group, sent[group.me], came[group.me], 3))
    assert all(
        float(came[rank][source][0]) == 100 * source + rank
        for rank in range(LARGE)
        for source in range(LARGE)
    )

    told = [number(rank, 300_000) for rank in range(LARGE)]
    walk_all(large, lambda group: algorithms.broadcast(group, told[group.me], 4, 4))
    assert all(bool((tensor == 4.0).all()) for tensor in told)


@pytest.mark.parametrize("root", [0, 7, 16])
def test_reductions_of_a_large_group_follow_the_bracketing(large: World, root: int) -> None:
    """Reduce and reduce_scatter have the canonical bits above the mesh's limit too, for any root."""
    generator = torch.Generator().manual_seed(root)
    parts = [torch.randn(LARGE * 9, generator=generator) for _ in range(LARGE)]
    expected = reduce_in_order(large[0].comm.view(GROUP, tuple(range(LARGE))).positions, parts, torch.add)
    combine = combine_of("SUM")

    outs = [part.clone() for part in parts]
    walk_all(large, lambda group: algorithms.reduce(group, outs[group.me], root, combine, 1))
    assert torch.equal(outs[root], expected)
    assert all(torch.equal(outs[rank], parts[rank]) for rank in range(LARGE) if rank != root)

    runs = [(9 * rank, 9 * rank + 9) for rank in range(LARGE)]
    shares = [torch.zeros(9) for _ in range(LARGE)]
    walk_all(
        large,
        lambda group: algorithms.reduce_scatter(
            group, parts[group.me].clone(), shares[group.me], runs, combine, 2
        ),
    )
    assert torch.equal(torch.cat(shares), expected)
