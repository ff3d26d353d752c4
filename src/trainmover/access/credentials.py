"""The credentials of a deployment: one folder per role, each with what that role needs and no more.

What lives here: writing such folders (``trainmover credentials``) and reading one again.  What never
lives here: what a role may do (``roles``), how certificates are made (``certificates``).

DIR/
  bus/       nats.conf, and with TLS cert.pem, key.pem, ca.pem: for the NATS server
  <role>/    bus (the address, with user and password), job; with TLS ca.pem
  machine/   also secret (of the job, for links), and with TLS link.pem, link.key

A program is told its folder instead of an address: ``--bus DIR/health``.  Everything is readable by
its owner only.  There is no list of all secrets: each is written where it is used and nowhere else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmover.access.certificates import Certificates, make_certificates
from trainmover.access.permissions import ANY_JOB, accounts
from trainmover.access.roles import ROLES
from trainmover.errors import ConfigError
from trainmover.events.envelope import check_job
from trainmover.events.server import MAX_PAYLOAD, tls_block

PORT: Final = 4222
HTTP_PORT: Final = 8222

_SERVER = """\
# Made by `trainmover credentials`: it holds passwords, keep it to the server.
# Nothing but this file and the folder of the store is needed: nats-server --config {file}
listen: "0.0.0.0:{port}"
# For health checks from inside the server's own container or host only.
http: "127.0.0.1:{http_port}"
server_name: trainmover
max_payload: {max_payload}
write_deadline: "5s"
{tls}jetstream {{
  store_dir: "{store}"
  # With the default a power loss takes back acknowledged events.
  sync_interval: always
}}
{accounts}"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one role's folder says.

    Attributes:
        bus: address of the bus, with user, password and the file of certificates to trust.
        job: name of the job; empty when the folder is good for any.
        secret: the job's secret, hex; empty for all but machines.
        link_tls: folder with the certificate for links; empty: links are plain.
    """

    bus: str
    job: str = ""
    secret: str = ""
    link_tls: str = ""


def write_credentials(
    folder: Path,
    *,
    hosts: Sequence[str],
    job: str = ANY_JOB,
    port: int = PORT,
    store: str = "/data",
    tls: bool = True,
    mounted: str = "",
    certificates: Certificates | None = None,
) -> list[Path]:
    """Make the credentials of a deployment.

    Args:
        folder: where; its sub-folders may exist (mounted volumes), but must be empty.
        hosts: names under which programs reach the bus; the first is in their addresses.
        job: the job that all of this is for; :data:`ANY_JOB`: for all jobs of the server.
        store: where the server keeps its log.
        tls: whether bus and links are encrypted.
        mounted: where the server finds its own folder, when not where it is written.
        certificates: those made before; None: new ones.

    Returns:
        The files, in the order in which they were written.

    Raises:
        ConfigError: there are credentials already, or a name is none.
    """
    try:
        name = "" if job == ANY_JOB else check_job(job)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if is_there(folder):
        raise ConfigError(f"{folder} has credentials already: use them, or remove it to make all anew")
    if not hosts:
        raise ConfigError("credentials need the name of the bus's host: give --host at least once")
    if tls and certificates is None:
        certificates = make_certificates(hosts)
    passwords = {role: secrets.token_urlsafe(24) for role in ROLES}
    written: list[Path] = []

    def write(role: str, file: str, content: bytes | str) -> None:
        written.append(write_file(folder / role / file, content))

    for role, password in passwords.items():
        scheme, query = ("tls", "?ca=ca.pem") if certificates is not None else ("nats", "")
        write(role, "bus", f"{scheme}://{role}:{password}@{hosts[0]}:{port}{query}\n")
        write(role, "job", name + "\n")
        if certificates is not None:
            write(role, "ca.pem", certificates.authority)
    write("machine", "secret", secrets.token_hex(32) + "\n")
    if certificates is not None:
        write("machine", "link.pem", certificates.link.certificate)
        write("machine", "link.key", certificates.link.key)
        write("bus", "cert.pem", certificates.bus.certificate)
        write("bus", "key.pem", certificates.bus.key)
        write("bus", "ca.pem", certificates.authority)
    home = Path(mounted) if mounted else (folder / "bus").absolute()
    # Last: who waits for the server's configuration finds all the rest.
    write(
        "bus",
        "nats.conf",
        _SERVER.format(
            file=home / "nats.conf",
            port=port,
            http_port=HTTP_PORT,
            max_payload=MAX_PAYLOAD,
            store=store,
            tls="" if certificates is None else tls_block(home),
            accounts=accounts(passwords, job),
        ),
    )
    return written


def is_there(folder: Path) -> bool:
    """Whether a folder has whole credentials."""
    return (folder / "bus" / "nats.conf").is_file()


def read_credentials(folder: Path) -> Credentials:
    """What a role's folder says.

    Raises:
        ConfigError: it is not such a folder, or cannot be read.
    """
    try:
        address = (folder / "bus").read_text("utf-8").strip()
        job = _optional(folder / "job")
        secret = _optional(folder / "secret")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} is not the folder of a role, as `trainmover credentials` makes them: {error}"
        ) from None
    # Where the folder is mounted is known here, not where it was made.
    address = address.replace("?ca=ca.pem", f"?ca={folder.absolute() / 'ca.pem'}")
    link_tls = str(folder.absolute()) if (folder / "link.pem").is_file() else ""
    return Credentials(address, job, secret, link_tls)


def _optional(path: Path) -> str:
    return path.read_text("utf-8").strip() if path.is_file() else ""


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a file that only its owner can read, in a folder that only its owner can enter.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
    return path
