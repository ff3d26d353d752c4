"""A process that has torch loaded and forks a set of ranks for every request.

Importing torch and its distributed packages takes seconds; forking takes milliseconds.  So one process
does the imports, stays free of threads, and forks fresh ranks for each run: nothing that one run did
can be seen by the next, and a rank that hangs or crashes is only its own.

Each request is one line of JSON on standard input (:class:`Request`); the answer is one line on
standard output with the runs' failures, empty when there are none.  Results lie in the request's
folder: ``rank0.pt`` and so on, written by ``torch.save``.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
)


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        module, function: what every rank calls: ``function(rank, size, **arguments)``.
        backend: back end of the default group; empty when the function makes the group itself.
        size: number of ranks.
        limit: seconds after which the ranks are killed.
        folder: where results go; empty before the run.
        arguments: for the function, JSON values.
    """

    module: str
    function: str
    backend: str
    size: int
    limit: float
    folder: str
    arguments: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Serve requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("trainmover").register_backend()
    for line in sys.stdin:
        request = Request(**json.loads(line))
        module = importlib.import_module(request.module)
        for name in getattr(module, "PRELOAD", ()):
            importlib.import_module(name)
        answers.write(json.dumps({"failures": _run(request)}) + "\n")


def _run(request: Request) -> list[str]:
    """Fork the ranks and wait for them; what went wrong, one text per rank concerned."""
    ranks = {}
    for rank in range(request.size):
        process = os.fork()
        if process == 0:
            os._exit(_rank(request, rank))
        ranks[process] = rank
    failures = []
    until = time.monotonic() + request.limit
    while ranks and time.monotonic() < until:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            time.sleep(0.005)
        elif status:
            failures.append(_story(request, ranks.pop(process), os.waitstatus_to_exitcode(status)))
            until = min(until, time.monotonic() + 5.0)  # the others are of no use without it
        else:
            del ranks[process]
    for process in ranks:
        os.kill(process, signal.SIGUSR1)
    if ranks:
        time.sleep(0.5)  # for the stacks to be written
    for process, rank in ranks.items():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        failures.append(_story(request, rank, None))
    return failures


def _story(request: Request, rank: int, code: int | None) -> str:
    end = f"was still running (limit {request.limit:g} s)" if code is None else f"exit code {code}"
    path = Path(request.folder, f"rank{rank}.txt")
    text = path.read_text() if path.exists() else ""
    return f"rank {rank} on {request.backend or 'its own back end'}: {end}\n{text[-6000:]}"


def _rank(request: Request, rank: int) -> int:
    """Be one rank; exit code."""
    import torch
    import torch.distributed as dist

    path = Path(request.folder, f"rank{rank}.txt")
    with path.open("w") as log:
        faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(request.size), LOCAL_RANK=str(rank))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            torch.manual_seed(1234)
            if request.backend:
                store = dist.FileStore(str(Path(request.folder, "store")), request.size)
                limit = timedelta(seconds=request.limit)
                dist.init_process_group(
                    request.backend, store=store, rank=rank, world_size=request.size, timeout=limit
                )
            function = getattr(importlib.import_module(request.module), request.function)
            result = function(rank, request.size, **request.arguments)
            torch.save(result, Path(request.folder, f"rank{rank}.pt"))
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException:
            traceback.print_exc(file=log)
            log.flush()
            return 1
        log.flush()
        return 0


if __name__ == "__main__":
    main()
