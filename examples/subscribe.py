"""A monitor for a TrainMover job in one file, with nothing of TrainMover in it.

It needs only ``nats-py``, ``msgpack`` and ``pydantic``: what it knows is the public contract in
``events/``.  A message is a CloudEvent in binary mode: the attributes are NATS headers (``ce-type``,
``ce-time``, ``ce-incident``, ...), the body is the event itself in msgpack.  The subject is
``trainmover.<job>.<area>.<event>``::

    python examples/subscribe.py --bus nats://127.0.0.1:4222            # every job
    python examples/subscribe.py --bus ... --job NAME --history         # one job, from its beginning

It only reads: the account ``reader`` is enough for it, which may subscribe to every event and say none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import msgpack
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel, ConfigDict, ValidationError

BATCH = 256
"""Messages of the log in one answer."""

SILENCE = 5.0
"""Seconds after which a server that does not answer is given up."""


class Event(BaseModel):
    """Only the fields that this monitor needs; new fields in a later release do no harm."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class MachineFailed(Event):
    machine: str
    reason: str

    def __str__(self) -> str:
        return f"{self.machine} failed: {self.reason}"


class MoveRequested(Event):
    machine: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.machine} is to be moved away {self.reason}".rstrip()


class StandbyAssigned(Event):
    leaver: str
    joiner: str

    def __str__(self) -> str:
        return f"{self.joiner} will take the place of {self.leaver}"


class SwitchCommitted(Event):
    epoch: int
    step: int
    machines: tuple[str, ...]

    def __str__(self) -> str:
        return f"epoch {self.epoch} from step {self.step} on: {', '.join(self.machines)}"


class TrainingResumed(Event):
    epoch: int
    step: int

    def __str__(self) -> str:
        return f"first step after the switch is committed (step {self.step})"


class Job(Event):
    reason: str = ""
    steps: int | None = None

    def __str__(self) -> str:
        return self.reason or (f"{self.steps} steps" if self.steps is not None else "")


CARED_FOR: dict[str, type[Event]] = {
    "io.trainmover.machine.failed.v1": MachineFailed,
    "io.trainmover.move.requested.v1": MoveRequested,
    "io.trainmover.standby.assigned.v1": StandbyAssigned,
    "io.trainmover.switch.committed.v1": SwitchCommitted,
    "io.trainmover.training.resumed.v1": TrainingResumed,
    "io.trainmover.job.submitted.v1": Job,
    "io.trainmover.job.held.v1": Job,
    "io.trainmover.job.completed.v1": Job,
    "io.trainmover.job.failed.v1": Job,
}
"""CloudEvents type (version included) to model; everything else is passed over."""


@dataclass
class Monitor:
    """Turns messages into lines; an incident's lines show the seconds since its first event."""

    began: dict[str, datetime] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def show(self, message: Msg) -> None:
        """Print a message's line, once."""
        headers = message.headers or {}
        name = headers.get("ce-id")
        if name is None or name in self.seen:
            return  # not an event, or one that came before
        self.seen.add(name)
        line = self.line(headers, message.data)
        if line is not None:
            print(line, flush=True)

    def line(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """One line of text for a message; None when it is not cared for."""
        kind = headers.get("ce-type", "")
        model = CARED_FOR.get(kind)
        if model is None:
            return None
        try:
            event = model.model_validate(msgpack.unpackb(body))
            time = datetime.fromisoformat(headers["ce-time"])
        except (ValueError, KeyError, ValidationError, msgpack.UnpackException) as error:
            return f"cannot read {kind}: {error}"
        name = kind.removeprefix("io.trainmover.").rsplit(".", 1)[0]
        incident = unquote(headers.get("ce-incident", ""))
        since = ""
        if incident:
            since = f"  [{incident} +{(time - self.began.setdefault(incident, time)).total_seconds():.2f} s]"
        return f"{time:%H:%M:%S}  {headers.get('ce-job', '?')}  {name:18} {event}{since}"


@dataclass(frozen=True)
class Server:
    """How to reach it; a role's user has answers sent to an inbox of its own."""

    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    ca: str | None = None

    async def connect(self) -> Client:
        """A connection that comes back by itself, or an error that says why there is none."""
        parts = urlsplit(self.url)  # as `trainmover credentials` writes it: tls://user:password@host?ca=FILE
        ca = self.ca or dict(parse_qsl(parts.query)).get("ca")
        trusted = ssl.create_default_context(cafile=ca) if ca is not None else None
        user = self.user or parts.username
        inbox = f"_INBOX.{user}" if user is not None else "_INBOX"
        return await nats.connect(
            urlunsplit(parts._replace(query="")),
            user=self.user,
            password=self.password,
            token=self.token,
            tls=trusted,
            inbox_prefix=inbox.encode(),
            name="subscribe.py",
            max_reconnect_attempts=-1,
            allow_reconnect=True,
            connect_timeout=5,
        )


async def past(client: Client, job: str) -> AsyncIterator[Msg]:
    """The job's log from its beginning, read by batched direct get: no consumer is made on the server."""
    first, left = 1, 1
    while left:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        wanted = {"seq": first, "next_by_subj": f"trainmover.{job}.>", "batch": BATCH}
        subject = f"$JS.API.DIRECT.GET.TRAINMOVER_{job}"
        await client.publish(subject, json.dumps(wanted).encode(), reply=inbox)
        while True:
            message = await answers.next_msg(timeout=SILENCE)
            headers = message.headers or {}
            if (status := headers.get("Status")) is not None:
                # 204: the batch is whole, so many are left; 404: the log is empty; else it is not there.
                if status not in ("204", "404"):
                    raise LookupError(f"job {job} has no log here: {headers.get('Description', status)}")
                left = int(headers.get("Nats-Num-Pending", "0"))
                break
            first = int(headers["Nats-Sequence"]) + 1
            yield message
        await answers.unsubscribe()


async def watch(server: Server, job: str, *, history: bool, follow: bool) -> None:
    """Print until interrupted; without ``follow`` only what the log has."""
    monitor = Monitor()
    client = await server.connect()
    # Subscribed before the log is read, so that nothing is missed between the two; an event that comes
    # both ways, or twice, has the same id.
    live = await client.subscribe(f"trainmover.{job}.>")
    try:
        if history:
            async for message in past(client, job):
                monitor.show(message)
        if follow:
            async for message in live.messages:
                monitor.show(message)
    finally:
        await client.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Watch the incidents of TrainMover jobs.")
    parser.add_argument("--bus", default="nats://127.0.0.1:4222", help="address of the NATS server")
    parser.add_argument("--user", help="a role's user, such as reader (or in the address)")
    parser.add_argument("--password", default=os.environ.get("NATS_PASSWORD"), help="default: $NATS_PASSWORD")
    parser.add_argument("--token", help="what a server without users wants to see")
    parser.add_argument("--ca", metavar="FILE", help="certificate of who has signed the server's own")
    parser.add_argument("--job", default="*", help="name of the job (default: all jobs)")
    parser.add_argument("--history", action="store_true", help="from the job's beginning (needs --job)")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="end with the history")
    args = parser.parse_args()
    if args.history and args.job == "*":
        parser.error("--history needs --job: each job has a log of its own")
    server = Server(args.bus, args.user, args.password if args.user else None, args.token, args.ca)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(watch(server, args.job, history=args.history, follow=args.follow))


if __name__ == "__main__":
    main()
