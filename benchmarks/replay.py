"""How fast the log of a long run is read and replayed through fresh services.

The log is that of a job whose machines are moved away one after another, thousands of times, with a failure
in between now and then.  The services that decide are the real ones; the machines are a table of who reports
what upon which event, in virtual time, so that a million events are made in minutes.  Then the log is
written as a file, and from there on it is what ``trainmover events replay FILE`` does: read, decoded and
checked event by event, fed to the four services in their journalled order, and all that they say compared
with what was said then.

``file`` is what the command does: one process per service, each of which reads for itself.  ``whole``
reads the file into memory first.  ``cpu`` is the processor time of one event, of all processes; ``memory``
that of the largest process::

    python benchmarks/replay.py --events 1000000 --json replay.json
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgpack
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import environment, write
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import MAGIC, write_log
from trainmover.services import SERVICES, Replayed
from trainmover.services.core import Probe, entry_id, envelopes_of, probe_id
from trainmover.services.journal import QUIET_MOST
from trainmover.services.replay import replay_file

GOAL = 20_000.0
"""Events per second, reading included."""

QUICK = 20_000
"""Events with ``--quick``."""

FAILURE_EVERY = 5
"""Of so many incidents one is a failure, the others are moves."""

JOB = "benchmark"


class Machines:
    """A job's machines, as a table: what they report upon which event.

    Args:
        seats: machines of the job.
        slots: ranks per machine.
    """

    def __init__(self, seats: int, slots: int) -> None:
        self.seats, self.slots = seats, slots
        self.numbers = 0
        self.seated: tuple[str, ...] = ()
        self.generation = 0

    def begin(self) -> Iterator[tuple[str, say.Event]]:
        """The job and its first machines."""
        yield (
            "driver",
            say.JobSubmitted(
                script="train.py",
                cwd="/job",
                python="python",
                run_dir="/run",
                machines=self.seats,
                ranks_per_machine=self.slots,
                standbys=1,
            ),
        )
        for _ in range(self.seats + 1):
            yield from self._join()

    def incident(self, number: int) -> Iterator[tuple[str, say.Event]]:
        """Somebody is to go, or is gone."""
        seat = number % self.seats
        name = self.seated[seat]
        if number % FAILURE_EVERY:
            yield "operator", say.MoveRequested(machine=name, reason="benchmark")
            return
        yield (
            f"machine/{name}",
            say.RankExited(
                machine=name,
                incarnation=f"{name}-life",
                slot=0,
                mode="live",
                generation=self.generation,
                pid=7,
                code=None,
                signal=9,
            ),
        )

    def hear(self, event: say.Event) -> Iterator[tuple[str, say.Event]]:
        """What is reported upon an event."""
        match event:
            case say.MachineLaunch():
                self.generation = event.generation
                for slot in range(self.slots):
                    yield self._started(event.machine, slot, "live")
            case say.StandbyWarm():
                for slot in range(self.slots):
                    yield self._started(event.machine, slot, "sandbox", event.role)
                    yield self._parked(event, slot)
            case say.SwitchPrepare():
                yield from self._switch(event)
            case say.SwitchCommitted():
                yield from self._committed(event)
            case say.StandbyReplenish():
                yield from self._join()
            case _:
                return

    def _join(self) -> Iterator[tuple[str, say.Event]]:
        name = f"m{self.numbers}"
        self.numbers += 1
        life = f"{name}-life"
        joined = say.MachineJoined(machine=name, incarnation=life, host="host", slots=self.slots, pid=7)
        yield f"machine/{name}", joined

    def _started(self, machine: str, slot: int, mode: say.RankMode, role: str = "") -> tuple[str, say.Event]:
        endpoint = say.Endpoint(host="10.0.0.1", port=4000 + slot, life=f"{machine}.{slot}")
        started = say.RankStarted(
            machine=machine,
            incarnation=f"{machine}-life",
            slot=slot,
            mode=mode,
            generation=self.generation,
            endpoint=endpoint,
            pid=7,
            role=role,
        )
        return f"machine/{machine}/{slot}", started

    def _parked(self, event: say.StandbyWarm, slot: int) -> tuple[str, say.Event]:
        parked = say.StandbyParked(
            machine=event.machine,
            incarnation=event.incarnation,
            slot=slot,
            generation=event.generation,
            shadow_steps=2,
            seconds={"start": 1.5, "build": 0.5, "shadow": 0.25},
            role=event.role,
        )
        return f"machine/{event.machine}/{slot}", parked

    def _switch(self, event: say.SwitchPrepare) -> Iterator[tuple[str, say.Event]]:
        ranks = [(p * self.slots + s, m, s) for p, m in enumerate(event.machines) for s in range(self.slots)]
        for rank, machine, slot in ranks:
            yield (
                f"machine/{machine}/{slot}",
                say.SwitchPrepared(
                    epoch=event.epoch, rank=rank, machine=machine, seconds=0.05, links_made=2, links_kept=6
                ),
            )
        for rank, machine, slot in ranks:
            yield (
                f"machine/{machine}/{slot}",
                say.SwitchAdopted(
                    epoch=event.epoch,
                    rank=rank,
                    machine=machine,
                    step=event.epoch * 10,
                    switch_seconds=0.01,
                    copy_seconds=0.2,
                    verify_seconds=0.02,
                    bytes_received=0,
                    bytes_sent=1 << 20,
                ),
            )

    def _committed(self, event: say.SwitchCommitted) -> Iterator[tuple[str, say.Event]]:
        self.seated = event.machines
        first = f"machine/{event.machines[0]}/0"
        if event.kind != "start":
            yield first, say.TrainingResumed(epoch=event.epoch, step=event.step)
            for leaver in event.leavers:
                left = say.MachineLeft(machine=leaver, incarnation=f"{leaver}-life", reason="released")
                yield f"machine/{leaver}", left
            return
        yield (
            first,
            say.TrainingStarted(generation=event.generation, epoch=event.epoch, step=0, groups={}),
        )
        world = say.GroupRow(name="world", count=self.seats * self.slots)
        for position, machine in enumerate(event.machines):
            for slot in range(self.slots):
                speaker = f"machine/{machine}/{slot}"
                yield (
                    speaker,
                    say.RankDescribed(
                        machine=machine,
                        incarnation=f"{machine}-life",
                        slot=slot,
                        rank=position * self.slots + slot,
                        generation=event.generation,
                        signature="same",
                        state="same",
                        groups=(world,),
                    ),
                )
                yield (
                    speaker,
                    say.RecordingReady(
                        machine=machine,
                        slot=slot,
                        generation=event.generation,
                        path=f"/run/recordings/{machine}-{slot}",
                        steps=2,
                        bytes=1 << 20,
                    ),
                )


class Shells:
    """The four services on one queue, with journals as their shells write them, in virtual time."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.cores = {name: service.core() for name, service in SERVICES.items()}
        self.log: list[Envelope] = []
        self.now = 1_700_000_000.0
        self._queue: deque[Envelope] = deque()
        self._quiet: dict[str, dict[str, float]] = {name: {} for name in self.cores}
        self._numbers = dict.fromkeys(self.cores, 0)
        self._ids = 0

    def run(self, events: int) -> list[Envelope]:
        """The log of a job that has said so many events."""
        for source, event in self.machines.begin():
            self._report(source, event)
        number = 0
        while len(self.log) < events:
            self._settle()
            before = len(self.log)
            for source, event in self.machines.incident(number):
                self._report(source, event)
            self._settle()
            assert len(self.log) > before + 2 * self.machines.seats, f"incident {number} came to nothing"
            number += 1
        for name in self.cores:
            self._flush(name)
        return self.log

    def _report(self, source: str, event: say.Event) -> None:
        self._ids += 1
        name = f"{source.replace('/', '-')}-{self._ids}"
        self._say(Envelope(id=name, source=source, time=self.now, job=JOB, event=event))

    def _say(self, envelope: Envelope) -> None:
        self.log.append(envelope)
        self._queue.append(envelope)

    def _settle(self) -> None:
        while self._queue:
            envelope = self._queue.popleft()
            self.now = round(self.now + 0.001, 6)
            for name, core in self.cores.items():
                if envelope.type in core.hears:
                    self._feed(name, envelope)
            for source, event in self.machines.hear(envelope.event):
                self._report(source, event)

    def _feed(self, name: str, envelope: Envelope) -> None:
        outputs = self.cores[name].handle(envelope, self.now)
        said = envelopes_of(name, envelope, self.now, outputs)
        quiet = self._quiet[name]
        if not said:
            quiet[envelope.id] = self.now
            if len(quiet) >= QUIET_MOST:
                self._flush(name)
        else:
            self._journal(name, envelope.id, self.now, tuple(item.id for item in said))
        for item in said:
            self._say(item)
        for number, output in enumerate(outputs):
            if isinstance(output, Probe):
                answer = say.MachineProbed(
                    machine=output.machine, incarnation=output.incarnation, answer="absent"
                )
                answered = probe_id(name, envelope.id, number)
                self._say(Envelope(id=answered, source=name, time=self.now, job=JOB, event=answer))

    def _flush(self, name: str) -> None:
        if self._quiet[name]:
            cause, now = self._quiet[name].popitem()
            self._journal(name, cause, now, ())

    def _journal(self, name: str, cause: str, now: float, outputs: tuple[str, ...]) -> None:
        quiet, self._quiet[name] = self._quiet[name], {}
        self._numbers[name] += len(quiet) + 1
        entry = say.JournalEntry(
            service=name, number=self._numbers[name], input=cause, now=now, outputs=outputs, quiet=quiet
        )
        self.log.append(
            Envelope(id=entry_id(name, cause), source=name, time=now, job=JOB, event=entry, cause=cause)
        )


