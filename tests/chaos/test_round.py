"""Rounds: what is told to one comes back out of its file; its hands do what the plan says when it is time."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from trainmover import clock
from trainmover.chaos import disk, network
from trainmover.chaos.ground import Ground
from trainmover.chaos.hands import Hands
from trainmover.chaos.plan import Plan, Setting, Trouble, draw
from trainmover.chaos.round import Order, play
from trainmover.events.catalogue import JobFailed
from trainmover.events.envelope import Envelope


def order(folder: Path, plan: Plan) -> Order:
    """An order for a script that is not there."""
    return Order(str(folder), "train.py", ("--steps", "3"), 3, 1, 1, 0, plan)


def test_an_order_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Whatever is drawn."""
    for seed in range(50):
        asked = order(tmp_path, draw(seed, Setting(3, 1, 1, 20)))
        assert Order.read(asked.write()) == asked


async def test_a_run_that_is_refused_says_why(tmp_path: Path) -> None:
    """Instead of ending without a word, which looks like one that hangs."""
    refused = replace(order(tmp_path, Plan(0)), script=__file__, state="checkpoint")
    result = await play(refused)
    assert result.code == 1
    assert "--state checkpoint needs --checkpoint-every" in result.failure


def heard(number: int) -> Envelope:
    """An event of a job."""
    return Envelope(id=f"e{number}", source="test", time=0.0, job="j", event=JobFailed(reason="test"))


async def test_a_trouble_begins_at_its_event(tmp_path: Path) -> None:
    """At the event that is meant, not at one before; a target that is not there is left alone."""
    ground = Ground(tmp_path / "clocks", None)
    troubles = (
        Trouble("clock", "m1", -30.0, "job.failed", nth=2),
        Trouble("cut", "m1", 1.0, "job.failed", nth=2),
    )
    hands = Hands(Plan(0, (), troubles), ground)
    hands.run = object()  # type: ignore[assignment]  # none of its parts is asked for
    hands.observe(heard(1))
    assert hands.done == []
    hands.observe(heard(2))
    assert hands.done == [str(troubles[0])]
    place = ground.machine("m1")
    assert clock.Clock(Path(place.environment[clock.VARIABLE])).now() == pytest.approx(
        time.time() - 30.0, abs=5.0
    )
    assert place.prefix == ()


async def test_a_trouble_begins_where_a_rank_pauses(tmp_path: Path) -> None:
    """It is seen in what the rank writes down, whole lines only."""
    pause = "pause:machine=m1,step=3,seconds=0.5,at=voting"
    hands = Hands(Plan(0, (), (Trouble("clock", "m2", 2.0, pause),)), Ground(tmp_path / "clocks", None))
    hands.run = object()  # type: ignore[assignment]
    watching = asyncio.ensure_future(hands.watch(tmp_path))
    facts: list[dict[str, Any]] = [{"kind": "step", "step": 2}, {"kind": "fault", "spec": pause, "step": 3}]
    text = "".join(json.dumps(fact) + "\n" for fact in facts)
    with (tmp_path / "m1-0-7.jsonl").open("w") as file:
        file.write(text[:-10])
        file.flush()
        await asyncio.sleep(0.1)
        assert hands.done == []
        file.write(text[-10:])
    await until(lambda: hands.done)
    watching.cancel()
    assert hands.done == [f"clock:m2 by +2 s 0 s after {pause}"]


async def test_a_trouble_whose_moment_does_not_come_begins_late(tmp_path: Path) -> None:
    """Once a rank has done its latest step, and only once."""
    hands = Hands(
        Plan(0, (), (Trouble("clock", "m2", 2.0, "plan.ready", nth=9, latest=5),)),
        Ground(tmp_path / "clocks", None),
    )
    hands.run = object()  # type: ignore[assignment]
    steps = tmp_path / "m1-0-7.jsonl"
    for step in range(5):
        with steps.open("a") as file:
            file.write(json.dumps({"kind": "step", "step": step}) + "\n")
        hands._look_into(tmp_path)
    assert hands.done == []
    with steps.open("a") as file:
        file.writelines(json.dumps({"kind": "step", "step": step}) + "\n" for step in (5, 6))
    hands._look_into(tmp_path)
    assert hands.done == ["clock:m2 by +2 s 0 s after plan.ready 9 or at step 5"]


def test_a_clock_can_be_set_while_it_is_read(tmp_path: Path) -> None:
    """A clock without a file is right; the offset counts from the moment at which it is there."""
    ground = Ground(tmp_path, None)
    read = clock.Clock(Path(ground.service("planner").environment[clock.VARIABLE]))
    right = clock.Clock(None)
    assert abs(read.now() - right.now()) < 5.0
    for seconds in (3600.0, -30.0):
        ground.set_clock("planner", seconds)
        assert abs(read.now() - right.now() - seconds) < 5.0


@pytest.mark.skipif(bool(why := disk.why_not()), reason=why or "possible")
def test_a_disk_is_full_until_it_is_emptied(tmp_path: Path) -> None:
    """No byte more gets onto it; afterwards there is room again, and nothing is left of it at the end."""
    folder = tmp_path / "run"
    disk.mount(folder)
    try:
        disk.fill(folder)
        with pytest.raises(OSError, match="No space left"):
            (folder / "more").write_bytes(bytes(5000))
        disk.empty(folder)
        (folder / "more").write_bytes(bytes(5000))
    finally:
        disk.unmount(folder)
    assert not os.path.ismount(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(bool(why := network.why_not()), reason=why or "possible")
def test_networks_leave_nothing() -> None:
    """A network of two machines is made, cut, parted and mended, and is gone at the end."""
    made = network.Network()
    try:
        (one, prefix), (other, _) = made.machine("m0"), made.machine("m1")
        assert one != other
        assert prefix[:3] == ("ip", "netns", "exec")
        assert made.machine("m0")[0] == one
        made.cut("m0")
        made.part("m0", "m1")
        made.join("m0", "m1")
        made.mend("m0")
    finally:
        made.close()
    assert str(os.getpid()) not in network._ip("netns", "list")


TAKES = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    connection.settimeout(30)
    while data := connection.recv(1 << 16):
        print(len(data), flush=True)
"""
SENDS = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), 5)
for line in sys.stdin:
    connection.sendall(bytes(int(line)))
"""


@pytest.mark.skipif(bool(why := network.why_not()), reason=why or "possible")
@pytest.mark.parametrize(("near", "far"), [("m0", "m1"), ("m1", "m0")])
def test_a_narrow_way_loses_large_packets_alone(near: str, far: str) -> None:
    """A connection is made and small messages pass; a large one arrives when the way is wide again."""
    made = network.Network()
    children: list[subprocess.Popen[str]] = []

    def start(machine: str, *code: str) -> subprocess.Popen[str]:
        prefix = made.machine(machine)[1]
        command = [*prefix, sys.executable, "-u", "-c", *code]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return children[-1]

    def send(size: int) -> None:
        assert sender.stdin is not None
        sender.stdin.write(f"{size}\n")
        sender.stdin.flush()

    try:
        made.machine(near)
        address, _ = made.machine(far)
        made.narrow("m0", "m1")
        taker = start(far, TAKES, address)
        assert taker.stdout is not None
        assert taker.stdout.readline() == "ready\n"
        sender = start(near, SENDS, address)
        send(100)
        assert taker.stdout.readline() == "100\n"
        send(20_000)
        assert select.select([taker.stdout], [], [], 1.0)[0] == []
        made.widen("m0", "m1")
        assert int(taker.stdout.readline()) > 100
    finally:
        for child in children:
            child.kill()
            child.communicate()
        made.close()
