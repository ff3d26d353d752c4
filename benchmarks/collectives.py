"""How fast the collectives are beside Gloo's, with the machine's own limits next to them.

For each number of ranks and each placement the benchmark starts that many processes, which call the
same operations through both back ends in turn (``benchmarks/collectives_rank.py``).  *inside*: all
ranks are on one machine, as they are; *across*: each rank says that it is a machine of its own, so
that ours uses TCP between any two; *layers*: on two machines with half of the ranks each.  Gloo does
the same in all of them.  A ratio above 1 means that ours is faster; sizes are the bytes of a tensor,
of all members' parts together where each has one (all_gather, reduce_scatter, all_to_all)::

    python benchmarks/collectives.py --json collectives.json
    python benchmarks/collectives.py --operations all_reduce --ranks 2 4 --places inside --sizes 1MiB 16MiB
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.common import environment, write

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send/recv")
PLACES = ("inside", "across", "layers")
RANKS = (2, 4, 8)
KIB, MIB = 1 << 10, 1 << 20
SIZES = tuple(size * KIB for size in (4, 16, 64, 256)) + tuple(size * MIB for size in (1, 4, 16, 64, 256))
QUICK_SIZES = (4 * KIB, MIB, 16 * MIB)
SMALL = 64 * KIB
"""Below this the time of a call counts, from here on its bandwidth."""

LIMITS = {
    "all_reduce_across_min_ratio": 1.0,
    "all_reduce_inside_min_ratio": 2.0,
    "small_latency_max_ratio": 1.5,
    "small_cpu_max_ratio": 1.0,
    "other_min_ratio": 0.9,
}
"""What the summary's figures should be: at least, for ``min``; at most, for ``max``."""

