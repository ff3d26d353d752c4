"""The address of a bus: servers, and what is needed to be let in.

What lives here: reading addresses, pure but for loading certificates.  What never lives here: the
connection.  An address is one or more URLs separated by commas::

    nats://127.0.0.1:4222                              anybody may connect
    nats://TOKEN@host:4222                             one token for all
    nats://USER:PASSWORD@host:4222                     an account with permissions
    tls://USER:PASSWORD@host:4222?ca=/path/ca.pem      and the server must prove who it is

``ca`` names the certificates to trust instead of the system's, as ``sslrootcert`` does in
PostgreSQL's addresses.  With ``tls://`` there is no way back to plain text.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit, urlunsplit

from trainmover.errors import BusError

_USER = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the bus is.

    Attributes:
        servers: URLs as the client library takes them, credentials included.
        user: name of the account's user; empty with a token or without credentials.
        tls: how to check the server; None: plain text.
    """

    servers: tuple[str, ...]
    user: str = ""
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        """Without what is secret."""
        return ", ".join(without_secrets(server) for server in self.servers)

    @property
    def inbox(self) -> str:
        """Prefix of this user's inboxes; users may listen to their own only."""
        return f"_INBOX.{self.user}" if self.user else "_INBOX"


def read_address(text: str) -> Address:
    """An address as people and files write it.

    Raises:
        BusError: it is empty, mixes plain text and TLS, or its certificates cannot be read.
    """
    urls = [urlsplit(part if "//" in part else f"nats://{part}") for part in _parts(text)]
    if not urls:
        raise BusError("the address of the bus is empty: give one like nats://127.0.0.1:4222")
    schemes = {url.scheme for url in urls}
    authorities = {name for url in urls for name in parse_qs(url.query).get("ca", ())}
    if len(schemes) > 1 or len(authorities) > 1:
        raise BusError("the servers of one bus must all be tls:// with the same ca, or none of them")
    user = urls[0].username or ""
    if urls[0].password is None or _USER.fullmatch(user) is None:
        user = ""
    tls = _context(authorities) if schemes == {"tls"} else None
    return Address(tuple(urlunsplit((*url[:3], "", "")) for url in urls), user, tls)


def without_secrets(url: str) -> str:
    """A URL without user, password and token."""
    parts = urlsplit(url if "//" in url else f"nats://{url}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _context(authorities: set[str]) -> ssl.SSLContext:
    ca = next(iter(authorities), None)
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise BusError(f"the certificates in {ca} cannot be read: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
