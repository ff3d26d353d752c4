"""The embedded server's life."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.events.examples import JOB, left
from tests.waiting import freeze, until
from trainmover.chaos import disk
from trainmover.errors import BusError, ConfigError
from trainmover.events import NatsBus, NatsServer
from trainmover.events import server as module


def gone(pid: int, limit: float = 5.0) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if status == "Z":
            return True
        time.sleep(0.01)
    return False


async def test_a_restart_keeps_port_and_store(tmp_path):
    """After kill -9 and start, the address is the same and the log is whole."""
    with NatsServer(tmp_path) as server:
        url, pid = server.url, server.pid
        bus = await NatsBus.connect(url, JOB, "writer")
        await bus.publish(left(1))
        await bus.flush(5)
        await bus.close()
        server.kill()
        assert not server.running
        server.start()
        assert (server.url, server.running) == (url, True)
        assert server.pid != pid
        again = await NatsBus.connect(url, JOB, "reader")
        assert [envelope.id for envelope in await (await again.feed(history=True)).past(5)] == ["m0-1"]
        await again.close()
    assert not server.running


def test_start_and_stop_twice_are_nothing(tmp_path):
    """Starting a running server and stopping a stopped one change nothing."""
    server = NatsServer(tmp_path)
    server.stop()
    with pytest.raises(BusError, match="not started"):
        _ = server.url
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert "not running" in repr(server)


def test_a_frozen_server_can_be_stopped(tmp_path):
    """stop() ends a server that SIGSTOP had frozen."""
    with NatsServer(tmp_path) as server:
        freeze(server.pid)
        server.stop(limit=2)
        assert not server.running


async def test_a_token_is_asked_for(tmp_path):
    """With a token nobody else gets in, and the file that holds it is private."""
    with NatsServer(tmp_path, token='sec"ret $x') as server:
        for token in (None, "wrong"):
            with pytest.raises(BusError, match="check the token"):
                await NatsBus.connect(server.url, JOB, "x", token=token, limit=5)
        bus = await NatsBus.connect(server.url, JOB, "x", token='sec"ret $x')
        await bus.close()
        assert stat.S_IMODE((tmp_path / "nats-server.conf").stat().st_mode) == 0o600


def test_what_is_written_through(tmp_path):
    """The store is written through to the disk, on loopback, with room for headers."""
    with NatsServer(tmp_path):
        config = (tmp_path / "nats-server.conf").read_text()
    for words in ("sync_interval: always", "127.0.0.1", "max_payload: 2097152"):
        assert words in config


def test_a_missing_binary_says_what_to_install(tmp_path, monkeypatch):
    """Without the binary the error names the extra to install."""
    monkeypatch.setattr(module.shutil, "which", lambda *args, **options: None)
    with pytest.raises(ConfigError, match=r"trainmover\[local\]"):
        NatsServer(tmp_path).start()


def test_a_taken_port_is_an_error_in_time(tmp_path):
    """When the port is taken the server's own words are in the error."""
    with NatsServer(tmp_path / "a") as first:
        port = int(first.url.rpartition(":")[2])
        second = NatsServer(tmp_path / "b", port=port)
        with pytest.raises(BusError, match=r"nats-server (ended|was not ready)"):
            second.start(limit=3)
        assert not second.running


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's leash is Linux only")
def test_the_server_dies_with_its_parent(tmp_path):
    """Whoever started it is killed: the server is gone too."""
    code = (
        "import sys, time, pathlib\n"
        "from trainmover.events import NatsServer\n"
        f"server = NatsServer(pathlib.Path({str(tmp_path)!r}))\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
async def test_a_full_disk_is_noticed_and_another_start_ends_it(tmp_path):
    """The server tells once that it cannot write; when there is room, what waited is stored after a start."""
    folder = tmp_path / "bus"
    disk.mount(folder)
    server = NatsServer(folder)
    try:
        server.start()
        bus = await NatsBus.connect(server.url, JOB, "writer")
        await bus.publish(left(0))
        await bus.flush(10)
        assert not server.cannot_write
        disk.fill(folder)
        for number in range(1, 200):
            await bus.publish(left(number))
        with pytest.raises(BusError, match="not in the log"):
            await bus.flush(1)
        disk.empty(folder)
        await until(lambda: server.cannot_write)
        server.restart()
        await bus.flush(20)
        assert len(await (await bus.feed(history=True)).past(5)) == 200
        await bus.close()
    finally:
        server.kill()
        disk.unmount(folder)


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
async def test_a_server_that_starts_on_a_full_disk_says_so_soon(tmp_path):
    """It cannot write where it listens; when there is room, another start serves the same log."""
    folder = tmp_path / "bus"
    disk.mount(folder)
    server = NatsServer(folder)
    try:
        server.start()
        bus = await NatsBus.connect(server.url, JOB, "writer")
        await bus.publish(left(0))
        await bus.flush(10)
        server.kill()
        disk.fill(folder)
        began = time.monotonic()
        with pytest.raises((BusError, OSError), match=r"disk full|No space left"):
            server.start()
        assert time.monotonic() - began < 6
        assert not server.running
        disk.empty(folder)
        server.start()
        await bus.publish(left(1))
        await bus.flush(20)
        assert len(await (await bus.feed(history=True)).past(5)) == 2
        await bus.close()
    finally:
        server.kill()
        disk.unmount(folder)


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
async def test_a_server_that_began_with_little_room_is_noticed(tmp_path):
    """It takes the room that there was for the disk's size, and refuses what there is room for later."""
    folder = tmp_path / "bus"
    disk.mount(folder)
    server = NatsServer(folder)
    try:
        server.start()
        bus = await NatsBus.connect(server.url, JOB, "writer")
        await bus.publish(left(0))
        await bus.flush(10)
        server.kill()
        disk.fill(folder)
        with (folder / disk.BALLAST).open("ab") as ballast:
            ballast.truncate(ballast.tell() - (64 << 10))
        server.start()
        disk.empty(folder)
        assert not server.cannot_write
        for number in range(1, 200):
            await bus.publish(left(number))
        await until(lambda: server.cannot_write)
        server.restart()
        await bus.flush(20)
        await bus.close()
    finally:
        server.kill()
        disk.unmount(folder)
