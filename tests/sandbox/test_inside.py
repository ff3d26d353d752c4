"""The sandbox of a machine with two ranks: what stays inside really runs, what crosses the border is played.

A world of four ranks on two machines, with one group of all: a pipeline whose stages are partly neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.ccl.conftest import MakeWorld, make_world, world
from tests.ccl.worlds import LIMIT, Member, World
from tests.waiting import wait_until
from trainmover.ccl.group import TrainMoverGroup
from trainmover.ccl.plan import Peer, Plan
from trainmover.sandbox.player import Player
from trainmover.sandbox.recorder import Recorder
from trainmover.sandbox.recording import Recording, Size

__all__ = ["make_world", "world"]

Groups = dict[str, TrainMoverGroup]
PAIRS = {"left": (0, 1), "right": (2, 3)}


def groups_of(member: Member) -> Groups:
    """The process groups of a rank."""
    return {name: TrainMoverGroup(member.comm, name, info.ranks) for name, info in member.comm.groups.items()}


def script(groups: Groups, own: float) -> list[torch.Tensor]:
    """A message down the pipeline and back, a sum in the machine, and a sum of all."""
    pipe = groups["g"]
    pair = groups["left" if "left" in groups else "right"]
    me, last = pipe.rank(), pipe.size() - 1
    down, up = torch.zeros(5), torch.zeros(3, dtype=torch.int64)
    if me > 0:
        pipe.recv([down], me - 1, 7).wait()
    if me < last:
        pipe.send([down + own], me + 1, 7).wait()
        pipe.recv([up], me + 1).wait()
    if me > 0:
        pipe.send([up + 1], me - 1).wait()
    summed, everybodys = torch.full((4,), own), torch.full((6,), own)
    pair.allreduce([summed]).wait()
    pipe.allreduce([everybodys]).wait()
    pipe.barrier().wait()
    return [down, up, summed, everybodys]


@pytest.fixture
def made(world: MakeWorld) -> World:
    """Four ranks on two machines."""
    return world(4, ranks_per_machine=2, groups=PAIRS)


@pytest.fixture
def recordings(made: World, tmp_path: Path) -> tuple[list[str], list[list[torch.Tensor]]]:
    """What the ranks of the second machine heard: recordings, and their results."""
    recorders = {rank: Recorder(0, lambda rank=rank: rank) for rank in (2, 3)}
    for rank, recorder in recorders.items():
        made[rank].comm.tap = recorder
    results = made.each(lambda member: script(groups_of(member), float(member.rank)))
    urls, whole = [], list[Size]()
    for rank, recorder in recorders.items():
        made[rank].comm.tap = None
        recorder.end_phase()
        urls.append(str(tmp_path / str(rank)))
        recorder.write(urls[-1], whole.append, pytest.fail)
    wait_until(lambda: len(whole) == 2, "both recordings are whole")
    return urls, results[2:]


@pytest.fixture
def sandbox(recordings: tuple[list[str], object]) -> Iterator[list[Member]]:
    """The sandbox processes of that machine: they have groups, players, and learn of each other late."""
    members = [Member(rank, 4, 2, LIMIT) for rank in (2, 3)]
    for member, url in zip(members, recordings[0], strict=True):
        member.comm.player, member.comm.on_broken = Player(url), "raise"
        member.comm.meet = meeting(member, members)
    yield members
    for member in members:
        if not member.killed:
            member.stop()


def meeting(member: Member, members: list[Member]) -> Callable[[], None]:
    """Enters the sandbox's epoch when it is first needed."""

    def meet() -> None:
        if member.comm.plan is None:
            tables = {other.rank: other.table for other in members}
            peers = {rank: Peer(t.host, t.port, t.life, beside=True) for rank, t in tables.items()}
            plan = Plan(1, member.rank, peers, frozenset(), LIMIT)
            member.engine.adopt(plan)
            member.comm.plan = plan

    return meet


def both(members: list[Member], action: Callable[[Member], object]) -> list[object]:
    """The same on both sandbox ranks at once."""
    with ThreadPoolExecutor(2) as pool:
        return [future.result(LIMIT) for future in [pool.submit(action, member) for member in members]]


def make_groups(member: Member) -> Groups:
    """As a script makes them."""
    for name, ranks in (("g", (0, 1, 2, 3)), ("right", (2, 3))):
        member.comm.add_group(name, ranks)
    return groups_of(member)


