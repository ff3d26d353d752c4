"""Groups that come and go beside a coming epoch, seen from the link table and the communicator."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.ccl.conftest import MakeWorld
from tests.ccl.worlds import GROUP, LIMIT, World
from tests.waiting import wait_until
from trainmover.ccl.table import Plan
from trainmover.errors import LinkError
from trainmover.topology import Layout
from trainmover.topology.links import WORLD, Link, link, links_of


def with_half(made: World) -> Link:
    """The ranks 0 and 1 have a group of their own."""
    made.each(lambda member: member.comm.add_group("half", (0, 1)), [0, 1])
    return link("half", "collective", 0, 1)


def test_a_destroyed_group_is_not_waited_for(world: MakeWorld) -> None:
    """Rank 1 hears of the epoch before the group goes, rank 0 after that: rank 0 will never dial its link."""
    made = world(3)
    half = with_half(made)
    made.replace(2)
    wake = threading.Event()
    made[2].engine.call(lambda: wake.wait(LIMIT) and None)
    late = made.prepare(2, [1])
    made.each(lambda member: member.comm.remove_group("half"), [0, 1])
    wait_until(lambda: half not in made[1].connections(), "dropped")
    others = made.prepare(2, [0, 2])
    wake.set()
    wait_until(lambda: late() and others(), "all are prepared")
    assert half not in made[1].connections()
    made.adopt(2)
    made.check()


def plan_of(made: World, rank: int) -> Plan:
    """The plan of the epoch that a rank is in."""
    plan = made[rank].comm.plan
    assert plan is not None
    return plan


def test_a_plan_is_brought_up_to_date(world: MakeWorld) -> None:
    """As of now it lacks the destroyed group and has the new ones' links, to those who stay."""
    made = world(3)
    half = with_half(made)
    state = link(WORLD, "state", 0, 2)
    made.replace(2)
    before = made.plan(0, 2, [state])
    made.each(lambda member: member.comm.remove_group("half"), [0, 1])
    made.each(lambda member: member.comm.add_group("other", (1, 0)), [0, 1])
    made[0].comm.groups["whole"] = replace(made[0].comm.groups[GROUP], name="whole")
    now = made[0].comm.as_of_now(before)
    assert half not in now.links
    assert now.links - before.links == {
        link("other", "collective", 0, 1),
        link("whole", "collective", 0, 1),
    }
    assert before.links - now.links == {half}
    assert state in now.links
    assert made[0].comm.still_wanted(before).links == before.links - {half}


def test_a_group_that_could_not_be_made_is_forgotten(world: MakeWorld) -> None:
    """After the error the name is free again, and no later epoch wants its links."""
    made = world(2)
    made[1].comm.plan = replace(plan_of(made, 1), limit=0.2)
    with pytest.raises(LinkError, match="'lonely'"):
        made[1].comm.add_group("lonely", (0, 1))
    assert not [item for item in made[1].comm.links() if item.group == "lonely"]
    made.switch()
    made.each(lambda member: member.comm.add_group("lonely", (0, 1)))
    made.check()


@pytest.mark.parametrize(("machines", "slots"), [(1, 3), (5, 2), (20, 1), (6, 4)])
def test_a_ranks_links_are_those_of_the_layout(make_world: MakeWorld, machines: int, slots: int) -> None:
    """Asked for one rank at a time, without a walk over the groups, they are the whole topology's."""
    size = machines * slots
    layout = Layout(1, tuple(f"m{i}" for i in range(machines)), slots)
    groups = {GROUP: tuple(range(size)), "odd": tuple(range(size))[::2], "mixed": (*range(1, size), 0)}
    made = make_world(1)
    comm = made[0].comm
    comm.world_size, comm.ranks_per_machine, comm.groups = size, slots, {}
    for name, ranks in groups.items():
        comm.add_group(name, ranks)
    found: set[Link] = set()
    for rank in range(size):
        comm.rank = rank
        assert all(rank in (item.low, item.high) for item in comm.links())
        found |= comm.links()
    assert found == links_of(layout, groups)


def test_a_faster_rank_may_have_left_already(world: MakeWorld) -> None:
    """A group that the peer has made and destroyed meanwhile is made all the same, and without waiting."""
    made = world(2)
    quick = link("quick", "collective", 0, 1)
    fast, slow = made[quick.dialler], made[quick.other(quick.dialler)]
    fast.comm.add_group("quick", (0, 1))
    fast.comm.remove_group("quick")
    aside = slow.engine.table._aside
    wait_until(lambda: any(one.ended for _, one in aside.values()), "the slow rank sees the fast one leave")
    slow.comm.add_group("quick", (0, 1))
    slow.comm.remove_group("quick")
    made.check()
