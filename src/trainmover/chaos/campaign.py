"""A campaign: the undisturbed run, then one disturbed run after the other, each from the next seed.

What lives here: the course of a campaign and its summary.  What never lives here: a run (``round``), what
goes wrong in it (``plan``), whether it held (``judge``).

Each round has a folder of its own for everything, so that what it leaves can be seen, and a mark in its
environment, so that every process of it can be found.  One that does not end in time is ended, and counts as
not survived.  What is needed to look into such a round is kept.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import psutil

from trainmover.chaos import disk, network
from trainmover.chaos.judge import MARK, Truth, Verdict, judge, marked
from trainmover.chaos.plan import (
    NETWORK,
    UNDISTURBED,
    Exhausted,
    Plan,
    Setting,
    State,
    TroubleKind,
    draw,
    undisturbed,
)
from trainmover.chaos.round import Order, Result
from trainmover.errors import TrainMoverError
from trainmover.machine.children import LEASH

END_SECONDS: Final = 15.0
STOP_SECONDS: Final = 5.0


class ChaosError(TrainMoverError):
    """There is nothing to compare with: the undisturbed run did not hold itself."""


@dataclass(frozen=True)
class Campaign:
    """What a campaign is asked for.

    Attributes:
        script, args: what is trained; the same every time, from the same seed.
        seed: of the first run; the next one has the next seed.
        minutes: no run is begun after them.
        runs: so many at most; None: as many as there is time for.
        machines, ranks_per_machine, standbys: as in ``trainmover run``.
        kinds: troubles that may be made; those that cannot be made here are left out.
        limit: seconds that one run may take.
        keep: folder for what is kept of runs that were not survived.
        job_seed: seed of the job.
        on_exhausted, state: policies of the job, as in ``trainmover run``.
    """

    script: Path
    args: tuple[str, ...] = ()
    seed: int = 0
    minutes: float = 5.0
    runs: int | None = None
    machines: int = 4
    ranks_per_machine: int = 1
    standbys: int = 2
    kinds: tuple[TroubleKind, ...] = get_args(TroubleKind)
    limit: float = 180.0
    keep: Path = Path("runs")
    job_seed: int = 0
    on_exhausted: Exhausted = "hold"
    state: State = "mirror"

    def command(self, seed: int, kinds: tuple[TroubleKind, ...]) -> str:
        """The command that makes the run of a seed again."""
        words = ["trainmover", "chaos", "--seed", str(seed), "--runs", "1"]
        for option, value, usual in (
            ("--machines", self.machines, Campaign.machines),
            ("--ranks-per-machine", self.ranks_per_machine, Campaign.ranks_per_machine),
            ("--standbys", self.standbys, Campaign.standbys),
            ("--on-exhausted", self.on_exhausted, Campaign.on_exhausted),
            ("--state", self.state, Campaign.state),
        ):
            words += [option, str(value)] if value != usual else []
        if kinds != get_args(TroubleKind):
            words += ["--kinds", ",".join(kinds) or "none"]
        return " ".join([*words, str(self.script), *self.args])


@dataclass(frozen=True, slots=True)
class Played:
    """A round that is over."""

    seed: int
    plan: Plan
    verdict: Verdict
    seconds: float
    kept: Path | None = None


@dataclass(slots=True)
class Summary:
    """What a campaign came to.

    Attributes:
        played: the rounds, in order, without the undisturbed one.
        left_out: troubles that could not be made here, and why.
        seconds: how long all of it took.
        commands: for each seed that was not survived, how to see it again.
    """

    played: list[Played] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    commands: dict[int, str] = field(default_factory=dict)

    @property
    def survived(self) -> list[Played]:
        """Rounds about which there is no complaint."""
        return [played for played in self.played if not played.verdict.complaints]

    @property
    def faults(self) -> Counter[str]:
        """What was survived, by kind."""
        kinds: Counter[str] = Counter()
        for played in self.survived:
            kinds.update(fault.partition(":")[0].partition(" ")[0] for fault in played.verdict.faults)
        return kinds

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "runs": len(self.played),
            "survived": len(self.survived),
            "faults_survived": sum(self.faults.values()),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "replacements": sum(len(played.verdict.incidents) for played in self.survived),
            "left_out": self.left_out,
            "seconds": round(self.seconds, 1),
            "rounds": [
                {
                    "seed": played.seed,
                    "plan": str(played.plan),
                    "done": list(played.verdict.faults),
                    "incidents": list(played.verdict.incidents),
                    "complaints": list(played.verdict.complaints),
                    "seconds": round(played.seconds, 1),
                    "again": self.commands.get(played.seed, ""),
                }
                for played in self.played
            ],
        }


def possible(kinds: tuple[TroubleKind, ...]) -> tuple[tuple[TroubleKind, ...], dict[str, str]]:
    """Those troubles that can be made here; and the others, with the reason."""
    no_network = network.why_not() if any(kind in NETWORK for kind in kinds) else ""
    no_disk = disk.why_not() if "disk" in kinds else ""
    lacking: dict[TroubleKind, str] = {**dict.fromkeys(NETWORK, no_network), "disk": no_disk}
    out: dict[str, str] = {kind: lacking[kind] for kind in kinds if lacking.get(kind)}
    return tuple(kind for kind in kinds if kind not in out), out


def carry_out(campaign: Campaign, tell: Callable[[Played], None]) -> Summary:
    """Carry a campaign out.

    Args:
        campaign: what is asked for.
        tell: told of each round, the undisturbed one first.

    Raises:
        ChaosError: the undisturbed run did not hold.
    """
    began = time.monotonic()
    summary = Summary()
    kinds, summary.left_out = possible(campaign.kinds)
    if any(kind in kinds for kind in NETWORK):
        network.sweep()
    with tempfile.TemporaryDirectory(prefix="tmc-") as home:
        first = _play(campaign, undisturbed(campaign.state), kinds, Path(home), None)
        tell(first)
        if first.verdict.complaints:
            raise ChaosError(f"the undisturbed run does not hold: {'; '.join(first.verdict.complaints)}")
        setting = Setting(
            campaign.machines,
            campaign.ranks_per_machine,
            campaign.standbys,
            len(first.verdict.truth.losses),
            kinds,
            on_exhausted=campaign.on_exhausted,
            state=campaign.state,
        )
        until = began + 60.0 * campaign.minutes
        seed = campaign.seed
        while time.monotonic() < until and campaign.runs not in (len(summary.played),):
            try:
                played = _play(campaign, draw(seed, setting), kinds, Path(home), first.verdict.truth)
            except KeyboardInterrupt:
                break  # what was played until now counts
            summary.played.append(played)
            if played.verdict.complaints:
                summary.commands[seed] = campaign.command(seed, kinds)
            tell(played)
            seed += 1
    summary.seconds = time.monotonic() - began
    return summary


def _play(
    campaign: Campaign, plan: Plan, kinds: tuple[TroubleKind, ...], home: Path, truth: Truth | None
) -> Played:
    """One round, from its folder to its verdict."""
    began = time.monotonic()
    folder = home / (str(plan.seed) if plan.seed != UNDISTURBED else "undisturbed")
    (folder / "tmp").mkdir(parents=True)
    small = any(trouble.kind == "disk" for trouble in plan.troubles)
    networks = any(trouble.kind in NETWORK for trouble in plan.troubles)
    order = Order(
        folder=str(folder),
        script=str(campaign.script.absolute()),
        args=campaign.args,
        machines=campaign.machines,
        ranks_per_machine=campaign.ranks_per_machine,
        standbys=campaign.standbys,
        job_seed=campaign.job_seed,
        plan=plan,
        networks=networks,
        on_exhausted=campaign.on_exhausted,
        state=campaign.state,
    )
    mark = secrets.token_hex(8)
    if small:
        disk.mount(order.run_dir)
    try:
        result = _run(order, folder, mark, campaign.limit)
        verdict = judge(order, result, truth, mark)
        end_all(mark)
        kept = _keep(campaign, folder, plan.seed) if verdict.complaints else None
    finally:
        disk.unmount(order.run_dir)
    shutil.rmtree(folder, ignore_errors=True)
    if networks and (names := network.left()):
        verdict = Verdict(
            (*verdict.complaints, f"left of it: {', '.join(names)}"),
            verdict.faults,
            verdict.incidents,
            verdict.truth,
        )
        network.sweep()
    return Played(plan.seed, plan, verdict, time.monotonic() - began, kept)


def _run(order: Order, folder: Path, mark: str, limit: float) -> Result | None:
    """Let the round's process run to its end; None: it did not end in time, or without a word."""
    # On a leash: whatever becomes of this process, the round does not outlive it.
    leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), "normal"]
    command = [*leash, sys.executable, "-m", "trainmover.chaos.round", str(order.write())]
    environment: Mapping[str, str] = {**os.environ, "TMPDIR": str(folder / "tmp"), MARK: mark}
    with (folder / "round.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        except BaseException:
            process.kill()
            end_all(mark)
            raise
        else:
            if order.result.is_file():
                return Result(**json.loads(order.result.read_text("utf-8")))
            return None
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return None


def end_all(mark: str) -> None:
    """End what is left of a round."""
    there = marked(mark)
    for process in there:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(there, timeout=STOP_SECONDS)


def _keep(campaign: Campaign, folder: Path, seed: int) -> Path:
    """Keep what a round has left, for whoever looks into it."""
    name = f"chaos-{seed if seed != UNDISTURBED else 'undisturbed'}-{secrets.token_hex(2)}"
    kept = campaign.keep / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    ignored = shutil.ignore_patterns("sockets-*", disk.BALLAST)
    shutil.copytree(folder, kept, ignore=ignored, ignore_dangling_symlinks=True)
    return kept
