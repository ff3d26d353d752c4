"""A monitor for a TrainMover job in one file, with nothing of TrainMover in it.

It needs only ``nats-py``, ``msgpack`` and ``pydantic``: what it knows is the public contract in
``events/``.  A message is a CloudEvent in binary mode: the attributes are NATS headers (``ce-type``,
``ce-time``, ``ce-incident``, ...), the body is the event itself in msgpack.  The subject is
``trainmover.<job>.<area>.<event>``::

    python examples/subscribe.py --bus nats://127.0.0.1:4222            # every job
    python examples/subscribe.py --bus ... --job NAME --history         # one job, from its beginning
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote

import msgpack
import nats
from nats.aio.msg import Msg
from pydantic import BaseModel, ConfigDict, ValidationError


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


async def watch(url: str, job: str, token: str | None, *, history: bool) -> None:
    """Print until interrupted."""
    monitor = Monitor()

    async def on_message(message: Msg) -> None:
        line = monitor.line(message.headers or {}, message.data)
        if line is not None:
            print(line, flush=True)

    client = await nats.connect(url, token=token, name="subscribe.py", max_reconnect_attempts=-1)
    try:
        if history:
            # The job's log, in order, then whatever comes; no acknowledgement, nothing left behind.
            stream = f"TRAINMOVER_{job}"
            await client.jetstream().subscribe(
                ">", stream=stream, ordered_consumer=True, idle_heartbeat=0.5, cb=on_message
            )
        else:
            await client.subscribe(f"trainmover.{job}.>", cb=on_message)
        await asyncio.Event().wait()
    finally:
        await client.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Watch the incidents of TrainMover jobs.")
    parser.add_argument("--bus", default="nats://127.0.0.1:4222", help="address of the NATS server")
    parser.add_argument("--token", default=None, help="what the server wants to see")
    parser.add_argument("--job", default="*", help="name of the job (default: all jobs)")
    parser.add_argument("--history", action="store_true", help="from the job's beginning (needs --job)")
    args = parser.parse_args()
    if args.history and args.job == "*":
        parser.error("--history needs --job: each job has a log of its own")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(watch(args.bus, args.job, args.token, history=args.history))


if __name__ == "__main__":
    main()
