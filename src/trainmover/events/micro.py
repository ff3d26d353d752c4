"""How a program answers ``nats micro``: PING, INFO and STATS of NATS's service protocol.

What lives here: the answers and the subscriptions they are given on.  What never lives here: what
the figures mean; whoever serves keeps a :class:`Tally`.

Tools that know the protocol (``nats micro ls``, ``nats micro stats trainmover-health``) find every
service of every job without knowing TrainMover.  It is spoken over our own :class:`Connection`
rather than with nats-py's ``nats.micro``, whose services end with their client: our clients are
replaced after each loss (see ``connection``).  A server whose permissions do not allow it costs the
answers and nothing else.

Source: NATS ADR-32 (service API).
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainmover.errors import BusError
from trainmover.events.envelope import format_time
from trainmover.version import __version__

if TYPE_CHECKING:
    from trainmover.events.client import Arrived
    from trainmover.events.connection import Connection

PREFIX: Final = "$SRV"
NAME_PREFIX: Final = "trainmover-"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What a program has taken in since it was started.

    Attributes:
        heard: events.
        failed: events that it could not deal with.
        spent_ns: time that all of them took, in nanoseconds.
        last_error: the last failure, empty without one.
    """

    heard: int = 0
    failed: int = 0
    spent_ns: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the program listens to."""

    name: str
    subject: str
    tally: Tally = field(default_factory=Tally)


class MicroService:
    """One program's answers; :meth:`start` begins to give them.

    Args:
        name: name of the program, as in ``health``.
        job: the job that it serves.
        description: one sentence.
        endpoint: what it listens to, and its figures.
    """

    def __init__(self, name: str, job: str, description: str, endpoint: Endpoint) -> None:
        self.name = f"{NAME_PREFIX}{name}"
        self.id = secrets.token_hex(11)
        self._description = description
        self._endpoint = endpoint
        self._metadata = {"job": job}
        self._started = time.time()

    async def start(self, connection: Connection) -> bool:
        """Answer from now on, over every client that the connection will have.

        Returns:
            whether the server permits it.
        """

        async def answer(message: Arrived) -> None:
            verb = message.subject.split(".")[1]
            if message.reply and verb in ("PING", "INFO", "STATS"):
                await connection.send(message.reply, json.dumps(self.answer(verb)).encode())

        subjects = [
            f"{PREFIX}.{verb}{address}"
            for verb in ("PING", "INFO", "STATS")
            for address in ("", f".{self.name}", f".{self.name}.{self.id}")
        ]
        try:
            await connection.subscribe(subjects, answer)
        except BusError as error:
            logger.info("%s does not answer NATS micro: %s", self.name, error)
            return False
        return True

    def answer(self, verb: str) -> dict[str, Any]:
        """The answer to PING, INFO or STATS, as JSON has it."""
        found: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            "name": self.name,
            "id": self.id,
            "version": _semantic(__version__),
            "metadata": self._metadata,
        }
        endpoint = self._endpoint
        row: dict[str, Any] = {"name": endpoint.name, "subject": endpoint.subject, "queue_group": ""}
        if verb == "INFO":
            found |= {"description": self._description, "endpoints": [row | {"metadata": {}}]}
        elif verb == "STATS":
            tally = endpoint.tally
            row |= {
                "num_requests": tally.heard,
                "num_errors": tally.failed,
                "last_error": tally.last_error,
                "processing_time": tally.spent_ns,
                "average_processing_time": tally.spent_ns // tally.heard if tally.heard else 0,
                "data": None,
            }
            found |= {"started": format_time(self._started), "endpoints": [row]}
        return found


def _semantic(version: str) -> str:
    """A version of Python's as a semantic one: three numbers."""
    numbers = [part for part in version.split("+", maxsplit=1)[0].split(".") if part.isdigit()]
    return ".".join((*numbers, "0", "0", "0")[:3])
