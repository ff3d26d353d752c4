"""What ``trainmover credentials`` writes: enough for every role, no more for any, and a bus that needs it."""

from __future__ import annotations

import asyncio
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.events.examples import envelope, example
from trainmover.access.certificates import make_certificates
from trainmover.access.credentials import is_there, read_credentials, write_credentials
from trainmover.access.permissions import accounts
from trainmover.access.roles import ROLES
from trainmover.cli.access import find
from trainmover.errors import BusError, ConfigError
from trainmover.events import NatsBus, NatsServer
from trainmover.events.address import read_address
from trainmover.events.catalogue import JobSubmitted
from trainmover.events.server import Accounts, find_server

JOB = "job"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Credentials with TLS for a bus on this computer, with a port that is free now."""
    made = tmp_path_factory.mktemp("credentials")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    write_credentials(made, hosts=["127.0.0.1"], job=JOB, port=port, store=str(made / "store"))
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with accounts and TLS."""
    home = tmp_path_factory.mktemp("bus")
    made = make_certificates(["127.0.0.1"], days=1)
    for name, content in (
        ("ca.pem", made.authority),
        ("cert.pem", made.bus.certificate),
        ("key.pem", made.bus.key),
    ):
        (home / name).write_bytes(content)
    block = accounts({"operator": "pw", "reader": "pw"}, JOB)
    with NatsServer(home / "nats", accounts=Accounts(block, "reader", "pw", tls=home)) as running:
        yield running


def test_each_role_has_its_own_and_nothing_else(folder: Path) -> None:
    """A password stands in its role's folder and the server's; the secret and link keys in the machine's."""
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    for role in ROLES:
        password = re.search(r":([^:@]+)@", (folder / role / "bus").read_text())[1]
        assert len(password) >= 32
        assert {path.parent.name for path, text in texts.items() if password in text} == {role, "bus"}
    secret = (folder / "machine" / "secret").read_text().strip()
    assert len(bytes.fromhex(secret)) == 32
    assert [path.parent.name for path, text in texts.items() if secret in text] == ["machine"]
    keys = {path.relative_to(folder).as_posix() for path, text in texts.items() if "PRIVATE KEY" in text}
    assert keys == {"bus/key.pem", "machine/link.key"}


def test_only_the_owner_can_read_them(folder: Path) -> None:
    """Folders 0700, files 0600."""
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_servers_configuration_is_one(folder: Path) -> None:
    """The real server takes it: ``nats-server -t`` checks and ends."""
    command = [find_server(), "-t", "--config", str(folder / "bus" / "nats.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_is_told_its_folder_instead_of_an_address(folder: Path, monkeypatch) -> None:
    """--bus DIR gives address, job, secret and certificates; a service gets no secret."""
    for name in ("TRAINMOVER_SECRET", "TRAINMOVER_LINK_TLS"):
        monkeypatch.delenv(name, raising=False)
    machine = find(str(folder / "machine"), None, secret=True)
    assert machine.job == JOB
    assert machine.bus.startswith("tls://machine:")
    assert machine.bus.endswith(f"?ca={folder / 'machine' / 'ca.pem'}")
    assert (len(machine.secret), machine.link_tls) == (64, str(folder / "machine"))
    health = find(str(folder / "health"), None)
    assert (health.job, health.secret, health.link_tls) == (JOB, "", "")


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    """The message names the folder and the command."""
    with pytest.raises(ConfigError, match="trainmover credentials"):
        read_credentials(tmp_path)


def test_nothing_is_overwritten(folder: Path) -> None:
    """Running programs would lose their bus."""
    assert is_there(folder)
    with pytest.raises(ConfigError, match="already"):
        write_credentials(folder, hosts=["127.0.0.1"])


def test_without_tls_nothing_is_encrypted_and_nothing_is_made(tmp_path: Path) -> None:
    """--no-tls leaves accounts and the secret."""
    write_credentials(tmp_path, hosts=["bus"], tls=False)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"bus", "job", "secret", "nats.conf"}
    assert read_credentials(tmp_path / "health").bus.startswith("nats://health:")
    assert "tls {" not in (tmp_path / "bus" / "nats.conf").read_text()


async def test_events_travel_encrypted(server: NatsServer) -> None:
    """With the right authority a program gets in, says something, and another reads it."""
    ca = f"?ca={server.accounts.tls / 'ca.pem'}"
    url = server.url.replace("://", "://operator:pw@") + ca
    bus = await NatsBus.connect(url, JOB, "operator")
    said = envelope(example(JobSubmitted, Random(5)), Random(5))
    await bus.publish(said)
    await bus.flush(5)
    await bus.close()
    reader = await NatsBus.connect(server.url.replace("://", "://reader:pw@") + ca, JOB, "r", create=False)
    assert [e.id for e in await (await reader.feed(history=True)).past(5)] == [said.id]
    await reader.close()


async def test_another_authoritys_server_hears_no_password(server: NatsServer, tmp_path: Path) -> None:
    """Whoever has no certificate of this deployment hears nothing from us."""
    (tmp_path / "ca.pem").write_bytes(make_certificates(["127.0.0.1"], days=1).authority)
    url = server.url.replace("://", "://operator:pw@") + f"?ca={tmp_path / 'ca.pem'}"
    with pytest.raises(BusError, match=r"(?i)certificate"):
        await NatsBus.connect(url, JOB, "operator", limit=3.0)


async def test_there_is_no_way_back_to_plain_text(tmp_path: Path) -> None:
    """A server that offers plain text to a tls:// client hears no password (it could be anybody)."""
    heard = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1048576,"auth_required":true}\r\n')
        while data := await reader.read(4096):
            heard.extend(data)
        writer.close()

    serving = await asyncio.start_server(impostor, "127.0.0.1", 0)
    (tmp_path / "ca.pem").write_bytes(make_certificates(["127.0.0.1"], days=1).authority)
    port = serving.sockets[0].getsockname()[1]
    async with serving:
        with pytest.raises(BusError):
            await NatsBus.connect(
                f"tls://operator:hidden@127.0.0.1:{port}?ca={tmp_path / 'ca.pem'}", JOB, "x", limit=2.0
            )
    assert heard, "nobody tried"
    assert b"hidden" not in heard


@pytest.mark.parametrize("url", ["tls://a:1,nats://b:1", "", "tls://a:1?ca=/nowhere/ca.pem"])
def test_an_address_that_cannot_work_is_refused(url: str) -> None:
    """Mixed schemes, nothing at all, certificates that are not there."""
    with pytest.raises(BusError):
        read_address(url)


@pytest.mark.parametrize(
    ("url", "inbox"),
    [
        ("nats://health:pw@h:1", "_INBOX.health"),
        ("nats://token@h:1", "_INBOX"),
        ("nats://h:1", "_INBOX"),
        ("h:1", "_INBOX"),
    ],
)
def test_a_user_has_inboxes_of_its_own(url: str, inbox: str) -> None:
    """A token is no user name and must not travel in subjects."""
    assert read_address(url).inbox == inbox
    assert "pw" not in str(read_address(url))
    assert "token" not in str(read_address(url))
