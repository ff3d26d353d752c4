"""The external monitor agrees with the contract without importing it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgpack
import nats
import pytest
from typer.testing import CliRunner

from examples import subscribe
from trainmover.access.credentials import read_credentials
from trainmover.access.permissions import accounts
from trainmover.access.roles import ROLES, Role
from trainmover.cli.app import app
from trainmover.events import EVENTS, Envelope, Event, encode_message
from trainmover.events.catalogue import JobCompleted, MachineFailed, StandbyAssigned, StandbyWarm
from trainmover.events.log import read_log
from trainmover.events.nats_bus import NatsBus
from trainmover.events.server import find_server

START = 1_700_000_000.0


def line(monitor: subscribe.Monitor, event: Event, time: float, incident: str | None = None) -> str | None:
    """What the monitor makes of an event that TrainMover itself encoded."""
    envelope = Envelope(id=f"e{time}", source="test", time=time, job="demo", event=event, incident=incident)
    return monitor.line(*encode_message(envelope))


def test_needs_nothing_of_trainmover() -> None:
    """A subscriber installs nats-py, msgpack and pydantic, and no more."""
    tree = ast.parse(Path(subscribe.__file__).read_text(encoding="utf-8"))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {name.split(".")[0] for name in imported} & {
        "trainmover",
        "torch",
        "nats",
        "msgpack",
        "pydantic",
    }
    assert outside == {"nats", "msgpack", "pydantic"}


@pytest.mark.parametrize("kind", subscribe.CARED_FOR)
def test_knows_the_types_and_fields_of_the_catalogue(kind: str) -> None:
    """Each type that the monitor names exists in that version and has the fields that it needs."""
    name, version = kind.removeprefix("io.trainmover.").rsplit(".v", 1)
    real, mine = EVENTS[name], subscribe.CARED_FOR[kind]
    assert real.version == int(version)
    needed = {field for field, info in mine.model_fields.items() if info.is_required()}
    assert needed <= set(real.model_fields)


def test_times_an_incident_from_its_first_event() -> None:
    """Lines of one incident show the seconds since it began; other lines show none."""
    monitor = subscribe.Monitor()
    failed = MachineFailed(machine="m1", incarnation="a", reason="signal 9")
    assigned = StandbyAssigned(
        incident="inc-1", kind="failure", leaver="m1", joiner="s0", joiner_incarnation="b"
    )
    lines = [
        line(monitor, failed, START, "inc-1"),
        line(monitor, assigned, START + 0.25, "inc-1"),
        line(monitor, JobCompleted(steps=9, digest="d", identical=True), START + 3),
    ]
    assert lines == [
        "22:13:20  demo  machine.failed     m1 failed: signal 9  [inc-1 +0.00 s]",
        "22:13:20  demo  standby.assigned   s0 will take the place of m1  [inc-1 +0.25 s]",
        "22:13:23  demo  job.completed      9 steps",
    ]


def test_passes_over_what_it_does_not_care_for() -> None:
    """Other events are no concern of this monitor."""
    event = StandbyWarm(
        machine="s0",
        incarnation="a",
        generation=1,
        recordings=("x",),
        world_size=3,
        ranks_per_machine=1,
        positions=(0,),
    )
    assert line(subscribe.Monitor(), event, START) is None


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb({"machine": 3}), msgpack.packb([1])])
def test_says_what_it_cannot_read(body: bytes) -> None:
    """A message that breaks the contract becomes a line, not an end of the program."""
    headers = {"ce-type": "io.trainmover.machine.failed.v1", "ce-time": "2026-01-01T00:00:00Z"}
    said = subscribe.Monitor().line(headers, body)
    assert said is not None
    assert said.startswith("cannot read io.trainmover.machine.failed.v1: ")


# -- for real: a server with accounts, the monitor as a program of its own --------------------------

KILL = Path(__file__).resolve().parents[2] / "events" / "recordings" / "kill.tmlog"

GUARD = """
import runpy, sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("trainmover", "torch", "tests"):
            raise ImportError(f"{name} is not installed where this monitor runs")

