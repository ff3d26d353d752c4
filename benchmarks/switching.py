"""What a change of membership costs: swapping links, preparing them beside training, and the vote.

Small real processes (``benchmarks/switching_rank.py``) hold the links that a rank holds in a job: the
boundary's, a data group of all ranks and a tensor group of 4; every rank is a machine of its own.

*swap* (phase 2): one member is replaced by a process that was prepared.  Taken is the call that enters
the new epoch (``Engine.adopt``), on the slowest rank: with all ranks at once on this machine's few cores,
and one rank after the other, as if each had a core of its own.  Then the first meeting of all ranks.
*prepare* (phase 1): a rank trains (arithmetic on one thread, then a sum of 1 MiB with another rank, which
waits instead of computing and so leaves its core to the newcomer) while newcomers are connected in
every fourth or fifth step; these steps are compared with the others.
*vote*: the boundary's agreement in every step, by 8 ranks: at the end of a step (a pause, a small sum, the
vote), and one vote right after the other::

    python benchmarks/switching.py --json switching.json
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import switching_rank
from benchmarks.common import environment, write

SIZES = (4, 8, 16, 32)
VOTERS = 8
GLOO_RECONFIGURE = {4: 0.026, 8: 0.083, 16: 0.163, 32: 0.487}
"""Seconds of ``_reconfigure`` of torch 2.15.0's Gloo for the same swap, on the slowest rank; measured
elsewhere (another machine of 2 cores), not by this program."""

LIMITS = {
    "swap_max_seconds": 0.020,
    "swap_growth_ratio": 2.0,
    "prepare_step_ratio": 1.05,
    "vote_seconds": 0.001,
}
"""What the summary's figures should be at most."""

STEP_SECONDS = 0.1
"""Arithmetic in a training step."""
STEP_ELEMENTS = 1 << 18
SECONDS = 60.0


class Child:
    """A rank process and the pipe to it."""

    def __init__(self, process: Any, pipe: Pipe) -> None:
        self.process, self.pipe = process, pipe

    def tell(self, name: str, *arguments: Any) -> None:
        """Give a command; :meth:`answer` waits for its result."""
        self.pipe.send((name, arguments))

    def answer(self) -> Any:
        """The result of the command given last."""
        if not self.pipe.poll(SECONDS):
            raise SystemExit(f"a rank process did not answer within {SECONDS:g} s")
        good, result = self.pipe.recv()
        if not good:
            raise SystemExit(f"{result}\na rank process failed")
        return result

    def ask(self, name: str, *arguments: Any) -> Any:
        """Give a command and wait for its result."""
        self.tell(name, *arguments)
        return self.answer()


def all_ask(children: Sequence[Child], name: str, *arguments: Any) -> list[Any]:
    """The same command to all at once."""
    for child in children:
        child.tell(name, *arguments)
    return [child.answer() for child in children]


@contextmanager
def processes(count: int) -> Iterator[list[Child]]:
    """So many rank processes; none is left afterwards."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([switching_rank.__name__])
    made: list[Child] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=switching_rank.serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            made.append(Child(process, ours))
        yield made
        all_ask(made, "end")
    finally:
        for child in made:
            child.pipe.close()
        for child in made:
            child.process.join(5.0)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
            child.process.close()


class World:
    """Ranks in an epoch, and one process that is in none."""

    def __init__(self, children: list[Child]) -> None:
        self.members, self.spares = children[:-1], children[-1:]
        self.size, self.epochs = len(self.members), itertools.count(1)
        self.peers = {rank: child.ask("fresh", rank, self.size) for rank, child in enumerate(self.members)}
        all_ask(self.members, "prepare", next(self.epochs), self.peers)
        all_ask(self.members, "adopt", 0.0)
        all_ask(self.members, "meet")

    def replace(self, rank: int) -> list[dict[str, Any]]:
        """Phase 1 of a change: the spare is prepared to sit on a rank; each rank's facts of it."""
        leaver, (joiner,) = self.members[rank], self.spares
        self.peers = {**self.peers, rank: joiner.ask("fresh", rank, self.size)}
        self.members[rank], self.spares = joiner, [leaver]
        return all_ask(self.members, "prepare", next(self.epochs), self.peers)

    def swap(self, *, together: bool) -> tuple[list[dict[str, Any]], float]:
        """Phase 2 everywhere: each rank's facts, and seconds until all have met (when done together)."""
        if not together:
            facts = [child.ask("adopt", 0.0) for child in self.members]
            all_ask(self.members, "meet")
            return facts, 0.0
        at = time.monotonic() + 0.05 + 0.002 * self.size
        facts = all_ask(self.members, "adopt", at)
        began = time.monotonic()
        met = max(all_ask(self.members, "meet")) - began
        return facts, met


