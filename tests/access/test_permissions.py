"""Who may say what: the table against the catalogue, and a real server that holds everybody to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

import nats
import pytest

from tests.events.examples import JOB, envelope, example
from tests.waiting import until
from trainmover.access.permissions import accounts, permissions, subject_of
from trainmover.access.roles import ROLES
from trainmover.errors import BusError
from trainmover.events import NatsBus, NatsServer
from trainmover.events.catalogue import EVENTS, Event, JobSubmitted, MachineJoined, SandboxPeers
from trainmover.events.server import Accounts
from trainmover.services import SERVICES

PASSWORDS = {name: f"{name}-password" for name in ROLES}
INNER = {SandboxPeers}
"""Events that travel on a machine's own socket only."""

Connect = Callable[..., Awaitable[NatsBus]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A real server with the accounts of one job."""
    folder = tmp_path_factory.mktemp("nats")
    configured = Accounts(accounts(PASSWORDS, JOB), "reader", PASSWORDS["reader"])
    with NatsServer(folder, accounts=configured) as running:
        yield running


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Connect]:
    """Makes connections of a role that end with the test."""
    async with AsyncExitStack() as stack:

        async def make(role: str, name: str | None = None, **options: object) -> NatsBus:
            bus = await NatsBus.connect(address(server, role), JOB, name or role, **options)
            stack.push_async_callback(bus.close)
            return bus

        yield make


def address(server: NatsServer, role: str) -> str:
    return server.url.replace("://", f"://{role}:{PASSWORDS[role]}@")


def said_by(model: type[Event]) -> set[str]:
    return {role.name for role in ROLES.values() if model in role.says}


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_event_has_a_role_that_may_say_it(name: str) -> None:
    """A new event is added to a core's SAYS, or to the machine's table; else nobody could publish it."""
    assert said_by(EVENTS[name]) or EVENTS[name] in INNER


def test_verdicts_have_one_author() -> None:
    """What decides about others is said by one service, and by no machine."""
    for name in ("machine.failed", "standby.assigned", "plan.ready", "switch.prepare", "switch.committed"):
        authors = said_by(EVENTS[name])
        assert len(authors) == 1, (name, authors)
        assert authors <= set(SERVICES)


def test_a_reader_may_publish_only_requests_to_read() -> None:
    """The reader's subjects are its own inbox, the log's state and direct reads of it."""
    assert permissions(ROLES["reader"], "gpt").publish == (
        "$JS.API.DIRECT.GET.TRAINMOVER_gpt",
        "$JS.API.STREAM.INFO.TRAINMOVER_gpt",
        "_INBOX.reader.>",
    )


def test_nobody_may_empty_or_delete_the_log() -> None:
    """No role has a subject that covers purge, delete or a snapshot."""
    for role in ROLES.values():
        for subject in permissions(role, "gpt").publish:
            assert not subject.startswith(("$JS.API.>", "$JS.>", ">", "*")), role.name
            assert "PURGE" not in subject
            assert "DELETE" not in subject


async def test_the_server_lets_each_role_say_what_is_its_to_say(server: NatsServer, connect: Connect) -> None:
    """Of all events, a role's connection gets through exactly those in its table."""
    await connect("operator")
    subjects = {model: subject_of(model, JOB).replace("*", "m0") for model in EVENTS.values()}
    watcher = await nats.connect(address(server, "reader"), inbox_prefix="_INBOX.reader")
    heard: list[tuple[str, bytes]] = []

    async def receive(message) -> None:
        heard.append((message.subject, message.data))

    await watcher.subscribe(f"trainmover.{JOB}.>", cb=receive)
    await watcher.flush()
    for role in ROLES.values():
        denied: list[str] = []

        async def complain(error: Exception, denied: list[str] = denied) -> None:
            denied.append(str(error))

        client = await nats.connect(
            address(server, role.name), inbox_prefix=f"_INBOX.{role.name}", error_cb=complain
        )
        for subject in subjects.values():
            await client.publish(subject, role.name.encode())
        await client.flush()
        refused = sum(model not in role.says for model in subjects)
        with contextlib.suppress(AssertionError):
            await until(lambda refused=refused, denied=denied: len(denied) >= refused)
        await client.close()
        assert len(denied) == refused, role.name
    await watcher.flush()
    await until(lambda: len(heard) >= sum(len(role.says) for role in ROLES.values()))
    await watcher.close()
    expected = {(subjects[model], role.name.encode()) for role in ROLES.values() for model in role.says}
    assert set(heard) == expected


async def test_a_service_cannot_say_what_another_decides(connect: Connect) -> None:
    """The health service that says switch.committed is told that it may not, by name."""
    await connect("operator")
    health = await connect("health")
    message = envelope(example(EVENTS["switch.committed"], Random(1)), Random(1))
    await health.publish(message)
    with pytest.raises(BusError, match=r"may not publish on trainmover\..*switch\.committed"):
        await health.flush(1.0)


@pytest.mark.parametrize("role", ["reader", "monitor"])
async def test_who_only_reads_hears_everything_and_says_nothing(connect: Connect, role: str) -> None:
    """Past and present arrive at the reader; what it publishes does not arrive anywhere."""
    operator = await connect("operator")
    reader = await connect(role, create=False)
    feed = await operator.feed(history=False)
    submitted = envelope(example(JobSubmitted, Random(3)), Random(len(role)))
    await operator.publish(submitted)
    await operator.flush(5)
    assert submitted.id in [e.id for e in await (await reader.feed(history=True)).past(5)]
    await reader.publish(envelope(example(JobSubmitted, Random(4)), Random(99)))
    with pytest.raises(BusError, match="may not publish"):
        await reader.flush(0.7)
    assert (await asyncio.wait_for(anext(feed), 5)).id == submitted.id
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(feed), 0.3)


