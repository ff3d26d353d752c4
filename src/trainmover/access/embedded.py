"""Access to the embedded bus of a local run: one token, or with TLS an account for each program.

What lives here: what the server is told, and the address that each program gets.  What never lives
here: processes (``machine.supervisor``).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainmover.access.certificates import make_certificates
from trainmover.access.credentials import write_file
from trainmover.access.permissions import accounts
from trainmover.access.roles import ROLES
from trainmover.events.server import Accounts, NatsServer

DRIVER: Final = "operator"
"""Role of the program that submits the job and ends it."""


@dataclass(frozen=True, slots=True)
class EmbeddedAccess:
    """Who may use the server of one local run.

    Attributes:
        token: what all programs show; empty with accounts.
        passwords: by role; empty with a token.
        tls: folder of the certificates for bus and links; None: plain text.
    """

    token: str = ""
    passwords: tuple[tuple[str, str], ...] = ()
    tls: Path | None = None

    @classmethod
    def plain(cls, secret: str) -> EmbeddedAccess:
        """A token that follows from the job's secret, on loopback: other users of this computer stay out."""
        return cls(hashlib.sha256(f"bus {secret}".encode()).hexdigest()[:32])

    @classmethod
    def encrypted(cls, folder: Path, host: str) -> EmbeddedAccess:
        """An account for each role, certificates for bus and links in this folder.

        Raises:
            ConfigError: the package ``cryptography`` is missing, or the folder cannot be written.
        """
        made = make_certificates([host])
        for name, content in (
            ("ca.pem", made.authority),
            ("cert.pem", made.bus.certificate),
            ("key.pem", made.bus.key),
            ("link.pem", made.link.certificate),
            ("link.key", made.link.key),
        ):
            write_file(folder / name, content)
        return cls(passwords=tuple((role, secrets.token_urlsafe(24)) for role in ROLES), tls=folder)

    def server(self, folder: Path, job: str, host: str) -> NatsServer:
        """The server, not started, that will listen on this address."""
        if self.tls is None:
            return NatsServer(folder, token=self.token, host=host)
        passwords = dict(self.passwords)
        configured = Accounts(accounts(passwords, job), DRIVER, passwords[DRIVER], self.tls)
        return NatsServer(folder, accounts=configured, host=host)

    def address(self, url: str, role: str = DRIVER) -> str:
        """The server's URL with what a program of this role needs to get in."""
        if self.tls is None:
            return url.replace("://", f"://{self.token}@")
        return url.replace("://", f"://{role}:{dict(self.passwords)[role]}@") + f"?ca={self.tls / 'ca.pem'}"
