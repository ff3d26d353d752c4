"""Going on from a checkpoint: which one, whether it is whole, and putting it in place.

Each rank looks for the newest checkpoint that counts, verifies the checksum of every part that it needs,
and only then lets torch.distributed.checkpoint load into the tracked tensors, cut as this job cuts them.
The ranks agree: when one of them had to take an older one, all take that.

Another number of ranks is possible where the checkpoint allows it.  A name with one content, distributed
or not, is loaded as this job needs it.  Where ranks had different contents under one name (stages of a
pipeline), a rank takes that of the rank that it corresponds to: the one at the same place in a period of
ranks, which is right for data parallel replicas as the outermost dimension.  Private values are those of
the rank of the same number; a rank that did not exist keeps what the script made.

Nothing is unpickled: tensors are read with ``weights_only``, and the table of contents is the manifest.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

from trainmover.errors import JobError
from trainmover.training import plainly
from trainmover.training.manifest import metadata_of
from trainmover.training.pieces import dtype_of, named, optimized
from trainmover.training.shelf import VALUES, DamagedError, Manifest, Shelf
from trainmover.training.state import TrackedState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was put in place.

    Attributes:
        step: committed steps; 0 when there was nothing to go on from.
        path: the checkpoint's folder; empty without one.
        private: this rank's private values; None when it had none in the checkpoint.
        refused: what newer checkpoints were refused for.
    """

    step: int
    path: str = ""
    private: bytes | None = None
    refused: tuple[str, ...] = ()


def go_on(
    shelf: Shelf,
    tracked: TrackedState,
    rank: int,
    world_size: int,
    *,
    job: str | None,
    agree: Callable[[int], list[int]],
) -> Loaded:
    """Load the newest checkpoint that all ranks can load.

    Args:
        job: only this job's checkpoints count; None: anybody's.
        agree: gives a number to all ranks and returns everybody's; all ranks call it equally often.

    Raises:
        JobError: a checkpoint does not fit this job's script or its number of ranks.
    """
    known = there = [manifest for manifest in shelf.whole() if job is None or manifest.job == job]
    refused: list[str] = []
    loaded, limit = Loaded(0), None
    while True:
        if limit is None or loaded.step > limit:
            loaded = Loaded(0)
            for manifest in there:
                if limit is not None and manifest.step > limit:
                    continue
                try:
                    loaded = load(shelf, manifest, tracked, rank, world_size)
                    break
                except DamagedError as error:
                    log.warning("%s; the checkpoint before it is tried", error)
                    refused.append(str(error))
            there = [manifest for manifest in there if manifest.step <= loaded.step]
        steps = agree(loaded.step)
        limit = min(steps)
        if max(steps) == limit:
            # One rank, now that nobody reads them any more.
            for manifest in known if rank == 0 else ():
                if manifest.step > limit:
                    shelf.put_aside(manifest.folder)
            return Loaded(loaded.step, loaded.path, loaded.private, tuple(refused))


def load(shelf: Shelf, manifest: Manifest, tracked: TrackedState, rank: int, world_size: int) -> Loaded:
    """Verify a checkpoint's parts that this rank needs, then put them in place.

    Raises:
        DamagedError: a part is missing or not what its checksum says; nothing was changed.
        JobError: it does not fit.
    """
    like = rank if world_size == manifest.world_size else rank % manifest.period
    values = _values(shelf, manifest, like)
    keys = _Keys(manifest, rank, world_size)
    wanted: dict[str, torch.Tensor] = {}
    for name, tensor in named(tracked):
        if name.partition(".")[0] in tracked.modules:
            wanted[keys.of(name)] = tensor
    fresh: list[tuple[torch.optim.Optimizer, torch.Tensor, str, torch.Tensor]] = []
    saved = set(values["names"])
    for name, parameters in optimized(tracked).items():
        for index, parameter in enumerate(parameters):
            prefix = f"{name}.{index}."
            for full in sorted(full for full in saved if full.startswith(prefix)):
                key = keys.of(full)
                made = _room(manifest.tensors[key], parameter)
                wanted[key] = made
                fresh.append((tracked.optimizers[name], parameter, full.removeprefix(prefix), made))
    _read(shelf, manifest, wanted)
    for optimizer, parameter, part, made in fresh:
        optimizer.state[parameter][part] = made
    shared = plainly.unpack(values["shared"])
    tracked.load_shared_values(plainly.pack({**shared, "schema": tracked.schema()}, "job"))
    private: bytes | None = None
    if rank < manifest.world_size:
        private = values["private"] if like == rank else _values(shelf, manifest, rank)["private"]
        tracked.load_private_values(private)
    return Loaded(manifest.step, manifest.folder, private)


