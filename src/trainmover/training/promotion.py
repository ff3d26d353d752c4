"""Torch after a promotion: what its objects remember of the rank that this process no longer is.

A script in the sandbox builds meshes, pipeline stages, schedules and samplers as the rank of its role's
representative.  Promotion makes the process another rank of that role, and everything that asks a group
for its rank follows by itself.  Here are the objects that wrote the answer down when they were
built; afterwards each is what it would be, had it been built as the new rank.

What may differ between two ranks of a role is small, since a role is made of ranks that call the same
things: *where* in a mesh, *which* middle stage, *whose* samples.  What a process has of a sharded
model is another matter, and is copied by name.  Where an object cannot be another rank's, or nobody can
tell which of two ranks it should become, that is an error here and not wrong numbers later.

Local names of groups stay (compiled graphs hold them), and so do all objects, because the script and
torch refer to them.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import distributed_c10d

from trainmover.ccl.communicator import Communicator
from trainmover.errors import JobError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """A rank's place in one of its groups, before and after: the group's ranks, the rank in the group."""

    old_ranks: tuple[int, ...]
    new_ranks: tuple[int, ...]
    old: int
    new: int


class Places:
    """The places of a promoted rank in all its groups.

    Attributes:
        old: global rank before.
        new: global rank now.
        moved: meshes (by ``id``) in which the own coordinate is another one now.
        described: descriptions of DTensors on such meshes.
    """

    def __init__(
        self, communicator: Communicator, old_ranks: Mapping[str, tuple[int, ...]], old: int
    ) -> None:
        self.old, self.new = old, communicator.rank
        self.moved: set[int] = set()
        self.described: list[Any] = []
        self._of = {
            name: Place(before, info.ranks, before.index(old), info.ranks.index(self.new))
            for name, before in old_ranks.items()
            if (info := communicator.groups.get(name)) is not None
        }

    def of(self, group: Any) -> Place:
        """In a process group of torch's; None means the default group.

        Raises:
            KeyError: the group is gone, or another back end's.
        """
        group = group or distributed_c10d._get_default_group()
        return self.named(str(distributed_c10d._world.pg_names[group]))

    def named(self, name: str) -> Place:
        """In a group by its local name; errors as in :meth:`of`."""
        return self._of[name]

    def of_size(self, size: int) -> list[Place]:
        """In all groups of a size."""
        return [place for place in self._of.values() if len(place.new_ranks) == size]

    def cannot(self, what: str, why: str) -> JobError:
        """The error for an object that cannot follow."""
        return JobError(f"rank {self.old} was promoted to rank {self.new}, but {what} cannot follow: {why}")


Update = Callable[[Any, Places], None]
"""Brings one object up to date."""
Found = list[tuple[Any, Update]]
"""Objects that may remember a rank, in the order in which they are brought up to date."""


def follow(
    communicator: Communicator,
    old_ranks_by_local_group: Mapping[str, tuple[int, ...]],
    old_rank: int,
    found: Found | None = None,
) -> None:
    """Bring torch's objects up to date with the rank and the groups of a promoted process.

    Args:
        communicator: with the new rank, and the new ranks of its groups.
        old_ranks_by_local_group: what ``communicator.groups[name].ranks`` were, by name.
        old_rank: what ``communicator.rank`` was.
        found: what :func:`look` found earlier, if nothing was built since.

    Raises:
        JobError: an object cannot become the new rank's; it is named, with what would help.
    """
    if old_rank == communicator.rank:
        return
    places = Places(communicator, old_ranks_by_local_group, old_rank)
    world = distributed_c10d._world
    for group, name in list(world.pg_names.items()):
        if name in communicator.groups:  # not another back end's
            world.pg_group_ranks[group] = {rank: at for at, rank in enumerate(places.of(group).new_ranks)}
    for thing, update in look() if found is None else found:
        with suppress(KeyError):  # its group is gone, or another back end's: it follows nobody
            update(thing, places)
    _forget_what_was_derived(places)


# -- finding ---------------------------------------------------------------------------------------


def look() -> Found:
    """All living objects that may remember a rank.

    Only objects of modules that are loaded already: none costs an import here.
    """
    updates = list(_updates())
    numbers: dict[type, int | None] = {}
    found: list[tuple[int, Any]] = []
    for thing in _everything():
        kind = type(thing)  # not isinstance(), which some types answer slowly, and proxies wrongly
        if kind not in numbers:
            fits = (number for number, (base, _) in enumerate(updates) if base in kind.__mro__)
            numbers[kind] = next(fits, None)
        number = numbers[kind]
        if number is not None:
            found.append((number, thing))
    return [(thing, updates[number][1]) for number, thing in sorted(found, key=lambda item: item[0])]


def _everything() -> list[Any]:
    """All objects that the garbage collector knows, also those that the script has frozen."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    if frozen:
        gc.freeze()
    return objects


