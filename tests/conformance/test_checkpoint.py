"""torch.distributed.checkpoint: sharded state saved and loaded, at once and in the background."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.models import Block, mlp, train, weights
from tests.conformance.ranks import Ranks


def saved_and_loaded(rank: int, size: int, sharded: bool, background: bool) -> Any:
    """Train, save, train on, load: the state is the one that was saved."""
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    torch.manual_seed(7)
    if sharded:
        model: torch.nn.Module = torch.nn.Sequential(Block(), mlp())
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    else:
        model = DistributedDataParallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, model.parameters(), rank, optimizer=optimizer)
    parts, optimizer_parts = get_state_dict(model, optimizer)
    before = weights(model)
    state = {"model": parts, "optimizer": optimizer_parts, "step": 3}
    if background:
        dcp.async_save(state, checkpoint_id=folder[0]).result(timeout=60)
    else:
        dcp.save(state, checkpoint_id=folder[0])
    dist.barrier()
    train(model, model.parameters(), rank, steps=2, optimizer=optimizer)
    parts, optimizer_parts = get_state_dict(model, optimizer)
    loaded: dict[str, Any] = {"model": parts, "optimizer": optimizer_parts, "step": 0}
    dcp.load(loaded, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    after = weights(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    losses = train(model, model.parameters(), rank, steps=2, optimizer=optimizer)
    files = sorted(path.name for path in Path(folder[0]).iterdir())
    return {"step": loaded["step"], "after": after, "losses": losses, "files": files}


@pytest.mark.parametrize("background", [False, True], ids=["save", "async_save"])
@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP2"])
def test_save_and_load(ranks: Ranks, sharded: bool, background: bool) -> None:
    """A checkpoint holds the same files, and loads to the same weights and losses, as one made over Gloo."""
    ranks.compare(saved_and_loaded, sharded=sharded, background=background, tolerance=1e-5)