def measure_swap(size: int, repeats: int) -> dict[str, Any]:
    """One row: one member of ``size`` is replaced again and again, another one each time."""
    together: list[list[dict[str, Any]]] = []
    alone: list[list[dict[str, Any]]] = []
    met, prepared = [], []
    with processes(size + 1) as children:
        world = World(children)
        for number in range(2 * repeats):
            facts = world.replace(number * 5 % size)
            prepared.append(max(f["ended"] for f in facts) - min(f["began"] for f in facts))
            swapped, seconds = world.swap(together=number % 2 == 0)
            if number % 2:
                alone.append(swapped)
            else:
                together.append(swapped)
                met.append(seconds)
    return {
        "part": "swap",
        "ranks": size,
        "seconds": median(max(f["seconds"] for f in facts) for facts in together),
        "worst_seconds": max(f["seconds"] for facts in together for f in facts),
        "alone_seconds": median(max(f["seconds"] for f in facts) for facts in alone),
        "cpu_seconds": median(max(f["cpu_seconds"] for f in facts) for facts in alone),
        "meeting_seconds": median(met),
        "prepare_seconds": median(prepared),
        "most_links_swapped": max(f["swapped"] for facts in alone for f in facts),
        "gloo_reconfigure_seconds": GLOO_RECONFIGURE.get(size),
    }


def measure_prepare(repeats: int) -> dict[str, Any]:
    """One row: median step with and without a newcomer being connected.

    The steps with are chosen beforehand: of steps that a prepare happens to fall into, long ones are more
    often hit, and would seem to be slow because of it.
    """
    with processes(3) as children:
        world = World(children)
        joiner, (stayer, leaver) = world.spares[0], world.members
        leaver.ask("train", False, STEP_SECONDS, STEP_ELEMENTS)
        stayer.ask("train", True, STEP_SECONDS, STEP_ELEMENTS)
        chosen, spans = [], []
        changing: set[int] = set()
        for number in range(repeats):
            epoch = next(world.epochs)
            changing.add(stayer.ask("next_step"))  # in which the newcomer before lets its links go
            peers = {**world.peers, 1: joiner.ask("fresh", 1, 2)}
            for _ in range(3 + number % 2):
                last = stayer.ask("next_step")
            facts = all_ask([stayer, joiner], "prepare", epoch, peers)
            chosen.append(last)
            spans.append((min(f["began"] for f in facts), max(f["ended"] for f in facts)))
            all_ask([stayer, joiner], "abandon", epoch)
        leaver.tell("trained")
        steps = stayer.ask("trained")
        leaver.answer()
    during = [steps[number][1] - steps[number][0] for number in chosen]
    quiet = [
        end - begin
        for number, (begin, end) in enumerate(steps)
        if number >= chosen[0]
        and not {number, number - 1} & changing
        and not any(begin < until and since < end for since, until in spans)
    ]
    return {
        "part": "prepare",
        "steps_during": len(during),
        "steps_quiet": len(quiet),
        "during_seconds": median(during),
        "quiet_seconds": median(quiet),
        "prepare_seconds": median(end - begin for begin, end in spans),
        "ratio": median(during) / median(quiet),
    }


