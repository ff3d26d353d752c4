"""The driver of a local run: what it keeps up."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.waiting import until
from trainmover.chaos import disk
from trainmover.events import NatsBus, NatsServer
from trainmover.machine.hosts import Hosts, Place
from trainmover.machine.programs import Programs
from trainmover.machine.rundir import RunDir
from trainmover.machine.supervisor import LocalRun, RunConfig


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
async def test_a_server_that_died_on_a_full_disk_is_started_when_there_is_room(tmp_path: Path) -> None:
    """Before, it could not write where it listens, or would store nothing for good."""
    folder = tmp_path / "run"
    disk.mount(folder)
    notices: list[str] = []
    config = RunConfig(script=Path(__file__), machines=2)
    run = LocalRun(config, RunDir.create(folder), lambda _: None, notices.append)
    server = NatsServer(run.run_dir.bus)
    try:
        server.start()
        keeping = asyncio.ensure_future(run._keep_server(server))
        await asyncio.sleep(0)
        disk.fill(folder)
        server.kill()
        await until(lambda: notices == ["the bus ended; it is started again"])
        await asyncio.sleep(1.0)  # as long as it takes to see that it stays down
        assert not server.running
        disk.empty(folder)
        await until(lambda: server.running)
        bus = await NatsBus.connect(server.url, run.job, "writer")
        await bus.close()
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
    finally:
        server.kill()
        disk.unmount(folder)


class Barren(Hosts):
    """Hosts on which no machine program gets as far as to join."""

    def __init__(self) -> None:
        self.starts = 0

    def machine(self, name: str) -> Place:
        """Instead of the program, one that ends with an error at once."""
        self.starts += 1
        return Place(prefix=("false",))


@pytest.mark.parametrize("trains", [False, True])
async def test_a_spare_that_cannot_join_does_not_end_a_job_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    """It is tried again, ever more rarely; a job that has not begun to train is given up instead."""
    monkeypatch.setattr("trainmover.machine.supervisor.FALSE_START_SECONDS", 0.02)
    hosts, notices = Barren(), list[str]()
    config = RunConfig(script=Path(__file__), machines=2)
    run = LocalRun(config, RunDir.create(tmp_path / "run"), lambda _: None, notices.append, hosts)
    logs = run.run_dir.logs
    run._programs = Programs(run.job, "00", 1, hosts, logs, lambda _: "nats://127.0.0.1:1")
    run._trains = trains
    run._start_machine("m0", spare=trains)
    if trains:
        await until(lambda: hosts.starts > 5)
        assert run.failure == ""
    else:
        await until(lambda: bool(run.failure))
        assert hosts.starts == 3
        assert run.failure.startswith("machine m0 could not join the job")
    for task in tuple(run._keepers):
        task.cancel()
    await asyncio.gather(*run._keepers, return_exceptions=True)
    await asyncio.wait_for(run.machines["m0"].exited(), 20.0)
