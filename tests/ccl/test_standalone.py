"""The backend in a script of its own: real processes that meet through torch's store."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import forks
from tests.waiting import wait_until
from trainmover.ccl.backend import ROAD, road
from trainmover.ccl.standalone import HOST, IDENTITY, listening_host, machine_identity, store_host
from trainmover.errors import ConfigError, LinkError

LIMIT = 120.0
DIES = "dies without a word"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def spawn(
    body: Callable[..., Any], size: int, folder: Path, limit: float = LIMIT, *, script: bool = False
) -> list[Any]:
    """Run ``body(rank, size, folder)`` in real processes; their answers by rank, within ``limit`` seconds.

    With ``script`` they begin with nothing and end as scripts do; else they are forks.
    """
    until = time.monotonic() + limit
    context = multiprocessing.get_context("spawn") if script else forks()
    pipes, processes = [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=enter, args=(body, rank, size, str(folder), theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        answers = [
            pipe.recv() if pipe.poll(max(0.0, until - time.monotonic())) else ("error", "nothing heard")
            for pipe in pipes
        ]
        wrong = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(answers) if kind != "done"]
        assert not wrong, "\n".join(wrong)
        for process in processes:
            process.join(LIMIT)
        return [value for _, value in answers]
    finally:
        for process, pipe in zip(processes, pipes, strict=False):
            if process.is_alive():
                process.kill()
            process.join(10.0)
            process.close()
            pipe.close()


def enter(body: Callable[..., Any], rank: int, size: int, folder: str, pipe: Any) -> None:
    """First function of a spawned process."""
    import traceback

    import torch

    import trainmover

    torch.set_num_threads(1)
    trainmover.register_backend()
    try:
        answer = body(rank, size, folder)
        pipe.send(("done", answer))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    else:
        if answer == DIES:
            os._exit(0)


def meet(folder: str, rank: int, size: int, name: str = "store") -> None:
    """The default group, over a file."""
    import torch.distributed as dist

    dist.init_process_group("trainmover", init_method=f"file://{folder}/{name}", rank=rank, world_size=size)


def total(rank: int, group: Any = None) -> float:
    """The sum of the members' numbers (rank + 1)."""
    import torch
    import torch.distributed as dist

    tensor = torch.full((70_000,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    assert tensor.min() == tensor.max()
    return float(tensor[0])


def twice(rank: int, size: int, folder: str) -> list[Any]:
    import torch.distributed as dist

    found: list[Any] = []
    for name in ("first", "second"):
        meet(folder, rank, size, name)
        found.append(total(rank))
        pair = dist.new_group([0, 2])
        found.append(total(rank, pair) if rank != 1 else None)
        dist.barrier()
        dist.destroy_process_group()
    found.append([t.name for t in threading.enumerate() if t.name.startswith("trainmover")])
    return found


def test_a_script_makes_destroys_and_makes_groups(tmp_path: Path) -> None:
    """Groups work without a job, end without a thread left, and can be made again."""
    pair = [4.0, None, 4.0]
    assert spawn(twice, 3, tmp_path) == [[6.0, pair[rank], 6.0, pair[rank], []] for rank in range(3)]


def same_store(rank: int, size: int, folder: str) -> list[float]:
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", size)
    found = []
    for _ in range(3):
        dist.init_process_group("trainmover", store=store, rank=rank, world_size=size)
        found.append(total(rank))
        dist.destroy_process_group()
    return found


def test_a_store_serves_again(tmp_path: Path) -> None:
    """The same store serves several lives of the default group."""
    assert spawn(same_store, 2, tmp_path) == [[3.0] * 3] * 2


def beside_gloo(rank: int, size: int, folder: str) -> list[Any]:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found = []
    for members in ([1, 2], [0, 2], [0, 1, 2]):
        group = dist.new_group(members, backend="trainmover")
        found.append(total(rank, group) if rank in members else None)
    dist.destroy_process_group()
    found.append([t.name for t in threading.enumerate() if t.name.startswith("trainmover")])
    return found


def test_groups_beside_another_backend(tmp_path: Path) -> None:
    """Groups of this backend can be made where the default group is another backend's."""
    assert spawn(beside_gloo, 3, tmp_path) == [
        [None, 4.0, 6.0, []],
        [5.0, None, 6.0, []],
        [5.0, 4.0, 6.0, []],
    ]


def on_two_machines(rank: int, size: int, folder: str) -> Any:
    import torch
    import torch.distributed as dist

    os.environ[IDENTITY] = "left" if rank in (0, 3) else "right"
    meet(folder, rank, size)
    positions = dist.group.WORLD._get_backend(torch.device("cpu"))._communicator.positions
    found = total(rank), [positions[r] for r in range(size)]
    dist.destroy_process_group()
    return found


def test_machines_are_told_apart(tmp_path: Path) -> None:
    """Ranks that name the same machine have the same position, however they are spread."""
    assert spawn(on_two_machines, 4, tmp_path) == [(10.0, [0, 1, 1, 0])] * 4


def lose_a_peer(rank: int, size: int, folder: str) -> str:
    import torch
    import torch.distributed as dist

    meet(folder, rank, size)
    total(rank)
    if rank == 2:
        return DIES
    try:
        for _ in range(100_000):
            dist.all_reduce(torch.ones(4))
    except LinkError as error:
        said = str(error)
    dist.destroy_process_group()
    return said


def test_a_lost_peer_is_an_error(tmp_path: Path) -> None:
    """Without a job there is no vote: whoever waits for a dead rank gets an error that names the call."""
    first, second, _ = spawn(lose_a_peer, 3, tmp_path)
    assert "all_reduce (SUM, 4 x float32) of '0' failed" in first
    assert "all_reduce (SUM, 4 x float32) of '0' failed" in second


def by_environment(rank: int, size: int, folder: str) -> list[float]:
    import torch.distributed as dist

    found = []
    for turn in (1, 2):
        if rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            Path(folder, f"port{turn}.new").write_text(str(port))
            Path(folder, f"port{turn}.new").rename(Path(folder, f"port{turn}"))
        wait_until(Path(folder, f"port{turn}").exists, "rank 0 chooses a port")
        port = int(Path(folder, f"port{turn}").read_text())
        if turn == 1:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
            dist.init_process_group("trainmover")
        else:
            dist.init_process_group(
                "trainmover", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
            )
        found.append(total(rank))
        dist.destroy_process_group()
    return found


def test_a_tcp_store_brings_ranks_together(tmp_path: Path) -> None:
    """The usual ways to start work: addresses in the environment, and in the call."""
    assert spawn(by_environment, 2, tmp_path) == [[3.0, 3.0]] * 2


def leave_early(rank: int, size: int, folder: str) -> float:
    import torch.distributed as dist

    meet(folder, rank, size)
    pair = dist.new_group([1, 2])
    total(rank)
    if rank == 0:
        return 0.0  # the script is over; it has destroyed nothing
    for _ in range(300):
        found = total(rank, pair)
        time.sleep(0.005)  # training takes its time, and rank 0 is gone soon
    dist.destroy_process_group()
    return found


def test_a_script_may_end_without_destroying_its_groups(tmp_path: Path) -> None:
    """Who leaves at the end of its script is not taken for one that was killed."""
    assert spawn(leave_early, 3, tmp_path, script=True) == [0.0, 5.0, 5.0]


def abort_and_begin_again(rank: int, size: int, folder: str) -> list[float]:
    import torch.distributed as dist

    found = []
    for name in ("first", "second"):
        meet(folder, rank, size, name)
        found.append(total(rank))
        Path(folder, f"{name} {rank}").touch()
        wait_until(Path(folder, f"{name} {1 - rank}").exists, "nobody waits for the other any more")
        dist.distributed_c10d._abort_process_group()
    meet(folder, rank, size, "third")
    found.append(total(rank))
    dist.destroy_process_group()
    return found


def test_groups_can_be_made_after_an_abort(tmp_path: Path) -> None:
    """Torch's abort drops the groups without a word; new ones can be made."""
    assert spawn(abort_and_begin_again, 2, tmp_path) == [[3.0, 3.0, 3.0]] * 2


def test_an_address_to_listen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is the one asked for, else one that leads to the store's host, else this host's."""
    from torch.distributed import HashStore, PrefixStore, TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert store_host(PrefixStore("a", PrefixStore("b", store))) == "127.0.0.1"
    assert listening_host(PrefixStore("a", store)) == "127.0.0.1"
    assert store_host(HashStore()) == ""
    with socket.create_server((listening_host(HashStore()), 0)):
        pass
    monkeypatch.setenv(HOST, "192.0.2.1")
    assert listening_host(store) == "192.0.2.1"


def test_a_road_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A road into torch that does not exist is refused by name."""
    monkeypatch.setenv(ROAD, "railway")
    with pytest.raises(ConfigError, match="railway"):
        road()
    monkeypatch.setattr("trainmover.ccl.backend.backend_road", lambda: False)
    monkeypatch.setenv(ROAD, "backend")
    with pytest.raises(ConfigError, match=r"2\.14"):
        road()


def test_a_machine_has_one_name() -> None:
    """A machine's name is the same whenever it is asked for, and says the host."""
    assert machine_identity() == machine_identity() != ""