@dataclass(frozen=True)
class Result:
    """One replay; ``peak_bytes`` is the memory of its largest process."""

    how: str
    events: int
    seconds: float
    cpu: float
    peak_bytes: int
    differences: int

    @property
    def rate(self) -> float:
        """Events per second, reading included."""
        return self.events / self.seconds


def measure(how: str, events: int, work: Callable[[], Replayed]) -> Result:
    """Read and replay once."""
    before, began = os.times(), time.perf_counter()
    found = work()
    ended, after = time.perf_counter(), os.times()
    who = resource.RUSAGE_CHILDREN if how == "file" else resource.RUSAGE_SELF
    return Result(
        how,
        events,
        ended - began,
        sum(after[:4]) - sum(before[:4]),
        1024 * resource.getrusage(who).ru_maxrss,
        len(found.differences),
    )


def make(path: Path, events: int, machines: Machines) -> None:
    """Write the log, in a process of its own: what that leaves in memory shall not be measured."""
    if os.fork() == 0:
        gc.disable()  # nothing of this is garbage
        write_log(path, Shells(machines).run(events))
        os._exit(0)
    os.wait()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Read and replay the log of a long run.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--machines", type=int, default=8, help="seats of the job")
    parser.add_argument("--ranks", type=int, default=4, help="ranks per machine")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} events")
    parser.add_argument("--log", type=Path, default=None, metavar="FILE", help="keep the log, use it again")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tm-replay-") as folder:
        path = args.log or Path(folder) / "run.tmlog"
        if not path.exists():
            make(path, QUICK if args.quick else args.events, Machines(args.machines, args.ranks))
        console.print(f"{args.machines} machines x {args.ranks}, {path.stat().st_size / 2**20:.0f} MiB")
        processes = os.cpu_count() or 1
        events = count(path)
        results = [
            measure("file", events, lambda: replay_file(path, workers=processes)),
            measure("whole", events, lambda: replay_file(path, workers=1)),
        ]
    table = Table(box=SIMPLE_HEAD)
    for head in ("", "events", "seconds", "events/s", "cpu", "memory", "differ"):
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.how,
            f"{result.events:,}",
            f"{result.seconds:.1f}",
            f"{result.rate:,.0f}",
            f"{1e6 * result.cpu / result.events:.1f} µs",
            f"{result.peak_bytes / 2**20:.0f} MiB",
            str(result.differences),
        )
    console.print(table)
    console.print(f"goal: {GOAL:,.0f} events per second; {processes} processors")
    rows = [{**asdict(result), "events_per_second": result.rate} for result in results]
    job = {"machines": args.machines, "ranks_per_machine": args.ranks}
    summary = {"goal": GOAL, "processes": processes, **job}
    write(args.json, rows, summary, environment())
    best = max(result.rate for result in results)
    raise SystemExit(0 if best >= GOAL and not any(result.differences for result in results) else 1)


def count(path: Path) -> int:
    """Events in a log, by its head."""
    with path.open("rb") as file:
        file.read(len(MAGIC))
        head: dict[str, int] = msgpack.Unpacker(file).unpack()
        return head["records"]


if __name__ == "__main__":
    main()