def _updates() -> Iterator[tuple[type, Update]]:
    for module, name, update in (
        ("torch.distributed.device_mesh", "DeviceMesh", _mesh),
        ("torch.distributed.tensor._dtensor_spec", "DTensorSpec", _spec),
        ("torch.distributed.fsdp._fully_shard._fsdp_common", "DataParallelMeshInfo", _mesh_info),
        ("torch.distributed.pipelining.stage", "_PipelineStageBase", _stage),
        ("torch.distributed.pipelining.schedules", "PipelineScheduleMulti", _schedule),
        ("torch.utils.data.distributed", "DistributedSampler", _sampler),
        ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer", _partition),
        ("torch.distributed.fsdp._flat_param", "FlatParamHandle", _partition),
    ):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            yield kind, update


# -- device meshes, and what torch derives from them ---------------------------------------------------


def _mesh(mesh: Any, places: Places) -> None:
    """The own rank and coordinate; and the listed ranks, where the mesh is one of several alike.

    A mesh of all ranks, and every slice of it, lists the same ranks on each of them.  One made of a group
    (``from_group``, or a list of ranks) lists that group's.
    """
    if not hasattr(mesh, "_rank_map"):
        raise places.cannot(
            "a DeviceMesh", f"torch {torch.__version__} keeps its ranks in another way than 2.13"
        )
    if mesh._root_mesh is None:
        _renumber(mesh, places)
    elif mesh._rank_map is not mesh._root_mesh._rank_map:
        _list_ranks(mesh, mesh._root_mesh._rank_map)
    before = mesh._coordinate_on_dim
    mesh._rank = places.new
    mesh._coordinate_on_dim = None
    for row in mesh._layout.remap_to_tensor(mesh._rank_map):
        if (row == places.new).any():
            mesh._coordinate_on_dim = tuple((row == places.new).nonzero()[0].tolist())
    if mesh._coordinate_on_dim != before:
        places.moved.add(id(mesh))


def _renumber(mesh: Any, places: Places) -> None:
    old = mesh._rank_map.tolist()
    mine = [places.named(name) for name in getattr(mesh, "_dim_group_names", ())]
    if len(mine) == 1 and mine[0].old_ranks == tuple(old):
        new = list(mine[0].new_ranks)
    elif places.new in old or places.old not in old:
        return
    else:
        shift = places.new - places.old
        new = [rank + shift for rank in old]
        if any(place.new_ranks != tuple(rank + shift for rank in place.old_ranks) for place in mine):
            raise places.cannot(f"a DeviceMesh of ranks {old}", "slice it from one mesh of all ranks instead")
    if new != old:
        _list_ranks(mesh, mesh._rank_map.new_tensor(new))


def _list_ranks(mesh: Any, ranks: Any) -> None:
    mesh._rank_map, mesh._flatten_rank_map = ranks, tuple(ranks.tolist())
    mesh._hash = None


def _mesh_info(info: Any, places: Places) -> None:
    """FSDP2's view of a mesh: which shard, which replica."""
    if hasattr(info, "shard_process_group"):
        info.shard_mesh_rank = places.of(info.shard_process_group).new
    if hasattr(info, "replicate_process_group"):
        info.replicate_mesh_rank = places.of(info.replicate_process_group).new


def _spec(spec: Any, places: Places) -> None:
    """How a DTensor is cut: says nothing about a rank itself, but other results are kept under it."""
    if id(spec.mesh) in places.moved:
        spec._hash = None
        places.described.append(spec)