def test_the_sandbox_hears_what_the_machine_heard(sandbox: list[Member], recordings) -> None:
    """With the same own values: the sums of the machine are made anew, all others come from the recording."""
    heard = both(sandbox, lambda member: script(make_groups(member), float(member.rank)))
    for mine, theirs in zip(heard, recordings[1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    groups = {link.group for member in sandbox for link in member.connections()}
    assert groups == {"g", "right"}
    assert {(link.low, link.high) for member in sandbox for link in member.connections()} == {(2, 3)}


def test_inside_the_machine_values_are_the_sandboxs_own(sandbox: list[Member], recordings) -> None:
    """A sandbox that computes something else hears its own sums and messages, and the recorded others."""
    heard = both(sandbox, lambda member: script(make_groups(member), 10.0))
    was = recordings[1]
    assert [result[2].tolist() for result in heard] == [[20.0] * 4] * 2
    assert torch.equal(heard[0][0], was[0][0])
    assert torch.equal(heard[1][0], was[0][0] + 10.0)
    assert torch.equal(heard[0][3], was[0][3])


def test_only_what_crosses_is_recorded(recordings) -> None:
    """The first rank of the second machine got one message over the border and sent one; the second none."""
    counts = []
    for url in recordings[0]:
        calls = [entry for entry, _ in Recording(url).entries(0)]
        counts.append([(entry.name, entry.outputs) for entry in calls])
    rest = [("all_reduce", 1), ("barrier", 0)]
    assert counts == [[("send/recv", 1), ("send/recv", 0), *rest], rest]


def test_leaving_the_sandbox_ends_its_links(made: World, sandbox: list[Member]) -> None:
    """In the other machine's places the pair has other links, and the sandbox's are closed."""
    both(sandbox, lambda member: script(make_groups(member), 1.0))
    for member, rank in zip(sandbox, (0, 1), strict=True):
        member.comm.player = member.comm.plan = None
        member.comm.take(member.comm.place_with(rank, [("g", (0, 1, 2, 3)), ("left", (0, 1))]))
        member.rank = rank
    for member in made.members[:2]:
        made.gone.append(member)
    made.members[:2] = sandbox
    made.epoch = 4
    made.switch()
    results = made.each(lambda member: script(groups_of(member), float(member.rank)))
    assert [result[3].tolist() for result in results] == [[6.0] * 6] * 4
    wait_until(
        lambda: {link.group for link in sandbox[0].connections()} == {"g", "left", "world"},
        "only the links of the place are left",
    )
    for member in sandbox:
        member.killed = False
    made.members[:2], made.gone[:] = made.gone[:2], []


def exchange(groups: Groups, mine: list[int]) -> list[torch.Tensor]:
    """Tokens to experts and back, as an expert-parallel layer sends them: counts first, then as many."""
    group = groups["g"]
    counts = torch.zeros(2, dtype=torch.int64)
    group.all_to_all_single(counts, torch.tensor(mine), [], []).wait()
    theirs = counts.tolist()
    tokens, there = torch.arange(float(sum(mine))), torch.zeros(sum(theirs))
    group.all_to_all_single(there, tokens, theirs, mine).wait()
    back = torch.zeros(sum(mine))
    group.all_to_all_single(back, there * 2, mine, theirs).wait()
    return [counts, there, back]


@pytest.mark.parametrize("mine", [[1, 3], [2, 1], [0, 5]])
def test_exchanges_that_data_size_fit(world: MakeWorld, tmp_path: Path, mine: list[int]) -> None:
    """A sandbox that routes as the recorded rank did hears the same, any other one what fits."""
    made = world(2)
    recorder = Recorder(0, lambda: 1)
    made[1].comm.tap = recorder
    splits = [[2, 2], [1, 3]]
    results = made.each(lambda member: exchange(groups_of(member), splits[member.rank]))
    recorder.end_phase()
    whole = list[Size]()
    recorder.write(str(tmp_path), whole.append, pytest.fail)
    wait_until(lambda: bool(whole), "the recording is whole")
    standby = made._member(1)
    made.gone.append(standby)
    standby.comm.player = Player(str(tmp_path))
    heard = exchange(groups_of(standby), mine)
    assert torch.equal(heard[0], results[1][0])
    assert torch.equal(heard[1], results[1][1])
    assert heard[2].numel() == sum(mine)
    assert heard[2].isfinite().all()
    assert (mine != splits[1]) or torch.equal(heard[2], results[1][2])
