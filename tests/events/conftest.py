"""A real nats-server for the tests of the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.events.examples import JOB
from trainmover.events import NatsBus, NatsServer

Connect = Callable[..., Awaitable[NatsBus]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A running server with its own store."""
    with NatsServer(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Connect]:
    """Makes connections to the server that end with the test."""
    async with AsyncExitStack() as stack:

        async def make(name: str, **options: object) -> NatsBus:
            bus = await NatsBus.connect(server.url, JOB, name, **options)
            stack.push_async_callback(bus.close)
            return bus

        yield make