def _forget_what_was_derived(places: Places) -> None:
    """Drop results in which torch may have put a coordinate: shapes of parts, and compiled graphs.

    Only when a mesh on which there are DTensors has moved: the ranks of a machine keep their slots, so
    the tensor-parallel mesh of a machine's ranks stays, and with it all that was compiled.
    """
    if not places.described:
        return
    log.info(
        "rank %d: DTensors have moved within their mesh; what was compiled is compiled again", places.new
    )
    redistribute = importlib.import_module("torch.distributed.tensor._redistribute")
    debug = importlib.import_module("torch.distributed.tensor.debug")
    debug._clear_sharding_prop_cache()
    redistribute._gen_transform_infos.cache_clear()
    redistribute.clear_redistribute_planner_cache()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


# -- pipelines -------------------------------------------------------------------------------------


def _stage(stage: Any, places: Places) -> None:
    """The index, and whom activations and gradients come from and go to.

    Raises:
        JobError: the new rank's stage is the first or the last, and this one is not, or the other way round.
    """
    place = places.of(stage.group)
    stage.group_rank = place.new
    index = _index_of(stage.stage_index, stage.stage_index_to_group_rank, place)
    shift = index - stage.stage_index
    if not shift:
        return
    first, last = stage.is_first, stage.is_last
    stage.stage_index = index
    if (first, last) != (stage.is_first, stage.is_last):
        raise places.cannot(
            f"pipeline stage {index - shift} of {stage.num_stages}",
            f"stage {index} is at an end of the pipeline where it is not; their roles are different",
        )
    stage.log_prefix = f"[Stage {index}]"
    if hasattr(stage, "submod_to_stage_index"):  # a stage that was traced
        nodes = [node for node in stage.pipe_info.graph.nodes if node.op == "call_module"]
        stage.node, stage.name = nodes[index], nodes[index].name
    for kind, table in (("recv_for", stage.args_recv_info), ("recv_grad_for", stage.grad_recv_info)):
        for infos in table.values():
            for info in infos:
                if info.source is not None:
                    info.source += shift
                    info.input_name = f"{kind}_{index}_from_{info.source}"
    for number, targets in stage.act_send_info.items():
        stage.act_send_info[number] = [None if target is None else target + shift for target in targets]
    if stage.grad_send_info is not None:
        stage.grad_send_info = [None if target is None else target + shift for target in stage.grad_send_info]


def _index_of(index: int, rank_of_stage: Mapping[int, int], place: Place) -> int:
    """The new rank's stage in the place of the old rank's stage ``index``: its how-many-th it is."""
    old, new = (sorted(i for i, rank in rank_of_stage.items() if rank == at) for at in (place.old, place.new))
    return new[old.index(index)]


def _schedule(schedule: Any, places: Places) -> None:
    """A schedule of several stages on each rank: whose column of the plan it carries out."""
    place = places.of(schedule._stages[0].group)
    schedule.rank = place.new
    mapping = schedule.stage_index_to_group_rank
    moved = {i: _index_of(i, mapping, place) for i, rank in mapping.items() if rank == place.old}
    counter = getattr(schedule, "backward_counter", {})
    counts = {moved[i]: count for i, count in counter.items()}
    counter.clear()
    counter.update(counts)
    if hasattr(schedule, "unsharded_stages"):
        schedule.unsharded_stages = {moved[i] for i in schedule.unsharded_stages}


# -- data and partitions ---------------------------------------------------------------------------


def _sampler(sampler: Any, places: Places) -> None:
    """Whose samples: the rank in the group that the sampler's number of replicas and rank speak of.

    Raises:
        JobError: there are several such groups, in which this process now has different ranks.
    """
    candidates = [p for p in places.of_size(sampler.num_replicas) if p.old == sampler.rank]
    ranks = {place.new for place in candidates}
    if len(ranks) > 1:
        raise places.cannot(
            f"a {type(sampler).__name__} for rank {sampler.rank} of {sampler.num_replicas}",
            f"it may belong to any of the groups {', '.join(str(p.old_ranks) for p in candidates)}; draw the "
            "samples from an object with a state_dict that says whose they are, and track it",
        )
    if ranks:
        sampler.rank = ranks.pop()


def _partition(thing: Any, places: Places) -> None:
    """What is divided by rank without a mesh (ZeRO's optimizer, the first FSDP) is good for one rank only."""
    place = places.of(thing.process_group)
    if place.old != place.new:
        raise places.cannot(
            f"{type(thing).__name__} (rank {place.old} of {len(place.old_ranks)})",
            f"rank {place.new} has another part of the model; use fully_shard instead",
        )
