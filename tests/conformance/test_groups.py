"""Groups: made, nested, split, destroyed and made again; meshes of them; objects through them."""

from __future__ import annotations

import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.conformance.ranks import GLOO, OURS, Ranks


def objects(rank: int, size: int) -> Any:
    mine = {"rank": rank, "text": "x" * (10 ** (rank + 1)), "nested": [rank, (rank, None)]}
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    on_root: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object(mine, on_root, dst=1)
    told: list[Any] = [mine, "second"] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, src=1)
    given: list[Any] = [None]
    dist.scatter_object_list(given, [f"for {i}" for i in range(size)] if rank == 0 else None, src=0)
    sent: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([{"from": 0}], dst=1)
    elif rank == 1:
        dist.recv_object_list(sent, src=0)
    return [gathered, on_root, told, given, sent]


@pytest.mark.parametrize("size", [2, 3])
def test_objects(ranks: Ranks, size: int) -> None:
    """Python objects of different sizes are gathered, broadcast, scattered and sent as over Gloo."""
    ranks.compare(objects, size)


def exchanged(rank: int, size: int, tags: bool) -> Any:
    right, left = (rank + 1) % size, (rank - 1) % size
    sent = [torch.full((3,), 10.0 * rank + i) for i in range(3)]
    got = [torch.zeros(3) for _ in range(3)]
    order = [2, 1, 0] if tags else [0, 1, 2]
    sends = [dist.P2POp(dist.isend, sent[i], right, tag=i if tags else 0) for i in range(3)]
    receives = [dist.P2POp(dist.irecv, got[i], left, tag=i if tags else 0) for i in order]
    for work in dist.batch_isend_irecv(sends + receives):
        work.wait()
    return got


@pytest.mark.parametrize("tags", [False, True], ids=["untagged", "tags out of order"])
@pytest.mark.parametrize("size", [2, 4])
def test_batch_isend_irecv(ranks: Ranks, size: int, tags: bool) -> None:
    """A batch of sends and receives in a ring arrives in order, or by tag in any order."""
    ranks.compare(exchanged, size, tags=tags)


def meshed(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    flat = mesh["outer", "inner"]._flatten("all")
    found = {"coordinate": list(mesh.get_coordinate() or []), "names": list(mesh.mesh_dim_names or [])}
    for name, part in (("outer", mesh["outer"]), ("inner", mesh["inner"]), ("flat", flat)):
        value = torch.tensor([float(2**rank)])
        dist.all_reduce(value, group=part.get_group())
        found[name] = [
            value,
            part.get_local_rank(),
            part.size(),
            dist.get_process_group_ranks(part.get_group()),
        ]
    return found


def test_device_mesh(ranks: Ranks) -> None:
    """A 2-D mesh has groups for its axes, and one when it is flattened, each with the right members."""
    ranks.compare(meshed, 4)


def subgroups(rank: int, size: int) -> Any:
    """Overlapping groups, used in turn, destroyed one by one."""
    found: list[Any] = []
    members = [[0, 1], [1, 2], [0, 2], [2, 1, 0]]
    groups = [dist.new_group(ranks) for ranks in members]
    for ranks, group in zip(members, groups, strict=True):
        if rank in ranks:
            value = torch.tensor([float(2**rank)])
            dist.all_reduce(value, group=group)
            found.append([value, dist.get_rank(group), dist.get_global_rank(group, 0)])
    mine, every = dist.new_subgroups_by_enumeration([[0], [1, 2]])
    value = torch.ones(1)
    dist.all_reduce(value, group=mine)
    found.append([value, len(every)])
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    dist.barrier()
    return found


def test_subgroups(ranks: Ranks) -> None:
    """Overlapping groups work side by side and can be destroyed one by one."""
    ranks.compare(subgroups, 3)


def made_by_members(rank: int, size: int) -> Any:
    """Nobody else takes part in making the group."""
    value = torch.tensor([float(rank)])
    if rank != 1:
        group = dist.new_group([0, 2], use_local_synchronization=True)
        dist.broadcast(value, 2, group=group)
    return value


def test_a_group_made_by_its_members_alone(ranks: Ranks) -> None:
    """With local synchronization the members suffice to make a group."""
    ranks.compare(made_by_members, 3)


def many_groups(rank: int, size: int) -> Any:
    found = []
    for number in range(40):
        group = dist.new_group(list(range(size)))
        value = torch.tensor([float(rank + number)])
        dist.all_reduce(value, group=group)
        found.append(value)
        if number % 2:
            dist.destroy_process_group(group)
    return found


def test_many_groups(ranks: Ranks) -> None:
    """Forty groups in a row are made, used and half of them destroyed."""
    ranks.compare(many_groups)


def again(rank: int, size: int, name: str) -> Any:
    """Destroy the default group and make it anew, on new stores and on the same one."""
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    found = []
    before = threading.active_count()
    for number in range(4):
        dist.destroy_process_group()
        store = dist.FileStore(str(Path(folder[0], f"store{number}")), size)
        dist.init_process_group(name, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
        group = dist.new_group(list(range(size)))
        value = torch.tensor([float(rank + number)])
        dist.all_reduce(value)
        dist.all_reduce(value, group=group)
        found.append(value)
    return {"found": found, "no more threads": threading.active_count() <= before}


def test_destroy_and_create_again(ranks: Ranks) -> None:
    """The default group is destroyed and made again four times; nothing piles up."""
    theirs = ranks.run(again, GLOO, name=GLOO)
    ours = ranks.run(again, OURS, name=OURS)
    for one, two in zip(ours, theirs, strict=True):
        assert torch.equal(torch.cat(one["found"]), torch.cat(two["found"]))
        assert one["no more threads"]


def threads_left(rank: int, size: int) -> Any:
    dist.all_reduce(torch.ones(1000))
    dist.barrier()
    dist.destroy_process_group()
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def test_no_threads_are_left(ranks: Ranks) -> None:
    """After the default group is destroyed no thread of ours is left."""
    assert ranks.run(threads_left, OURS) == [[], []]
