"""What torch remembers of a rank: after a promotion it is what a process built as the new rank has.

Every test builds torch's own objects as one rank, lets the process become another, and compares with
the same objects built afresh as that one: all attributes, and the calls that they then make.  Sixteen ranks,
data 2 x pipe 4 x tensor 2, as they are in a sandbox: there is no peer, and every call is answered with ones.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.data.distributed import DistributedSampler

from tests.training import seats
from tests.training.seats import Answers
from trainmover.ccl.communicator import Communicator, Place
from trainmover.errors import JobError
from trainmover.training import promotion

SHAPE = (2, 4, 2)
NAMES = ("data", "pipe", "tensor")
WORLD = 16
WIDTH, ROWS, PIECES = 4, 2, 8
MIDDLE, OTHER_MIDDLE, OTHER_DATA = 3, 13, 11
"""Ranks at (0, 1, 1), (1, 2, 1) and (1, 1, 1)."""


sitting = partial(seats.sitting, world=WORLD, ranks_per_machine=2)


def mesh_of() -> DeviceMesh:
    return init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)


def place_of(rank: int, build: Callable[[], Any]) -> tuple[Place, Any, list[Any]]:
    """Where a rank sits once it has built something, what that is, told in full, and the calls it made."""
    with sitting(rank) as communicator:
        things = build()
        return communicator.place(), told(things), calls_of(communicator)


def calls_of(communicator: Communicator) -> list[Any]:
    assert isinstance(communicator.player, Answers)
    calls, communicator.player.calls = communicator.player.calls, []
    return calls


def become(communicator: Communicator, place: Place) -> None:
    """As a sandbox rank does when its machine is given a place."""
    old = communicator.rank
    promotion.follow(communicator, communicator.take(place), old)


def compare(build: Callable[[], Any], old: int, new: int) -> None:
    """Built as one rank and promoted is as built as the other."""
    place, expected, _ = place_of(new, build)
    with sitting(old) as communicator:
        things = build()
        assert told(things) != expected
        become(communicator, place)
        assert told(things) == expected


def told(thing: Any, seen: tuple[int, ...] = ()) -> Any:
    """An object in full, as plain data; process groups by their ranks, since their names differ."""
    if id(thing) in seen:
        return "itself"
    seen = (*seen, id(thing))
    if isinstance(thing, dist.ProcessGroup):
        return ("group", dist.get_process_group_ranks(thing), thing.rank(), dist.get_rank(thing))
    if isinstance(thing, DeviceMesh):
        return {
            "kept": (thing._rank, thing._coordinate_on_dim, thing._flatten_rank_map, thing._mesh_dim_names),
            "ranks": thing.mesh.tolist(),
            "asked": [thing.get_local_rank(dim) for dim in range(thing.ndim)] + [thing.get_rank()],
            "groups": [told(group) for group in thing.get_all_groups()],
            "hash": hash(thing),
        }
    if isinstance(thing, torch.Tensor):
        return (type(thing).__name__, thing.dtype, thing.shape, thing.requires_grad)
    if isinstance(thing, dict):
        return {str(key): told(value, seen) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [told(item, seen) for item in thing]
    if isinstance(thing, nn.Module) or callable(thing):
        return type(thing).__name__
    if hasattr(thing, "__dict__"):
        return {"type": type(thing).__name__, **told(vars(thing), seen)}
    return repr(thing)


# -- meshes ------------------------------------------------------------------------------------------


def meshes() -> list[DeviceMesh]:
    mesh = mesh_of()
    pipe = mesh["pipe"].get_group()
    return [
        mesh,
        *(mesh[name] for name in NAMES),
        mesh["data", "pipe"],
        mesh["pipe", "tensor"],
        mesh["data", "tensor"]._flatten("both"),
        DeviceMesh.from_group(pipe, "cpu"),
        DeviceMesh.from_group(
            [mesh["data"].get_group(), pipe],
            "cpu",
            torch.arange(WORLD).view(SHAPE)[:, :, dist.get_rank() % 2],
            mesh_dim_names=("d", "p"),
        ),
    ]


@pytest.mark.parametrize("new", [OTHER_MIDDLE, OTHER_DATA, 5, 2, 15])
def test_meshes_follow(new: int) -> None:
    """Root, slices, flattened and group-made meshes: ranks, coordinates, groups and hash."""
    compare(meshes, MIDDLE, new)


def test_a_mesh_sliced_afterwards_is_right() -> None:
    """What is made of a mesh that has followed belongs to the new rank."""
    place, expected, _ = place_of(OTHER_MIDDLE, lambda: mesh_of()["data", "pipe"])
    with sitting(MIDDLE) as communicator:
        mesh = mesh_of()
        become(communicator, place)
        assert told(mesh["data", "pipe"]) == expected


def test_torch_translates_ranks_of_groups() -> None:
    """Global ranks to group ranks and back are the new groups'."""
    place, _, _ = place_of(OTHER_MIDDLE, mesh_of)
    with sitting(MIDDLE) as communicator:
        pipe = mesh_of()["pipe"].get_group()
        become(communicator, place)
        assert dist.get_process_group_ranks(pipe) == [9, 11, 13, 15]
        assert [dist.get_group_rank(pipe, rank) for rank in (9, 15)] == [0, 3]
        assert (dist.get_global_rank(pipe, 1), dist.get_rank(pipe), dist.get_rank()) == (11, 2, OTHER_MIDDLE)