sys.meta_path.insert(0, Guard())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where nothing of TrainMover can be imported."""

SERVER = """
listen: "127.0.0.1:%d"
jetstream { store_dir: "%s" }
%s
"""

EVERYBODY = Role("everybody", "all programs of a job in one", says=frozenset(EVENTS.values()), creates=True)
PASSWORDS = {"everybody": "all", "reader": "look"}


@dataclass(frozen=True)
class Bus:
    """A server with one user for everything and one that only reads."""

    port: int

    def url(self, user: str) -> str:
        return f"nats://{user}:{PASSWORDS[user]}@127.0.0.1:{self.port}"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def serving(config: Path, port: int) -> Iterator[None]:
    """A NATS server with this configuration, up until the block ends."""
    nowhere = subprocess.DEVNULL
    child = subprocess.Popen([find_server(), "-c", str(config)], stdout=nowhere, stderr=nowhere)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)
        yield
    finally:
        child.terminate()
        child.wait(10)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """The server, up until the test is over."""
    port = free_port()
    config = tmp_path / "nats.conf"
    users = accounts(PASSWORDS, roles=(ROLES["reader"], EVERYBODY))
    config.write_text(SERVER % (port, tmp_path / "store", users))
    child = subprocess.Popen(
        [find_server(), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)
        yield Bus(port)
    finally:
        child.terminate()
        child.wait(10)


def monitor(address: str, *arguments: str, cwd: Path = Path("/")) -> subprocess.Popen[str]:
    """The example as a program of its own."""
    command = [
        sys.executable,
        "-c",
        GUARD,
        str(Path(subscribe.__file__)),
        "--bus",
        address,
        *arguments,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd
    )


async def say_all(bus: Bus, records: list, first: int = 0) -> None:
    """Publish recorded events as the programs of the job did."""
    speaker = await NatsBus.connect(bus.url("everybody"), records[0].envelope.job, "test")
    for record in records[first:]:
        await speaker.publish(record.envelope)
    await speaker.flush(20.0)
    await speaker.close()


def test_tells_a_recorded_job_with_an_account_that_only_reads(bus: Bus) -> None:
    """From the log, without TrainMover and without leaving anything on the server."""
    records = read_log(KILL)
    job = records[0].envelope.job
    asyncio.run(say_all(bus, records))
    watching = monitor(bus.url("reader"), "--job", job, "--history", "--no-follow")
    told, wrong = watching.communicate(timeout=60)
    assert watching.returncode == 0, wrong
    kinds = [line.split()[2] for line in told.splitlines()]
    cared = {kind.removeprefix("io.trainmover.").rsplit(".", 1)[0] for kind in subscribe.CARED_FOR}
    assert kinds == [record.envelope.type for record in records if record.envelope.type in cared]
    assert "m1 failed: nobody listens under its name" in told
    assert "m3 will take the place of m1" in told

    async def consumers() -> int:
        client = await nats.connect(bus.url("everybody"), inbox_prefix=b"_INBOX.everybody")
        try:
            return (await client.jetstream().stream_info(f"TRAINMOVER_{job}")).state.consumer_count
        finally:
            await client.close()

    assert asyncio.run(consumers()) == 0


def test_goes_on_live_after_the_past_and_tells_each_event_once(bus: Bus) -> None:
    """What is said while it watches is told as it comes; what was told from the log is not told again."""
    records = read_log(KILL)
    half = next(n for n, record in enumerate(records) if record.envelope.type == "machine.failed")
    asyncio.run(say_all(bus, records[:half]))
    watching = monitor(bus.url("reader"), "--job", records[0].envelope.job, "--history")
    assert watching.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=lambda: [lines.put(line) for line in watching.stdout or ()])
    reader.start()
    try:
        assert "job.submitted" in lines.get(timeout=30)
        asyncio.run(say_all(bus, records))
        told = [lines.get(timeout=30)]
        while "job.completed" not in told[-1]:
            told.append(lines.get(timeout=30))
    finally:
        watching.kill()
        watching.wait()
        reader.join()
        watching.stdout.close()
        assert watching.stderr is not None
        watching.stderr.close()
    assert sum("machine.failed" in line for line in told) == 1
    assert not any("job.submitted" in line for line in told)
    assert len(told) == len(set(told))


def test_the_reading_account_can_say_nothing(bus: Bus) -> None:
    """The server refuses what a reader publishes, and what it asks JetStream to make or delete."""
    records = read_log(KILL)[:3]
    job = records[0].envelope.job
    asyncio.run(say_all(bus, records))

    async def try_to_lie() -> tuple[list[str], int]:
        refused: list[str] = []

        async def note(error: Exception) -> None:
            refused.append(str(error))

        liar = await nats.connect(bus.url("reader"), error_cb=note, inbox_prefix=b"_INBOX.reader")
        await liar.publish(f"trainmover.{job}.job.failed", b"")
        for request in ("STREAM.DELETE", "STREAM.PURGE", "CONSUMER.CREATE"):
            await liar.publish(f"$JS.API.{request}.TRAINMOVER_{job}", b"{}")
        await liar.flush()
        info = await liar.jetstream().stream_info(f"TRAINMOVER_{job}")
        await liar.close()
        return refused, info.state.messages

    refused, kept = asyncio.run(try_to_lie())
    assert len([text for text in refused if "permissions violation" in text.lower()]) == 4
    assert kept == len(records)


def test_the_reading_account_is_enough_for_our_own_commands(bus: Bus, tmp_path: Path) -> None:
    """Exporting and replaying a live job needs no more than subscribing does."""
    records = read_log(KILL)
    job = records[0].envelope.job
    asyncio.run(say_all(bus, records))
    copy = tmp_path / "copy.tmlog"
    run = CliRunner()
    exported = run.invoke(app, ["events", "export", str(copy), bus.url("reader"), "--job", job])
    assert exported.output == f"{len(records)} events in {copy}\n"
    replayed = run.invoke(app, ["events", "replay", bus.url("reader"), "--job", job])
    assert replayed.exit_code == 0, replayed.output
    tail = run.invoke(app, ["events", "tail", "--bus", bus.url("reader"), "--job", job])
    assert "completed: 40 steps" in tail.output


def test_follows_the_address_that_credentials_writes(tmp_path: Path) -> None:
    """Over TLS with the reader's folder: its address names the certificate to trust."""
    records = read_log(KILL)
    job = records[0].envelope.job
    port = free_port()
    made = tmp_path / "made"
    command = ["credentials", str(made), "--port", str(port), "--store", str(tmp_path / "store"), "--tls"]
    assert CliRunner().invoke(app, command).exit_code == 0
    config = made / "bus" / "nats.conf"
    config.write_text(config.read_text().replace("127.0.0.1:8222", f"127.0.0.1:{free_port()}"))
    with serving(config, port):

        async def submit() -> None:
            bus = await NatsBus.connect(read_credentials(made / "operator").bus, job, "test")
            await bus.publish(records[0].envelope)
            await bus.flush(20.0)
            await bus.close()

        asyncio.run(submit())
        address = (made / "reader" / "bus").read_text().strip()
        assert address.startswith("tls://reader:")
        watching = monitor(address, "--job", job, "--history", "--no-follow", cwd=made / "reader")
        told, wrong = watching.communicate(timeout=60)
    assert watching.returncode == 0, wrong
    assert [line.split()[2] for line in told.splitlines()] == ["job.submitted"]