def measure_vote(batches: int, count: int = 40) -> dict[str, Any]:
    """One row: the cost of a vote of 8 ranks, in lockstep and at the end of a step.

    In lockstep: medians of batches of votes, one right after the other (and the fastest batch); then all
    processes compute all the time, and what they wait for is a core.  ``slowest_seconds`` is the median of
    what each of these votes has taken on its slowest rank.  ``step_seconds`` is what a step pays: the median
    from the last rank's coming to the slowest rank's going, for votes after a pause and a small sum.
    """
    with processes(VOTERS + 1) as children:
        world = World(children)
        facts = [all_ask(world.members, "vote", count) for _ in range(batches)]
        spans = all_ask(world.members, "vote_after_steps", count, time.monotonic() + 0.2)
    each = [zip(*(fact.pop("each_seconds") for fact in batch), strict=True) for batch in facts]
    costs = {name: [median(fact[name] for fact in batch) for batch in facts] for name in facts[0][0]}
    votes = list(zip(*spans, strict=True))
    taken = [max(end for _, end in vote) - max(begin for begin, _ in vote) for vote in votes]
    return {
        "part": "vote",
        "ranks": VOTERS,
        **{name: median(values) for name, values in costs.items()},
        "fastest_collective_seconds": min(costs["collective_seconds"]),
        "slowest_seconds": median(max(vote) for batch in each for vote in batch),
        "step_seconds": median(taken),
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that are held against a limit."""
    swaps = sorted((row for row in rows if row["part"] == "swap"), key=lambda row: row["ranks"])
    (prepare,) = [row for row in rows if row["part"] == "prepare"]
    (vote,) = [row for row in rows if row["part"] == "vote"]
    summary: dict[str, Any] = {
        "swap_max_seconds": max(row["seconds"] for row in swaps),
        "swap_growth_ratio": swaps[-1]["cpu_seconds"] / swaps[0]["cpu_seconds"],
        "prepare_step_ratio": prepare["ratio"],
        "vote_seconds": vote["step_seconds"],
    }
    within = {name: summary[name] <= limit for name, limit in LIMITS.items()}
    return {**summary, "limits": LIMITS, "within_limits": within}


def ms(seconds: float) -> str:
    """Milliseconds, as people read them."""
    return f"{seconds * 1000:.2f} ms"


SWAP: dict[str, Callable[[dict[str, Any]], str]] = {
    "ranks": lambda row: str(row["ranks"]),
    "swap, all at once": lambda row: ms(row["seconds"]),
    "one by one": lambda row: ms(row["alone_seconds"]),
    "of it CPU": lambda row: ms(row["cpu_seconds"]),
    "links": lambda row: str(row["most_links_swapped"]),
    "first meeting": lambda row: ms(row["meeting_seconds"]),
    "prepare": lambda row: ms(row["prepare_seconds"]),
    "Gloo's reconfigure *": lambda row: f"{row['gloo_reconfigure_seconds'] * 1000:.0f} ms",
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer repetitions: within a minute")
    add("--json", type=Path, default=None, metavar="FILE", help="write rows, summary and environment here")
    add("--repeats", type=int, default=None, help="swaps per size and way; default 15, quick 5")
    chosen = parser.parse_args()
    repeats = chosen.repeats or (5 if chosen.quick else 15)
    where, console = environment(), Console()
    rows = []
    for size in SIZES:
        with console.status(f"swapping one of {size} ranks"):
            rows.append(measure_swap(size, repeats))
    with console.status("preparing beside training"):
        rows.append(measure_prepare(8 * repeats))
    with console.status("voting"):
        rows.append(measure_vote(repeats))
    summary = summarize(rows)

    table = Table(title=f"one member is replaced ({repeats} times)", title_justify="left", box=SIMPLE_HEAD)
    for name in SWAP:
        table.add_column(name, justify="right")
    for row in rows:
        if row["part"] == "swap":
            table.add_row(*(show(row) for show in SWAP.values()))
    console.print(table)
    console.print("* torch 2.15.0, measured elsewhere on a machine of 2 cores, slowest rank")
    prepare, vote = rows[-2], rows[-1]
    console.print(
        f"a step beside a prepare of {ms(prepare['prepare_seconds'])}: {ms(prepare['during_seconds'])}, "
        f"else {ms(prepare['quiet_seconds'])} (ratio {prepare['ratio']:.3f})"
    )
    console.print(
        f"a vote of {VOTERS} ranks at the end of a step: {ms(vote['step_seconds'])} from the last rank's "
        "coming to the slowest one's going"
    )
    console.print(
        f"votes in lockstep: {ms(vote['seconds'])}, of it {ms(vote['collective_seconds'])} in the collective "
        f"part (in the fastest batch {ms(vote['fastest_collective_seconds'])}), on the slowest rank "
        f"{ms(vote['slowest_seconds'])}; CPU on each rank {ms(vote['cpu_seconds'])}, of it "
        f"{ms(vote['collective_cpu_seconds'])} in the collective part; {vote['switches']:.1f} waits"
    )
    over = [name for name, good in summary["within_limits"].items() if not good]
    console.print(f"over a limit: {', '.join(over)}" if over else "within all limits")
    write(chosen.json, rows, summary, where)


if __name__ == "__main__":
    main()