def test_a_mesh_of_some_ranks_that_cannot_follow_is_named() -> None:
    """A mesh made of groups, of ranks that are not simply elsewhere now, is an error with a way out."""

    def build() -> DeviceMesh:
        mesh = mesh_of()
        groups = [mesh["data"].get_group(), mesh["tensor"].get_group()]
        return DeviceMesh.from_group(
            groups, "cpu", torch.arange(WORLD).view(SHAPE)[:, 1, :], mesh_dim_names=("d", "t")
        )

    with sitting(OTHER_MIDDLE) as communicator:
        mesh_of()
        place = communicator.place()
    with sitting(MIDDLE) as communicator:
        kept = build()
        with pytest.raises(JobError, match=r"rank 3 was promoted to rank 13, but a DeviceMesh .* slice it"):
            become(communicator, place)
        assert kept.ndim == 2


# -- DTensors ----------------------------------------------------------------------------------------


def test_dtensors_cut_unevenly_have_the_new_ranks_part() -> None:
    """Results that torch keeps about an uneven cut are not those of the old coordinate."""

    def build() -> tuple[DeviceMesh, Any]:
        mesh = mesh_of()
        return mesh["pipe"], shapes(mesh["pipe"])

    place, _, _ = place_of(15, build)
    with sitting(15):
        _, expected = build()
    with sitting(MIDDLE) as communicator:
        mesh, first = build()
        assert first != expected
        become(communicator, place)
        assert shapes(mesh) == expected


def shapes(mesh: DeviceMesh) -> list[torch.Size]:
    """Shapes of what this rank has of seven numbers: two for each rank, one for the last."""
    whole = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)], src_data_rank=None)
    derived: list[DTensor] = [whole, whole + 1, torch.zeros_like(whole), whole.new_zeros(7)]  # type: ignore[list-item]
    return [item.to_local().shape for item in derived]


# -- pipelines ---------------------------------------------------------------------------------------


def pipeline(kind: str) -> tuple[Any, Callable[[], None]]:
    """The stages and schedule of this rank, after one step, and what makes another."""
    group = mesh_of()["pipe"].get_group()
    mine = [group.rank()] if kind == "single" else [group.rank(), group.rank() + 4]
    stages = []
    for number in mine:
        known = torch.zeros(ROWS, WIDTH, requires_grad=True)
        stages.append(
            PipelineStage(
                nn.Linear(WIDTH, WIDTH),
                number,
                4 * len(mine),
                torch.device("cpu"),
                input_args=known,
                output_args=known,
                group=group,
            )
        )
    loss = nn.functional.mse_loss
    schedule: Any = (
        Schedule1F1B(stages[0], PIECES, loss_fn=loss)
        if kind == "single"
        else ScheduleInterleaved1F1B(stages, PIECES, loss_fn=loss)
    )

    def step() -> None:
        x = torch.ones(ROWS * PIECES, WIDTH, requires_grad=True)
        first, last = stages[0].is_first, stages[-1].is_last
        schedule.step(*((x,) if first else ()), **({"target": x.detach()} if last else {}))

    step()
    return (stages, schedule), step


@pytest.mark.parametrize("kind", ["single", "interleaved"])
@pytest.mark.parametrize("new", [OTHER_MIDDLE, OTHER_DATA])
def test_a_pipeline_stage_follows(kind: str, new: int) -> None:
    """A middle stage becomes another middle stage: every attribute, and whom it then sends to and hears."""
    with sitting(new) as communicator:
        things, step = pipeline(kind)
        place, attributes = communicator.place(), told(things)
        calls_of(communicator)
        step()
        calls = calls_of(communicator)
    with sitting(MIDDLE) as communicator:
        things, step = pipeline(kind)
        calls_of(communicator)
        become(communicator, place)
        assert told(things) == attributes
        step()
        assert calls_of(communicator) == calls


