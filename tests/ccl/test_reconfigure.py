"""Membership changed through torch's own calls (``get_reconfigure_handle``, ``reconfigure``).

Four real processes play every case: ranks 0 to 2 are members, 3 is a spare.  From torch 2.14 on the
groups are made with ``enable_reconfigure`` and changed with torch's functions; before, every process
begins alone and the group's methods are called directly.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ccl.test_standalone import spawn
from trainmover.ccl.plugin import backend_road

SIZE = 3
SPARE = 3
LIMIT = timedelta(seconds=20)
NEWER = hasattr(dist.distributed_c10d, "_reconfigure")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Case = Callable[["Player"], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Player:
    """One process in one case."""

    def __init__(self, me: int, name: str, folder: str) -> None:
        self.me, self.name, self.folder = me, name, folder
        self.store = dist.FileStore(f"{folder}/{name}", SPARE + 1)
        self.store.set_timeout(2 * LIMIT)
        self.round = 0

    def begin(self) -> None:
        """A process that can be taken into groups."""
        if NEWER:
            store = dist.FileStore(f"{self.folder}/{self.name}.group", SPARE + 1)
            dist.init_process_group(
                "trainmover", store=store, rank=self.me, world_size=SPARE + 1, enable_reconfigure=True
            )
        else:
            from torch._C._distributed_c10d import HashStore

            dist.init_process_group("trainmover", store=HashStore(), rank=0, world_size=1)

    @property
    def group(self) -> Any:
        return dist.group.WORLD

    def handles(self, *players: int) -> list[str]:
        """Everybody's handles as of now, those of some players (all four write theirs)."""
        self.round += 1
        key = f"handle {self.round} of"
        self.store.set(f"{key} {self.me}", self.group.get_reconfigure_handle())
        found = [self.store.get(f"{key} {player}").decode() for player in range(SPARE + 1)]
        return [found[player] for player in players]

    def meet(self) -> None:
        """Wait for all players."""
        self.handles()

    def change(self, uuid: int, handles: Sequence[str] | set[str], limit: timedelta = LIMIT) -> None:
        """Go into a group of these members."""
        if NEWER:
            dist.distributed_c10d._reconfigure(uuid, handles, timeout=limit).wait()
        else:
            self.group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=limit)).wait()

    def together(self, uuid: int, *players: int) -> list[str]:
        """The players go into one group, if this process is one of them; the handles they used."""
        handles = self.handles(*players)
        if self.me in players:
            self.change(uuid, handles)
        return handles

    def place(self) -> tuple[int, int]:
        return dist.get_rank(), dist.get_world_size()

    def total(self) -> tuple[float, float]:
        """The sum of everybody's group rank + 1: a small one and a large one."""
        small, large = torch.full((3,), dist.get_rank() + 1.0), torch.full((90_000,), dist.get_rank() + 1.0)
        dist.all_reduce(small)
        dist.all_reduce(large)
        assert large.min() == large.max()
        return float(small[0]), float(large[0])

    def connections(self) -> dict[str, int]:
        """Identities of the connections in use, by link."""
        engine = self.group._communicator.engine
        slots = engine.ask(lambda: dict(engine.table._slots))
        return {str(link): id(slot.connection) for link, slot in slots.items()}


