"""The bus of a local run: a token, or with TLS an account for each program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.events.examples import left
from trainmover.access.embedded import EmbeddedAccess
from trainmover.ccl.secure import LinkTls
from trainmover.errors import BusError
from trainmover.events import NatsBus

JOB = "job"
HOST = "127.0.0.1"


async def test_with_tls_each_program_has_its_account(tmp_path: Path) -> None:
    """The driver makes the log, a machine says that it leaves, a service may not say that for it."""
    access = EmbeddedAccess.encrypted(tmp_path / "tls", HOST)
    with access.server(tmp_path / "bus", JOB, HOST) as server:
        assert server.url.startswith("tls://")
        driver = await NatsBus.connect(access.address(server.url), JOB, "driver")
        machine = await NatsBus.connect(access.address(server.url, "machine"), JOB, "machine/m0")
        await machine.publish(left(1))
        await machine.flush(5)
        planner = await NatsBus.connect(access.address(server.url, "planner"), JOB, "planner")
        await planner.publish(left(2))
        with pytest.raises(BusError, match="may not publish"):
            await planner.flush(0.5)
        feed = await driver.feed(history=True)
        assert [envelope.id for envelope in await feed.past(5)] == [left(1).id]
        for bus in (driver, machine, planner):
            await bus.close()
    LinkTls.read(tmp_path / "tls")


async def test_without_tls_a_token_follows_from_the_secret(tmp_path: Path) -> None:
    """Who has it gets in; who has not stays out."""
    access = EmbeddedAccess.plain("5ec7e7")
    with access.server(tmp_path, JOB, HOST) as server:
        bus = await NatsBus.connect(access.address(server.url), JOB, "driver")
        await bus.close()
        with pytest.raises(BusError, match="let"):
            await NatsBus.connect(server.url, JOB, "stranger", limit=2.0)
