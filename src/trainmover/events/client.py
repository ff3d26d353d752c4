"""One client of the NATS library: how it is made, and how it is thrown away.

What lives here: what we ask of nats-py and where its habits show.  What never lives here: what becomes of a
connection when a client is lost (``connection``).

A client here has one try and no second life: nats-py's own reconnecting is never used.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from trainmover.events.address import Address

PING_SECONDS: Final = 1
PENDING_MESSAGES: Final = 65536
PENDING_BYTES: Final = 64 << 20
"""What may wait in one subscription for its reader."""
OUTBOUND_BYTES: Final = 8 << 20
CONNECT_SECONDS: Final = 2.0
CLOSE_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)

_arrivals = itertools.count()


@dataclass
class Arrived(Msg):
    """A message and its place in the order of arrival over all subscriptions of this process."""

    arrival: int = field(default_factory=lambda: next(_arrivals))


class OneClient(Client):
    """nats-py's client, whose messages know their order of arrival."""

    msg_class = Arrived


async def connect(
    client: OneClient,
    address: Address,
    name: str,
    token: str | None,
    *,
    on_error: Callable[[Exception], Awaitable[None]],
    on_end: Callable[[], Awaitable[None]],
) -> None:
    """Connect a fresh client, once.

    Args:
        client: it.
        address: where the servers are, and what is needed to be let in.
        name: shown by the server.
        token: a secret beside the address, if there is one.
        on_error: called with what the server or the library complains about; must not raise, or the
            client says that it is connected and hears nothing.
        on_end: called when the connection has ended.

    Raises:
        Exception: whatever nats-py raises when it cannot connect; the client is to be discarded.
    """
    options: dict[str, Any] = {} if token is None else {"token": token}
    if address.tls is not None:
        logging.getLogger("asyncio").addFilter(_is_no_advice)
        # Before anything else is said: a server that offers plain text is not talked to.
        options |= {"tls": address.tls, "tls_handshake_first": True}
    await client.connect(
        servers=list(address.servers),
        name=name,
        inbox_prefix=address.inbox,
        # One try, no reconnecting: recovery is ours.
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        connect_timeout=int(CONNECT_SECONDS),
        ping_interval=PING_SECONDS,
        max_outstanding_pings=2,
        pending_size=OUTBOUND_BYTES,
        error_cb=on_error,
        disconnected_cb=on_end,
        closed_cb=on_end,
        **options,
    )


async def discard(client: Client) -> None:
    """Close a client whatever its state; a server that reads nothing cannot hold us up."""
    try:
        await asyncio.wait_for(client.close(), CLOSE_SECONDS)
    except Exception as error:  # noqa: BLE001  (a client that fails to close is thrown away anyway)
        logger.debug("a client did not close: %s", text_of(error))
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


def text_of(error: BaseException) -> str:
    """What an error says, with its type, in one line that is not too long."""
    return f"{type(error).__name__}: {error}"[:300] if str(error) else type(error).__name__


def _is_no_advice(record: logging.LogRecord) -> bool:
    """False for what asyncio says at the end of every TLS connection of the client library."""
    return not str(record.msg).startswith("returning true from eof_received()")