@case
def everybody_comes(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    if player.me == SPARE:
        return True
    pieces = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_gather(pieces, torch.full((2,), float(player.me)))
    return (player.place(), player.total(), [float(piece[0]) for piece in pieces]) == (
        (player.me, SIZE),
        (6.0, 6.0),
        [0.0, 1.0, 2.0],
    )


@case
def neighbours_exchange_messages(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    if player.me == SPARE:
        return True
    after, before = (player.me + 1) % SIZE, (player.me - 1) % SIZE
    got = torch.zeros(4)
    sent = player.group.send([torch.full((4,), float(player.me))], after, 9)
    player.group.recv([got], before, 9).wait()
    sent.wait()
    return got.tolist() == [float(before)] * 4


@case
def the_last_leaves(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    before = player.connections()
    player.together(2, 0, 1)
    if player.me > 1:
        return True
    tensor = torch.full((3,), float(player.me))
    dist.broadcast(tensor, group_src=0)
    kept = [before[link] == now for link, now in player.connections().items()]
    return (player.place(), player.total(), tensor.sum().item(), kept) == (
        (player.me, 2),
        (3.0, 3.0),
        0.0,
        [True],
    )


@case
def the_middle_leaves(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    player.together(2, 0, 2)
    if player.me in (1, SPARE):
        return True
    return (player.place(), player.total()) == ((player.me // 2, 2), (3.0, 3.0))


@case
def alone_and_together_and_alone(player: Player) -> Any:
    seen = []
    player.together(10 + player.me, player.me)
    seen.append((player.place(), player.total()))
    player.together(20, 0, 1, 2)
    if player.me == SPARE:
        player.meet()
        return True
    seen.append((player.place(), player.total()))
    player.together(30 + player.me, player.me)
    seen.append((player.place(), player.total()))
    alone = (0, 1), (1.0, 1.0)
    return seen == [alone, ((player.me, SIZE), (6.0, 6.0)), alone]


@case
def the_same_again_keeps_every_connection(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    before = player.connections()
    player.together(2, 0, 1, 2)
    if player.me == SPARE:
        return True
    return player.connections() == before and player.total() == (6.0, 6.0)


@case
def latecomers_join(player: Player) -> Any:
    player.together(1, 0)
    player.together(2, 0, 1, 2)
    return player.me == SPARE or player.total() == (6.0, 6.0)


@case
def two_groups_merge(player: Player) -> Any:
    for players in ((0, 1), (2, 3)):
        handles = player.handles(*players)
        if player.me in players:
            player.change(1 + players[0], handles)
    apart = player.total()
    player.together(9, 0, 1, 2, 3)
    return (apart, player.place(), player.total()) == ((3.0, 3.0), (player.me, 4), (10.0, 10.0))


@case
def ranks_change_places(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    if player.me != SPARE:
        request = player.group.recv([torch.zeros(1)], (player.me - 1) % SIZE, 0)
        player.group.send([torch.ones(1)], (player.me + 1) % SIZE, 0).wait()
        request.wait()
    player.together(2, 1, 0, 2)
    if player.me == SPARE:
        return True
    rank = dist.get_rank()
    got = torch.zeros(1)
    sent = player.group.send([torch.full((1,), float(rank))], (rank + 1) % SIZE, 0)
    player.group.recv([got], (rank - 1) % SIZE, 0).wait()
    sent.wait()
    return (rank, player.total(), got.item()) == ([1, 0, 2][player.me], (6.0, 6.0), float((rank - 1) % SIZE))


@case
def a_spare_takes_a_place(player: Player) -> Any:
    """Rank 1 goes; the spare becomes rank 1. The stayers keep theirs, and the connection between them."""
    player.together(1, 0, 1, 2)
    before = player.connections()
    player.together(2, 0, SPARE, 2)
    if player.me == 1:
        return True
    between = "0-2"
    now = {link.rsplit(" ", 1)[1]: mark for link, mark in player.connections().items()}
    then = {link.rsplit(" ", 1)[1]: mark for link, mark in before.items()}
    rank = 1 if player.me == SPARE else player.me
    kept = player.me == SPARE or now[between] == then[between]
    return (player.place(), player.total(), kept) == ((rank, SIZE), (6.0, 6.0), True)


@case
def an_aborted_group_is_mended(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    player.meet()  # nobody is still on its way in
    said = ""
    if player.me == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        player.group.abort()
        try:
            work.wait()
        except RuntimeError as error:
            said = str(error)
    player.together(2, 0, 1, 2)
    return player.me == SPARE or (
        player.total() == (6.0, 6.0) and ("has aborted" in said) == (player.me == 0)
    )


@case
def calls_that_nobody_answers_end(player: Player) -> Any:
    """Rank 2 has left without a word while others wait for it: the next group ends those calls."""
    player.together(1, 0, 1, 2)
    work = dist.all_reduce(torch.ones(50_000), async_op=True) if player.me < 2 else None
    player.together(2, 0, 1)
    if work is None:
        return True
    try:
        work.wait()
    except RuntimeError as error:
        return "the group is reconfigured" in str(error) or "is broken" in str(error), player.total()[
            0
        ] == 3.0
    return "nothing said"


@case
def a_set_keeps_the_order_of_ranks(player: Player) -> Any:
    player.together(1, 2, 1, 0)
    handles = player.handles(0, 1, 2)
    if player.me == SPARE:
        return True
    player.change(2, set(handles))
    return (player.place(), player.total()) == (([2, 1, 0][player.me], SIZE), (6.0, 6.0))


@case
def wrong_requests_are_refused(player: Player) -> Any:
    player.together(5, player.me)
    everybody = player.handles(0, 1, 2, 3)
    own = everybody[player.me]
    said = []
    for uuid, handles in (
        (5, [own]),
        (6, [everybody[(player.me + 1) % 4]]),
        (6, [own, own]),
        (6, []),
        (6, ["nonsense"]),
    ):
        try:
            player.change(uuid, handles)
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error).removeprefix("reconfigure: "))
    player.change(6, [own])
    try:
        player.change(7, [own])
        said.append("nothing")
    except RuntimeError as error:
        said.append(str(error).removeprefix("reconfigure: "))
    starts = ["uuid 5 was already used", "this process", "a process is there twice", "no handles"]
    starts += ["not a handle", "the handles are of epoch"]
    return [text if not text.startswith(start) else "" for text, start in zip(said, starts, strict=True)] == [
        ""
    ] * 6 or said


@case
def a_member_that_does_not_come_is_an_error(player: Player) -> Any:
    handles = player.handles(0, 1)
    said = ""
    if player.me == 0:
        started = time.monotonic()
        try:
            player.change(1, handles, timedelta(seconds=0.5))
        except RuntimeError as error:
            said = str(error) if time.monotonic() - started < 5 else "late"
    player.meet()
    unreached, absent = "ranks 1 could not be reached within 0.5 s", "not every member came within 0.5 s"
    return (unreached in said or absent in said) == (player.me == 0) or said


@case
def a_group_without_members_says_so(player: Player) -> Any:
    if not NEWER:
        return True
    assert player.place() == (player.me, SPARE + 1)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return "reconfigure it first" in str(error)
    return "nothing said"


@case
def other_groups_must_go_first(player: Player) -> Any:
    player.together(1, 0, 1, 2)
    handles = player.handles(0, 1, 2)
    if player.me == SPARE:
        return True
    communicator = player.group._communicator
    communicator.add_group("another", (dist.get_rank(),))
    said = ""
    try:
        player.change(2, handles)
    except RuntimeError as error:
        said = str(error)
    communicator.remove_group("another")
    player.change(3, handles)
    return "destroy the process's other groups first: another" in said and player.total() == (6.0, 6.0)


def play(me: int, size: int, folder: str) -> dict[str, str]:
    """All cases; what went wrong in each, empty when nothing did."""
    report = {}
    for name, function in CASES.items():
        player = Player(me, name, folder)
        player.begin()
        try:
            answer = function(player)
            report[name] = "" if answer in (True, (True, True)) else repr(answer)
            player.meet()
        except Exception:
            report[name] = traceback.format_exc()
        dist.destroy_process_group()
    return report


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Each player's report."""
    return spawn(play, SPARE + 1, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", list(CASES))
def test_members_change(reports: list[dict[str, str]], name: str) -> None:
    """Members leave, come, change places and are replaced, and what cannot be is refused with a reason."""
    assert [report[name] for report in reports] == [""] * (SPARE + 1)


def replace_behind(me: int, size: int, folder: str) -> Any:
    """On the backend road: rank 1 is replaced by the spare."""
    import os

    os.environ["TRAINMOVER_ROAD"] = "backend"
    store = dist.FileStore(f"{folder}/group", size)
    rank = 1 if me == SPARE else me
    dist.init_process_group(
        "trainmover",
        store=dist.PrefixStore(str(me // 3), store),
        rank=rank,
        world_size=3,
        enable_reconfigure=True,
    )
    keys = dist.FileStore(f"{folder}/handles", size)
    functions = dist.distributed_c10d
    assert functions._supports_reconfigure()

    def handles(turn: str, *players: int) -> list[str]:
        keys.set(f"{turn} {me}", functions._get_reconfigure_handle())
        found = [keys.get(f"{turn} {player}").decode() for player in range(size)]
        return [found[player] for player in players]

    seen = []
    for turn, players in (("first", (0, 1, 2)), ("second", (0, SPARE, 2))):
        chosen = handles(turn, *players)
        if me in players:
            functions._reconfigure(len(seen) + 1, chosen, timeout=LIMIT).wait()
            tensor = torch.full((3,), dist.get_rank() + 1.0)
            dist.all_reduce(tensor)
            seen.append(tensor[0].item())
    said = ""
    try:
        functions._reconfigure(9, [functions._get_reconfigure_handle()]).wait()
    except RuntimeError as error:
        said = str(error)
    handles("end")
    dist.destroy_process_group()
    return seen, "TRAINMOVER_ROAD=group lets it become rank 0 of 1" in said


@pytest.mark.skipif(not backend_road(), reason="the backend road needs torch 2.14 or newer")
def test_a_member_is_replaced_on_the_backend_road(tmp_path: Any) -> None:
    """Behind torch's own group members can be replaced; their number cannot be changed, which is said."""
    found = spawn(replace_behind, SPARE + 1, tmp_path)
    assert found == [([6.0, 6.0], True), ([6.0], True), ([6.0, 6.0], True), ([6.0], True)]
