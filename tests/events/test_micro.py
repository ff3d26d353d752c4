"""NATS micro: what tools that know the protocol get as answers."""

from __future__ import annotations

import asyncio
import json

import nats
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from trainmover.events.micro import Endpoint, MicroService, Tally

ENDPOINT = Endpoint("events", "trainmover.job.>", Tally(heard=4, failed=1, spent_ns=400, last_error="oops"))


async def ask(server, subject: str, count: int) -> list[dict]:
    """Everything that answers within a second, at most ``count``."""
    client = await nats.connect(server.url)
    try:
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await client.publish(subject, b"", reply=inbox)
        found = [json.loads((await subscription.next_msg(timeout=2.0)).data) for _ in range(count)]
    finally:
        await client.close()
    return found


def test_answers_are_what_nats_own_models_read() -> None:
    """PING, INFO and STATS are read by nats-py's models of the protocol."""
    service = MicroService("health", "job", "The health service", ENDPOINT)
    ping = ServicePing.from_dict(service.answer("PING"))
    assert (ping.name, ping.id, ping.metadata) == ("trainmover-health", service.id, {"job": "job"})
    info = ServiceInfo.from_dict(service.answer("INFO"))
    assert [endpoint.subject for endpoint in info.endpoints] == ["trainmover.job.>"]
    (stats,) = ServiceStats.from_dict(service.answer("STATS")).endpoints
    assert (stats.num_requests, stats.num_errors, stats.last_error) == (4, 1, "oops")
    assert stats.average_processing_time == 100


async def test_services_are_found_by_all_three_addresses(server, connect) -> None:
    """Everybody, everybody of a name, and one of them: each subject reaches those that it means."""
    for name in ("health", "planner"):
        bus = await connect(name)
        assert await bus.serve_micro(name, "A service", ENDPOINT)
    names = {answer["name"] for answer in await ask(server, "$SRV.PING", 2)}
    assert names == {"trainmover-health", "trainmover-planner"}
    (info,) = await ask(server, "$SRV.INFO.trainmover-planner", 1)
    assert info["description"] == "A service"
    (stats,) = await ask(server, f"$SRV.STATS.trainmover-planner.{info['id']}", 1)
    assert stats["endpoints"][0]["num_requests"] == 4


async def test_it_answers_again_after_the_bus_was_lost(server, connect) -> None:
    """A restarted server finds the service as before, under the same id."""
    bus = await connect("health")
    await bus.serve_micro("health", "A service", ENDPOINT)
    (before,) = await ask(server, "$SRV.PING", 1)
    up = asyncio.Event()
    bus._connection.on_up.append(up.set)
    server.stop()
    server.start()
    async with asyncio.timeout(20):
        await up.wait()
    (after,) = await ask(server, "$SRV.PING", 1)
    assert after["id"] == before["id"]