def test_the_ends_of_a_pipeline_are_other_roles() -> None:
    """A middle stage that is to become the last one is an error that says so."""
    with sitting(15) as communicator:
        kept = pipeline("single")
        place = communicator.place()
    with sitting(MIDDLE) as communicator:
        kept = pipeline("single")
        with pytest.raises(JobError, match="pipeline stage 1 of 4 cannot follow: stage 3 is at an end"):
            become(communicator, place)
        assert kept


# -- data, FSDP and what is divided by rank ------------------------------------------------------------


def samplers() -> list[Any]:
    mesh = mesh_of()
    return [
        DistributedSampler(range(100), shuffle=True, seed=4),
        DistributedSampler(range(100), num_replicas=2, rank=mesh["data"].get_local_rank()),
        DistributedSampler(range(100), num_replicas=1, rank=0),
    ]


def test_samplers_give_the_new_ranks_samples() -> None:
    """By the world's rank or a group's, as they were made."""
    place, _, _ = place_of(OTHER_MIDDLE, samplers)
    with sitting(OTHER_MIDDLE):
        expected = [list(sampler) for sampler in samplers()]
    with sitting(MIDDLE) as communicator:
        mine = samplers()
        assert [list(sampler) for sampler in mine] != expected
        become(communicator, place)
        assert [list(sampler) for sampler in mine] == expected


def test_a_sampler_that_may_be_of_two_groups_is_an_error() -> None:
    """At (0, 1, 0) rank 0 of 2 may be the data or the tensor rank; afterwards these are 1 and 0."""
    place, _, _ = place_of(12, samplers)
    with sitting(2) as communicator:
        kept = samplers()
        with pytest.raises(JobError, match=r"DistributedSampler for rank 0 of 2 .*any of the groups"):
            become(communicator, place)
        assert kept


def sharded() -> Any:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(module, mesh=mesh_of()["data", "pipe"])
    return [group.mesh_info for group in module._get_fsdp_state()._fsdp_param_groups], module


def test_sharded_modules_know_their_shard() -> None:
    """FSDP2's mesh information, for a shard's place and a replica's."""
    compare(lambda: sharded()[0], MIDDLE, OTHER_MIDDLE)


def test_an_optimizer_divided_by_rank_cannot_follow() -> None:
    """ZeRO's optimizer has one rank's part of the state: to become another rank is an error."""

    with warnings.catch_warnings(action="ignore"):  # it brings functions in TorchScript along
        from torch.distributed.optim import ZeroRedundancyOptimizer

    def build() -> Any:
        group = mesh_of()["data"].get_group()
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, group, lr=0.1)

    with sitting(OTHER_MIDDLE) as communicator:
        mesh_of()
        place = communicator.place()
    with sitting(MIDDLE) as communicator:
        kept = build()
        with pytest.raises(JobError, match=r"ZeroRedundancyOptimizer \(rank 0 of 2\) cannot follow"):
            become(communicator, place)
        assert kept


def test_objects_follow_that_the_garbage_collector_was_told_to_leave_alone() -> None:
    """Scripts freeze what they have built, to make collections cheap."""
    place, expected, _ = place_of(OTHER_MIDDLE, meshes)
    with sitting(MIDDLE) as communicator:
        things = meshes()
        gc.freeze()
        try:
            become(communicator, place)
            assert gc.get_freeze_count()
        finally:
            gc.unfreeze()
        assert told(things) == expected


def test_objects_of_groups_that_are_gone_follow_nobody() -> None:
    """A mesh whose group was destroyed is left alone, and does not keep the others from following."""

    def build() -> tuple[DeviceMesh, DeviceMesh]:
        mesh = mesh_of()
        gone = dist.new_group([rank for rank in range(WORLD) if rank % 2 == dist.get_rank() % 2])
        kept = DeviceMesh.from_group(gone, "cpu")
        dist.destroy_process_group(gone)
        return mesh, kept

    place, expected, _ = place_of(OTHER_DATA, lambda: build()[0])
    with sitting(MIDDLE) as communicator:
        mesh, gone = build()
        become(communicator, place)
        assert told(mesh) == expected
        assert gone._rank == MIDDLE


def test_who_stays_the_same_rank_changes_nothing() -> None:
    """A standby that was warmed as the rank it becomes needs no update."""
    with sitting(MIDDLE) as communicator:
        things = meshes()
        before = told(things)
        become(communicator, communicator.place())
        assert told(things) == before
