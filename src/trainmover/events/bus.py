"""The bus port: everything the rest of TrainMover may ask of a message bus.

What lives here: two protocols, :class:`Bus` and :class:`Feed`, and the promises behind them.
What never lives here: NATS (``nats_bus``) or any other carrier (``memory_bus``).

The promises:

- *At once, and for good.*  A journalled event is sent to whoever listens as soon as ``publish`` is
  called, and to the log in the background, with the same id, until the log has it.  Nobody waits
  for the log unless they ask to (``flush``).
- *Each id once.*  A feed may hear an event twice, or only from the log after an outage; its reader
  gets it once.  Order is that of the log for the past, and of arrival from then on.
- *No message can hurt a reader.*  What cannot be decoded becomes a ``dead.letter`` event.
- *Everything is bounded.*  What waits takes a limit in seconds; what fails raises ``BusError`` with
  what to check.

An outage is not evidence, and neither is a bus that stands still: ``probe`` raises when the bus itself
did not carry, ``echo`` tells whether it does now, and ``connected_for`` says for how long silence has
meant anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Literal, Protocol

from trainmover.events.envelope import Envelope

ProbeAnswer = Literal["alive", "absent", "silent"]

Handler = Callable[[Envelope], Awaitable[None] | None]
"""Called for each un-journalled event; may be a plain function or a coroutine function."""


class Feed(Protocol):
    """Envelopes, each id once: ``async for envelope in feed``.  Ends when it is closed."""

    def __aiter__(self) -> AsyncIterator[Envelope]: ...

    async def __anext__(self) -> Envelope: ...

    async def past(self, limit: float) -> list[Envelope]:
        """What the log held when the feed was made and was not given yet; then iterate on.

        Empty for a feed without history.

        Raises:
            BusError: the log could not be read to that point within ``limit`` seconds.
        """
        ...

    async def unstored(self, age: float, limit: float) -> list[Envelope]:
        """What was heard at least so many seconds ago and is not in the log, each once and few at a time.

        The log is read to its end for it.

        Raises:
            BusError: that did not succeed within ``limit`` seconds.
        """
        ...

    async def close(self) -> None:
        """Hear no more; iteration ends.  Never raises."""
        ...


class Bus(Protocol):
    """One program's connection to a job's events."""

    @property
    def job(self) -> str:
        """The job that all envelopes belong to."""
        ...

    @property
    def connected_for(self) -> float:
        """Seconds since the connection stands without a break; 0.0 while there is none.

        A bus that stood still for longer than the limit of an ``echo`` has had a break, too.
        """
        ...

    async def echo(self, limit: float) -> bool:
        """Send oneself a message by way of the bus.

        Returns:
            whether it was back within ``limit`` seconds; also False when there is no connection.
        """
        ...

    async def publish(self, envelope: Envelope) -> None:
        """Say something; returns as soon as it is handed over, connected or not.

        A journalled event is kept and sent again until the log has it.  Another is sent once, and
        dropped while there is no connection.

        Raises:
            BusError: the envelope is of another job, cannot be encoded, or too much is waiting for
                the log already; or the bus is closed.
        """
        ...

    async def flush(self, limit: float) -> None:
        """Wait until everything published before this call is in the log.

        Raises:
            BusError: after ``limit`` seconds it was not; names what is missing.
        """
        ...

    async def feed(self, areas: Sequence[str] | None = None, *, history: bool) -> Feed:
        """Journalled events of these areas (None: all), the log's past first if ``history``.

        Raises:
            BusError: the bus did not answer.
        """
        ...

    async def listen(self, types: Iterable[str], handler: Handler) -> None:
        """Call ``handler`` with un-journalled events of these type names until the bus is closed.

        Raises:
            ValueError: a type is unknown or journalled (use a feed).
        """
        ...

    async def probe(self, machine: str, limit: float) -> ProbeAnswer:
        """Ask whether a machine program is there.

        Returns:
            ``alive``: it answered; ``absent``: the bus says that nobody listens under that name;
            ``silent``: somebody listens and did not answer within ``limit`` seconds, or the
            connection is too young for absence to mean anything.

        Raises:
            BusError: the bus itself was away or stood still, so nothing was learned.
        """
        ...

    async def answer_probes(self, machine: str) -> None:
        """Answer probes for this machine from now on."""
        ...

    async def close(self) -> None:
        """Let go of the bus within seconds; call ``flush`` before to be sure of the log."""
        ...