RANK_PROGRAM = Path(__file__).with_name("collectives_rank.py")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer sizes and ranks, shorter: about a minute")
    add("--json", type=Path, default=None, metavar="FILE", help="write rows, summary and environment here")
    add("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    add("--places", nargs="+", choices=PLACES, default=list(PLACES[:2]), help="default: inside across")
    add("--ranks", nargs="+", type=int, default=None, help=f"default {RANKS}, quick {RANKS[:2]}")
    add("--sizes", nargs="+", type=_size, default=None, help="such as 4KiB 1MiB")
    add("--budget", type=float, default=None, help="seconds to spend on a case; default 1, quick 0.15")
    add("--calls", type=int, default=None, help="calls of a turn; default: as many as take 10 ms, 2 or more")
    add("--limit", type=float, default=1800.0, help="seconds that the processes of one world may take")
    args = parser.parse_args()
    args.ranks = args.ranks or (RANKS[:2] if args.quick else RANKS)
    args.sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    args.budget = args.budget or (0.15 if args.quick else 1.0)
    if any(ranks < 2 or ranks % 2 for ranks in args.ranks):
        parser.error("--ranks: send/recv pairs the ranks, so their number is even")
    return args


def _size(text: str) -> int:
    units = {"KiB": KIB, "MiB": MIB, "GiB": 1 << 30}
    return int(float(text[:-3]) * units[text[-3:]])


def bytes_in_words(size: int) -> str:
    """``64 KiB``, ``16 MiB``."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def time_in_words(seconds: float) -> str:
    """Three digits or so."""
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


# -- the machine's own limits ----------------------------------------------------------------------


def memory_copy() -> float:
    """Bytes per second that one thread copies from one 64 MiB buffer to another."""
    torch.set_num_threads(1)
    source, target = torch.ones(16 * MIB), torch.zeros(16 * MIB)
    times = []
    for _ in range(9):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    return source.nbytes / median(times)


def loopback_stream() -> float:
    """Bytes per second of one TCP stream on the loopback device, between two threads."""
    total, piece = 512 * MIB, 4 * MIB
    with socket.create_server(("127.0.0.1", 0)) as server:
        out = socket.create_connection(server.getsockname())
        into, _ = server.accept()
    data, room = bytearray(piece), bytearray(piece)

    def send() -> None:
        for _ in range(total // piece):
            out.sendall(data)

    with out, into:
        sender = threading.Thread(target=send)
        began = time.perf_counter()
        sender.start()
        for _ in range(total // piece):
            into.recv_into(room, piece, socket.MSG_WAITALL)
        seconds = time.perf_counter() - began
        sender.join()
    return total / seconds


# -- the worlds ------------------------------------------------------------------------------------


def world(ranks: int, place: str, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Start the processes of one world, wait for their end, and read what they measured."""
    folder.mkdir()
    plan = {
        "operations": args.operations,
        "sizes": args.sizes,
        "budget": args.budget,
        "calls": args.calls,
        "store": str(folder / "store"),
        "result": str(folder / "rows.json"),
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(RANK_PROGRAM), str(folder / "plan.json")]
    processes: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + args.limit
    try:
        for rank in range(ranks):
            env = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
            machine = {"inside": 0, "across": rank, "layers": 2 * rank // ranks}[place]
            env["TRAINMOVER_MACHINE_IDENTITY"] = f"m{machine}"
            with (folder / f"rank{rank}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
        _wait(processes, until, folder)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())
    for row in rows:
        row.update(ranks=ranks, place=place)
        row["ratio"] = row["gloo_seconds"] / row["trainmover_seconds"]
        row["cpu_ratio"] = row["trainmover_cpu_seconds"] / max(row["gloo_cpu_seconds"], 1e-9)
        row["gigabytes_per_second"] = row["bytes"] / row["trainmover_seconds"] / 1e9
    return rows


def _wait(processes: list[subprocess.Popen[bytes]], until: float, folder: Path) -> None:
    """Until all have ended well; the first that has not ends the benchmark with the end of its log."""
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if any(process.poll() not in (None, 0) for process in processes):
            break
        time.sleep(0.1)
    for rank, process in enumerate(processes):
        if process.poll() not in (None, 0):
            tail = (folder / f"rank{rank}.log").read_text(errors="replace")[-4000:]
            raise SystemExit(f"{tail}\nrank {rank} ended with code {process.returncode}")
    if any(process.poll() is None for process in processes):
        tail = (folder / "rank0.log").read_text(errors="replace")[-4000:]
        raise SystemExit(f"{tail}\na world of {len(processes)} ranks took longer than --limit")


# -- what comes out --------------------------------------------------------------------------------


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the goals are about; a key without a measurement is None."""

    def worst(pick: Any, chosen: list[dict[str, Any]], key: str) -> float | None:
        return pick((row[key] for row in chosen), default=None)

    large = [row for row in rows if row["operation"] == "all_reduce" and row["bytes"] >= MIB]
    small = [{**row, "slower": 1 / row["ratio"]} for row in rows if row["bytes"] < SMALL]
    others = [row for row in rows if row["operation"] != "all_reduce" and row["bytes"] >= SMALL]
    summary: dict[str, Any] = {
        "all_reduce_across_min_ratio": worst(min, [r for r in large if r["place"] == "across"], "ratio"),
        "all_reduce_inside_min_ratio": worst(min, [r for r in large if r["place"] == "inside"], "ratio"),
        "small_latency_max_ratio": worst(max, small, "slower"),
        "other_min_ratio": worst(min, others, "ratio"),
        "small_cpu_max_ratio": worst(max, small, "cpu_ratio"),
        "all_reduce_cpu_max_ratio": worst(max, large, "cpu_ratio"),
    }
    summary["within_limits"] = {
        key: summary[key] >= limit if "min" in key else summary[key] <= limit
        for key, limit in LIMITS.items()
        if summary[key] is not None
    }
    return summary


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """One table per operation: a line per size, a column per world."""
    worlds = list(dict.fromkeys((row["place"], row["ranks"]) for row in rows))
    for name in dict.fromkeys(row["operation"] for row in rows):
        found = {(r["bytes"], r["place"], r["ranks"]): r for r in rows if r["operation"] == name}
        table = Table(
            title=f"{name}: ours, times as fast as Gloo (CPU time in terms of Gloo's)", box=SIMPLE_HEAD
        )
        table.add_column("size", justify="right")
        for place, ranks in worlds:
            table.add_column(f"{place}, {ranks} ranks", justify="right")
        for size in dict.fromkeys(key[0] for key in found):
            cells = []
            for place, ranks in worlds:
                row = found[size, place, ranks]
                took = time_in_words(row["trainmover_seconds"])
                cells.append(f"{took}  {row['ratio']:.2f} ({row['cpu_ratio']:.2f})")
            table.add_row(bytes_in_words(size), *cells)
        console.print(table)


def main() -> None:
    """Run, print, write."""
    args = parse()
    where, console = environment(), Console(width=None if sys.stdout.isatty() else 200)
    limits = {"memory_copy_bytes_per_second": memory_copy(), "loopback_bytes_per_second": loopback_stream()}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainmover-collectives-") as folder:
        for place in args.places:
            for ranks in args.ranks:
                with console.status(f"{ranks} ranks {place}"):
                    rows += world(ranks, place, args, Path(folder) / f"{place}-{ranks}")
    show(console, rows)
    copy, stream = (value / 1e9 for value in limits.values())
    console.print(
        f"limits of this machine: one thread copies {copy:.1f} GB/s, "
        f"one loopback stream moves {stream:.1f} GB/s"
    )
    summary = summarise(rows)
    for key, limit in LIMITS.items():
        if summary[key] is not None:
            bound = f"at {'least' if 'min' in key else 'most'} {limit:g}"
            mark = "" if summary["within_limits"][key] else ", missed"
            console.print(f"{key} {summary[key]:.2f} ({bound}{mark})")
    write(args.json, rows, {**summary, "limits": limits}, where)


if __name__ == "__main__":
    main()
