"""A rank without torch: speaks the whole rank protocol, agrees with its peers through files.

Usage: fake_rank.py [--steps N] [--step-seconds S] [--hold-at-end S] [--raise-at STEP]
                    [--stages N] [--no-recording ROLE] [--fail-in-sandbox ROLE] [--hang-in-sandbox ROLE]

What a real rank does over links, this one does with small files in RUN_DIR/fake/g<generation>: a
``step`` mark per rank, step and epoch is the vote; a ``link`` file per rank and epoch says that its
links are made; a ``meet`` file says how many steps a stayer has committed when it goes over.

With ``--stages`` the machines are a pipeline: equal blocks of positions, replicas within each.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from trainmover.events import catalogue as say
from trainmover.events.frames import Decoder, encode_frame
from trainmover.faults import parse_faults

ENV = os.environ
MACHINE, INCARNATION = ENV["TRAINMOVER_MACHINE"], ENV["TRAINMOVER_INCARNATION"]
SLOT, RANK, WORLD = int(ENV["LOCAL_RANK"]), int(ENV["RANK"]), int(ENV["WORLD_SIZE"])
ROLE = ENV.get("TRAINMOVER_ROLE", "")
K, GENERATION = int(ENV["TRAINMOVER_RANKS_PER_MACHINE"]), int(ENV["TRAINMOVER_GENERATION"])
RUN_DIR = Path(ENV["TRAINMOVER_RUN_DIR"])
SHARED = RUN_DIR / "fake" / f"g{GENERATION}"
POLL = 0.002


class FakeRank:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.mode = ENV["TRAINMOVER_MODE"]
        self.rank = RANK
        self.epoch = 0
        self.members: tuple[str, ...] = ()
        self.committed = 0
        self.prepare: say.SwitchPrepare | None = None
        self.prepared = 0
        self.dead: set[str] = set()
        self.broken: set[int] = set()
        self.done = False
        self.first = True
        self.spoke_of_start = False
        self.peers: tuple[say.Endpoint, ...] = ()
        self.faults = list(parse_faults([ENV.get("TRAINMOVER_FAULTS", "")]))
        self.slowness = 1.0
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(ENV["TRAINMOVER_SOCKET"])
        self.decoder = Decoder("the machine program")
        self.listener = socket.create_server(("127.0.0.1", 0))
        steps = RUN_DIR / "steps"
        steps.mkdir(parents=True, exist_ok=True)
        SHARED.mkdir(parents=True, exist_ok=True)
        self.facts = (steps / f"{MACHINE}-{SLOT}-{os.getpid()}.jsonl").open("a", buffering=1)

    # -- talking

    def say(self, event: say.Event) -> None:
        self.line.sendall(encode_frame(event))

    def fact(self, **what: Any) -> None:
        self.facts.write(json.dumps(what) + "\n")

    def hear(self, wait: float = 0.0) -> None:
        ready, _, _ = select.select([self.line], [], [], wait)
        if not ready:
            return
        data = self.line.recv(1 << 16)
        if not data:
            sys.exit(4)
        for event in self.decoder.feed(data):
            match event:
                case say.SwitchPrepare():
                    self.prepare = event
                    if MACHINE in event.machines:
                        self.rank = event.machines.index(MACHINE) * K + SLOT
                        self.check(event)
                        self.mark(f"link-e{event.epoch}-r{self.rank}", str(os.getpid()))
                case say.SwitchAborted() if self.prepare and self.prepare.epoch == event.epoch:
                    self.prepare = None
                case say.MachineFailed():
                    self.dead.add(event.machine)
                case say.RolesFound():
                    self.record(event)
                case say.SandboxPeers():
                    self.peers = event.endpoints
                case say.JobCompleted() | say.JobFailed():
                    self.done = True
                case _:
                    pass

    def check(self, prepare: say.SwitchPrepare) -> None:
        """What a joiner is told of its rank must fit the set of processes that was chosen."""
        if self.mode != "sandbox":
            return
        mine = next(joiner for joiner in prepare.joiner_ranks if joiner.rank == self.rank)
        assert self.place(self.rank // K) == ROLE, (self.rank, ROLE)
        assert {self.stage(rank // K) for rank in mine.sources} == {self.stage(self.rank // K)}
        assert [row.name for row in mine.groups] == [row.name for row in self.groups()]

    def stage(self, position: int) -> int:
        return position * self.options.stages // (WORLD // K)

    def place(self, position: int) -> str:
        stages, stage = self.options.stages, self.stage(position)
        if stages == 1:
            return "all"
        return "first" if stage == 0 else "last" if stage == stages - 1 else "middle"

    def groups(self) -> tuple[say.GroupRow, ...]:
        stage = self.stage(self.rank // K)
        alike = [rank for rank in range(WORLD) if self.stage(rank // K) == stage and rank % K == SLOT]
        return (
            say.GroupRow(name="default", first=0, count=WORLD),
            say.GroupRow(name=f"data:{stage}.{SLOT}", ranks=tuple(alike)),
        )

    def describe(self) -> None:
        stages, stage = self.options.stages, self.stage(self.rank // K)
        self.say(
            say.RankDescribed(
                machine=MACHINE,
                incarnation=INCARNATION,
                slot=SLOT,
                rank=self.rank,
                generation=GENERATION,
                signature=f"{self.place(self.rank // K)}-{SLOT}",
                state=f"{stage}-{SLOT}",
                groups=self.groups(),
                stage=(stage, stages) if stages > 1 else None,
                bytes=100,
            )
        )

    def record(self, found: say.RolesFound) -> None:
        position = self.rank // K
        role = next((role for role in found.roles if role.representative == position), None)
        if role is None:
            return
        if role.name == self.options.no_recording:
            reason = "it would take more than the limit of 1 MB"
            self.say(say.RecordingFailed(machine=MACHINE, slot=SLOT, generation=GENERATION, reason=reason))
            return
        path = Path(ENV["TRAINMOVER_RECORDINGS"]) / f"g{GENERATION}" / role.name / f"slot-{SLOT}"
        path.mkdir(parents=True, exist_ok=True)
        self.say(
            say.RecordingReady(
                machine=MACHINE, slot=SLOT, generation=GENERATION, path=str(path), steps=2, bytes=1000
            )
        )

    def mark(self, name: str, text: str) -> None:
        temporary = SHARED / f".{name}.{os.getpid()}"
        temporary.write_text(text)
        temporary.rename(SHARED / name)

    def read(self, name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return (SHARED / name).read_text()
        return None

    # -- life

    def run(self) -> None:
        host, port = self.listener.getsockname()
        life = f"{MACHINE}-{os.getpid()}"
        self.say(
            say.RankStarted(
                machine=MACHINE,
                incarnation=INCARNATION,
                slot=SLOT,
                mode=self.mode,
                generation=GENERATION,
                pid=os.getpid(),
                endpoint=say.Endpoint(host=host, port=port, life=life),
                role=ROLE,
            )
        )
        if self.mode == "sandbox":
            while self.options.hang_in_sandbox == ROLE:
                time.sleep(1.0)
            if self.options.fail_in_sandbox == ROLE:
                raise RuntimeError("the recording does not fit")
            while not self.peers:
                self.hear(0.05)
            assert len(self.peers) == K, self.peers
            self.say(
                say.StandbyParked(
                    machine=MACHINE,
                    incarnation=INCARNATION,
                    slot=SLOT,
                    generation=GENERATION,
                    shadow_steps=2,
                    seconds={"start": 0.0},
                    role=ROLE,
                )
            )
        while not self.done and not self.over():
            self.hear(0.05)
        while not self.done and self.committed < self.options.steps:
            self.step()
        if not self.done:
            time.sleep(self.options.hold_at_end)
            digest = hashlib.sha256(str(self.options.steps).encode()).hexdigest()
            self.say(
                say.RankFinished(
                    machine=MACHINE, slot=SLOT, rank=self.rank, step=self.committed, digest=digest
                )
            )
        while not self.done:
            self.hear(1.0)

    def step(self) -> None:
        index, began = self.committed, time.time()
        for spec in [spec for spec in self.faults if spec.step == index]:
            self.faults.remove(spec)
            self.strike(spec, index)
        if self.options.raise_at == index:
            raise RuntimeError("the user's script is wrong")
        time.sleep(self.options.step_seconds * self.slowness)
        epoch = self.epoch
        self.mark(f"step-e{epoch}-s{index}-r{self.rank}", str(self.ready_for()))
        peers = range(len(self.members) * K)
        asked = time.monotonic()
        while True:
            votes = [self.read(f"step-e{epoch}-s{index}-r{peer}") for peer in peers]
            if all(vote is not None for vote in votes):
                break
            self.hear(POLL)
            if self.done:
                return
            if time.monotonic() - asked > 0.03:
                self.look_for_dead(peers, votes)
            if self.prepare is not None and self.prepare.kind != "move" and self.ready_for():
                self.fact(kind="void", step=index, epoch=epoch, time=time.time())
                if self.over():
                    return
        self.commit(index, began)
        ready = {int(vote) for vote in votes if vote is not None}
        self.hear()
        if len(ready) == 1 and ready != {0}:
            while not self.done and not self.over():
                if self.prepare is None:
                    return  # it was aborted between the vote and here; this fake has no way back
                self.hear(POLL)

    def commit(self, index: int, began: float) -> None:
        now = time.time()
        loss = 4.0 / (1 + index)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.fact(
            kind="step",
            step=index,
            epoch=self.epoch,
            rank=self.rank,
            start=began,
            end=now,
            seconds=now - began,
            loss=loss,
            metrics={"loss": loss},
            rss=rss,
            first=self.first,
        )
        self.committed = index + 1
        if SLOT == 0:
            self.say(
                say.StepSample(
                    machine=MACHINE,
                    rank=self.rank,
                    epoch=self.epoch,
                    step=index,
                    seconds=now - began,
                    metrics={"loss": loss},
                    peak_rss_bytes=rss,
                )
            )
        if self.rank == 0 and self.first:
            if self.spoke_of_start or index > 0:
                self.say(say.TrainingResumed(epoch=self.epoch, step=index))
            else:
                groups = {"world": tuple(range(WORLD))}
                self.say(
                    say.TrainingStarted(generation=GENERATION, epoch=self.epoch, step=index, groups=groups)
                )
            self.spoke_of_start = True
        if ENV["TRAINMOVER_RECORD"] == "1" and index == 1:
            self.describe()
        self.first = False

    # -- going over to a new epoch

    def ready_for(self) -> int:
        """The epoch that this rank is prepared for; 0 for none. Says so once."""
        prepare = self.prepare
        if prepare is None or prepare.epoch <= self.epoch:
            return 0
        made = [self.read(f"link-e{prepare.epoch}-r{rank}") for rank in range(len(prepare.machines) * K)]
        if any(link is None for link in made):
            return 0
        if MACHINE in prepare.machines and self.prepared < prepare.epoch:
            self.prepared = prepare.epoch
            self.say(
                say.SwitchPrepared(
                    epoch=prepare.epoch,
                    rank=self.rank,
                    machine=MACHINE,
                    seconds=0.0,
                    links_made=1,
                    links_kept=0,
                )
            )
        return prepare.epoch

    def over(self) -> bool:
        """Go over to the epoch that is being prepared, if all others do."""
        epoch = self.ready_for()
        if not epoch or self.prepare is None:
            return False
        prepare, began = self.prepare, time.time()
        if MACHINE not in prepare.machines:
            while not self.done:
                self.hear(1.0)  # a leaver: its machine ends it
            return True
        joiner = MACHINE in prepare.joiners and self.mode == "sandbox"
        if not joiner:
            self.mark(f"meet-e{epoch}-r{self.rank}", str(self.committed))
        stayers = [
            rank
            for rank in range(len(prepare.machines) * K)
            if prepare.kind == "start" or prepare.machines[rank // K] not in prepare.joiners
        ]
        met = [self.read(f"meet-e{epoch}-r{rank}") for rank in stayers]
        if any(text is None for text in met):
            return False
        goal = max(int(text) for text in met if text is not None)
        if not joiner and self.committed < goal:
            self.commit(self.committed, began)
        self.committed, self.epoch, self.members = goal, epoch, prepare.machines
        self.first, self.mode, self.prepare = True, "live", None
        self.spoke_of_start = self.spoke_of_start or goal > 0
        self.say(
            say.SwitchAdopted(
                epoch=epoch,
                rank=self.rank,
                machine=MACHINE,
                step=goal,
                switch_seconds=time.time() - began,
                copy_seconds=0.0,
                verify_seconds=0.0,
                bytes_received=0,
                bytes_sent=0,
            )
        )
        self.fact(
            kind="switch",
            epoch=epoch,
            step=goal,
            start=began,
            end=time.time(),
            copy_seconds=0.0,
            joiner=joiner,
        )
        return True

    # -- trouble

    def strike(self, spec: Any, index: int) -> None:
        self.fact(kind="fault", spec=str(spec), step=index, time=time.time())
        group = os.getpgid(int(ENV["TRAINMOVER_MACHINE_PID"]))
        match spec.kind:
            case "kill":
                os.killpg(group, signal.SIGKILL)
            case "stop":
                os.killpg(group, signal.SIGSTOP)
            case "slow":
                self.slowness = spec.factor
            case "pause":
                time.sleep(spec.seconds)
            case _ if SLOT == 0:
                self.say(say.MoveRequested(machine=MACHINE, reason=str(spec)))

    def look_for_dead(self, peers: range, votes: list[str | None]) -> None:
        for peer in peers:
            if votes[peer] is None and peer not in self.broken and not self.alive(peer):
                self.broken.add(peer)
                self.say(
                    say.LinkBroken(
                        epoch=self.epoch,
                        rank=self.rank,
                        machine=MACHINE,
                        peer=peer,
                        peer_machine=self.members[peer // K],
                        reason="connection reset",
                    )
                )

    def alive(self, peer: int) -> bool:
        pid = self.read(f"link-e{self.epoch}-r{peer}")
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--hold-at-end", type=float, default=0.0)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--no-recording", default="")
    parser.add_argument("--fail-in-sandbox", default="none")
    parser.add_argument("--hang-in-sandbox", default="none")
    FakeRank(parser.parse_args()).run()


if __name__ == "__main__":
    main()
