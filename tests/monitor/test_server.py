"""The monitor as a program: its routes, its stream, its manners on the bus and on the network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from trainmover.errors import ConfigError
from trainmover.events import NatsBus, NatsServer
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import write_log
from trainmover.monitor import broadcast as broadcasting
from trainmover.monitor.broadcast import Broadcast
from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.program import Monitor, Place, Source


@asynccontextmanager
async def serving(source: Source, place: Place | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A monitor on a port of its own and a client for it; ended in order."""
    place = place or Place()
    monitor = Monitor(source)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(monitor.run(place, url.set_result))
    try:
        await asyncio.wait({running, url}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        async with httpx.AsyncClient(base_url=await url, timeout=10) as client:
            yield client
    finally:
        monitor.stop.set()
        await asyncio.wait_for(running, 20)


async def ready(client: httpx.AsyncClient, code: int = 200) -> str:
    """Ask until the answer has this code, at most 20 s."""
    for _ in range(400):
        answer = await client.get("/readyz")
        if answer.status_code == code:
            return answer.text
        await asyncio.sleep(0.05)
    raise TimeoutError(answer.text)


async def frames(response: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


@pytest.fixture
def run(tmp_path: Path, story) -> Source:
    """A finished run: a failure, and a machine whose words are hostile."""
    story.kill()
    story.tell(8.0, say.MachineLeft(machine="m0", incarnation="a", reason="<img src=x onerror=alert(1)>"))
    story.complete()
    log = tmp_path / "events.tmlog"
    write_log(log, story.envelopes)
    steps = tmp_path / "steps"
    steps.mkdir()
    rows = [
        {"kind": "step", "step": fact.step, "epoch": fact.epoch, "rank": fact.rank, "start": fact.start,
         "end": fact.end, "seconds": fact.seconds, "loss": fact.loss}
        for fact in story.facts.steps
    ]  # fmt: skip
    (steps / "m0-0-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(log=log, steps=steps)


async def test_a_finished_run_is_served(run: Source, story) -> None:
    """The picture, an earlier moment, older facts, the figures."""
    async with serving(run) as client:
        await ready(client)
        state = (await client.get("/api/state")).json()
        assert state["job"]["phase"] == "completed"
        assert state["layout"] == ["m0", "m2"]
        assert [point[1] for point in state["steps"]] == [0, 1, 2, 3, 4, 5]
        (incident,) = state["incidents"]
        assert [phase[0] for phase in incident["phases"]][-1] == "first step"
        then = (await client.get("/api/at", params={"time": story.ORIGIN + 4.85})).json()
        assert then["job"]["epoch"] == 1
        assert {row["name"]: row["state"] for row in then["machines"]}["m1"] == "failed"
        older = (await client.get("/api/facts", params={"before": 4, "limit": 2})).json()["facts"]
        assert [fact["number"] for fact in older] == [2, 3]
        assert 'trainmover_job_phase{state="completed"} 1.0' in (await client.get("/metrics")).text
        assert (await client.get("/healthz")).text == "ok\n"


@pytest.mark.parametrize("query", ["", "time=", "time=nan", "time=1e99", "time=x"])
async def test_a_moment_that_is_none_is_refused(run: Source, query: str) -> None:
    """Anything but a number is told so."""
    async with serving(run) as client:
        answer = await client.get(f"/api/at?{query}")
        assert answer.status_code == 400
        assert "UNIX_SECONDS" in answer.text


async def test_nothing_but_the_pages_own_files_can_run_or_be_had(run: Source) -> None:
    """The policy forbids foreign and inline scripts; only known files are served; words stay JSON."""
    async with serving(run) as client:
        await ready(client)
        for path in ("/", "/static/app.js", "/api/state", "/nowhere"):
            headers = (await client.get(path)).headers
            assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
        state = await client.get("/api/state")
        assert state.headers["content-type"] == "application/json"
        assert "<img src=x" in state.text
        for name in ("../server.py", "..%2fserver.py", "__init__.py", "vendor/../../server.py", ""):
            assert (await client.get(f"/static/{name}")).status_code == 404
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await client.request(method, "/api/state")).status_code == 405


async def test_it_answers_to_its_own_names_only(run: Source) -> None:
    """A web page elsewhere cannot reach it under a name of its own, unless the operator allows one."""
    async with serving(run, Place(allow_hosts=("monitor.lab",))) as client:
        codes = {
            name: (await client.get("/api/state", headers={"Host": name})).status_code
            for name in ("evil.example", "127.0.0.1.evil.example", "monitor.lab", "localhost:80", "127.0.0.1")
        }
        # An orchestrator asks by an address that nobody can foresee; the answer tells nothing.
        assert (await client.get("/healthz", headers={"Host": "10.1.2.3:8478"})).status_code == 200
    assert codes == {
        "evil.example": 400,
        "127.0.0.1.evil.example": 400,
        "monitor.lab": 200,
        "localhost:80": 200,
        "127.0.0.1": 200,
    }


async def test_a_port_that_is_taken_is_told_in_one_sentence(run: Source) -> None:
    """With what to do about it."""
    async with serving(run) as client:
        with pytest.raises(ConfigError, match="give another --host or --port"):
            await Monitor(run).run(Place(port=client.base_url.port))


async def test_a_damaged_log_is_told_in_one_sentence(tmp_path: Path) -> None:
    """What cannot be read ends the program."""
    log = tmp_path / "events.tmlog"
    log.write_bytes(b"no log")
    with pytest.raises(ConfigError, match="is not an event log"):
        await asyncio.wait_for(Monitor(Source(log=log)).run(Place()), 20)


@pytest.fixture
def server(tmp_path: Path):
    with NatsServer(tmp_path / "nats") as running:
        yield running


async def test_a_live_job_is_caught_up_with_and_followed(server, story) -> None:
    """What was said before the monitor came, then what changes: facts, samples, machines."""
    bus = await NatsBus.connect(server.url, "job", "driver")
    try:
        for envelope in story.envelopes:
            await bus.publish(envelope)
        await bus.flush(10)
        async with serving(Source(bus=server.url, job="job")) as client:
            await ready(client)
            async with client.stream("GET", "/api/stream") as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                stream = frames(response)
                name, hello = await anext(stream)
                assert (name, hello["live"], hello["job"]["phase"]) == ("hello", True, "training")
                assert hello["facts"][-1]["type"] == "switch.committed"
                sample = say.StepSample(
                    machine="m0",
                    rank=0,
                    epoch=1,
                    step=7,
                    seconds=0.5,
                    metrics={"loss": 2.5},
                    peak_rss_bytes=1,
                )
                gone = say.MachineFailed(machine="m1", incarnation="a", reason="gone")
                for number, event in enumerate((sample, gone)):
                    await bus.publish(
                        Envelope(id=f"x{number}", source="m0", time=story.ORIGIN + 9, job="job", event=event)
                    )
                steps, rows, told = [], [], []
                async with asyncio.timeout(20):
                    async for name, delta in stream:
                        assert name == "delta"
                        steps += delta.get("steps", [])
                        rows += delta.get("machines", [])
                        told += delta.get("facts", [])
                        if steps and told:
                            break
                assert [point[1] for point in steps] == [7]
                assert [fact["type"] for fact in told] == ["machine.failed"]
                assert ("m1", "failed") in {(row["name"], row["state"]) for row in rows}
                assert "m2" not in {row["name"] for row in rows}
    finally:
        await bus.close()


async def test_without_a_bus_it_lives_and_is_not_ready(server, story) -> None:
    """An outage is told by /readyz and by a figure, and does not end the monitor."""
    bus = await NatsBus.connect(server.url, "job", "driver")
    await bus.close()
    async with serving(Source(bus=server.url, job="job")) as client:
        await ready(client)
        server.stop()
        assert await ready(client, 503) == "the bus is away\n"
        assert (await client.get("/healthz")).status_code == 200
        assert "trainmover_bus_connected 0.0" in (await client.get("/metrics")).text
        server.start()
        await ready(client)


async def test_it_waits_for_a_job_that_is_not_there_yet(server, story) -> None:
    """A mere reader makes no stream: until there is one it says that it waits, and then it goes on."""
    async with serving(Source(bus=server.url, job="job")) as client:
        assert "the log of job job is not there yet" in await ready(client, 503)
        bus = await NatsBus.connect(server.url, "job", "driver")
        try:
            for envelope in story.envelopes:
                await bus.publish(envelope)
            await bus.flush(10)
        finally:
            await bus.close()
        await ready(client)
        assert (await client.get("/api/state")).json()["job"]["phase"] == "training"


def test_who_reads_too_slowly_is_let_go(story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames do not pile up for a page that does not take them; the others go on."""
    monkeypatch.setattr(broadcasting, "FRAMES_WAITING", 4)
    chronicle = Chronicle()
    broadcast = Broadcast(chronicle, live=True)
    slow = broadcast.subscribe()
    assert slow is not None
    for envelope in story.envelopes:
        chronicle.apply(envelope)
        broadcast.tick()
    assert broadcast.watchers == 0
    left = [slow.frames.get_nowait() for _ in range(slow.frames.qsize())]
    assert left[-1] is None
    assert len(left) <= 6


def test_who_asks_for_the_whole_picture_takes_nothing_from_the_others(story) -> None:
    """A change that somebody sees in /api/state still goes to every page."""
    chronicle = Chronicle()
    broadcast = Broadcast(chronicle, live=True)
    page = broadcast.subscribe()
    assert page is not None
    page.frames.get_nowait()
    for envelope in story.envelopes:
        chronicle.apply(envelope)
    assert broadcast.hello()["job"]["phase"] == "training"
    delta = page.frames.get_nowait()
    assert delta is not None
    assert delta.startswith(b"event: delta")
    assert b'"phase": "training"' in delta
    broadcast.hello()
    broadcast.tick()
    assert page.frames.empty()


def test_there_is_a_limit_to_those_who_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than allowed gets nothing until somebody leaves."""
    monkeypatch.setattr(broadcasting, "SUBSCRIBERS", 1)
    broadcast = Broadcast(Chronicle(), live=True)
    first = broadcast.subscribe()
    assert first is not None
    assert broadcast.subscribe() is None
    broadcast.leave(first)
    assert broadcast.subscribe() is not None