class _Keys:
    """Under which key a rank's tensor is in a checkpoint."""

    def __init__(self, manifest: Manifest, rank: int, world_size: int) -> None:
        self._manifest, self._world_size = manifest, world_size
        self._like: int | None = rank
        if world_size != manifest.world_size:
            fits = world_size % manifest.period == 0
            self._like = rank % manifest.period if fits else None

    def of(self, name: str) -> str:
        """The key of a name.

        Raises:
            JobError: it is not there, or cannot be told for this number of ranks.
        """
        manifest = self._manifest
        groups = manifest.variants.get(name)
        key = name
        if groups is not None:
            if self._like is None:
                raise JobError(
                    f"the checkpoint {manifest.folder} was made by {manifest.world_size} ranks, which had "
                    f"{len(groups)} different contents of {name!r}; this job has {self._world_size} ranks, "
                    f"and whose each should have cannot be told: give a multiple of {manifest.period} ranks"
                )
            key = next((f"{name}@{ranks[0]}" for ranks in groups if self._like in ranks), name)
        if key not in manifest.tensors:
            raise JobError(
                f"the checkpoint {manifest.folder} has no tensor {name!r}: is it one of this script, with "
                "the same arguments?"
            )
        return key


def _room(entry: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor of an optimizer, cut like its parameter where that is a distributed tensor."""
    shape, dtype = tuple(entry["shape"]), dtype_of(entry["dtype"])
    if hasattr(parameter, "device_mesh") and shape and shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    device = parameter.device if entry["device"] == parameter.device.type else torch.device("cpu")
    return torch.zeros(shape, dtype=dtype, device=device)


def _values(shelf: Shelf, manifest: Manifest, rank: int) -> dict[str, Any]:
    at, size, digest = manifest.values[rank]
    data = _part(shelf, manifest, VALUES, at, size, digest)
    found: dict[str, Any] = msgpack.unpackb(data)
    return found


def _part(shelf: Shelf, manifest: Manifest, file: str, at: int, size: int, digest: str) -> bytes:
    """A part of a file, as its checksum says.

    Raises:
        DamagedError: it is not that, or not there.
    """
    path = f"{manifest.folder}/{file}"
    try:
        data: bytes = shelf.files.cat_file(path, start=at, end=at + size)
    except OSError as error:
        raise DamagedError(f"the checkpoint of step {manifest.step} is damaged: {path}: {error}") from error
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise DamagedError(
            f"the checkpoint of step {manifest.step} is damaged: {path}, bytes {at} to {at + size}, is not "
            "what its checksum says"
        )
    return data


def _read(shelf: Shelf, manifest: Manifest, wanted: dict[str, torch.Tensor]) -> None:
    """Load tensors: first all that is needed is verified, then all is put in place."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(wanted), metadata_of(manifest.tensors), is_coordinator=False)
    try:
        plan = planner.finish_plan(planner.create_local_plan())
    except (ValueError, RuntimeError) as error:
        raise JobError(
            f"the checkpoint {manifest.folder} does not fit: {error}; is it one of this script, with the "
            "same arguments?"
        ) from error
    places = {
        (key, tuple(chunk[0])): chunk[2:]
        for key, entry in manifest.tensors.items()
        for chunk in entry["chunks"]
    }
    for final in (False, True):
        _pass(shelf, manifest, places, plan, planner, final)


def _pass(
    shelf: Shelf,
    manifest: Manifest,
    places: dict[tuple[str, tuple[int, ...]], list[Any]],
    plan: LoadPlan,
    planner: LoadPlanner,
    final: bool,
) -> None:
    """Read all parts of a plan and verify them; in the final pass also put them in place."""
    for item in plan.items:
        index = item.storage_index
        assert index.offset is not None
        file, at, size, digest = places[index.fqn, tuple(index.offset)]
        data = _part(shelf, manifest, file, at, size, digest)
        if not final:
            continue
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        part = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
        with torch.no_grad():
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
        planner.commit_tensor(item, target)