async def test_nobody_listens_to_another_roles_inbox(connect: Connect, server: NatsServer) -> None:
    """A machine that subscribes to the answers of others is refused."""
    denied: list[str] = []

    async def complain(error: Exception) -> None:
        denied.append(str(error))

    client = await nats.connect(address(server, "machine"), inbox_prefix="_INBOX.machine", error_cb=complain)
    for subject in ("_INBOX.>", "_INBOX.health.>", ">", "$JS.>", "$SYS.>"):
        await client.subscribe(subject)
    await client.flush()
    await until(lambda: len(denied) == 5)
    await client.close()


async def test_machines_wait_for_a_log_that_they_may_not_make(server: NatsServer) -> None:
    """A machine that comes before the job is submitted gets in once the operator has made the log."""
    job = "later"
    configured = Accounts(accounts(PASSWORDS, job), "reader", PASSWORDS["reader"])
    with NatsServer(server.folder / "later", accounts=configured) as running:
        with pytest.raises(BusError, match="submit the job"):
            await NatsBus.connect(address(running, "machine"), job, "machine/m0", limit=6.0)
        waiting = asyncio.create_task(
            NatsBus.connect(address(running, "machine"), job, "machine/m0", limit=30.0)
        )
        operator = await NatsBus.connect(address(running, "operator"), job, "operator")
        machine = await waiting
        joined = example(MachineJoined, Random(2))
        await machine.publish(replace(envelope(joined, Random(2)), job=job))
        await machine.flush(5)
        await machine.close()
        await operator.close()


async def test_health_finds_out_that_a_machine_is_there_or_not(connect: Connect) -> None:
    """Probes work under the accounts, also while a reader listens to everything that is said."""
    await connect("operator")
    health, machine, reader = (
        await connect("health"),
        await connect("machine"),
        await connect("reader", create=False),
    )
    await machine.answer_probes("m0")
    everything = await nats.connect(reader._connection._address.servers[0])
    await everything.subscribe("trainmover.>")
    await everything.flush()
    assert await health.probe("m0", 3.0) == "alive"
    await until(lambda: health.connected_for > 2.0)
    assert await health.probe("m1", 3.0) == "absent"
    await everything.close()
