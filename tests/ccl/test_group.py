"""The process group under ``torch.distributed``, in three real processes, compared with Gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ccl import checks, side_by_side
from tests.forks import forks

SIZE = 3
LIMIT = 100.0

NAMES = [*checks.CHECKS, *checks.ONLY_HERE, "DDP plain", "DDP static", "DDP unused", "DDP views"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, str]]]:
    """Each rank's report: how it differs from Gloo, by check."""
    folder: Path = tmp_path_factory.mktemp("store")
    context = forks()
    pipes, processes = [], []
    try:
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=side_by_side.run, args=(rank, SIZE, theirs, str(folder)), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)

        def hear(kind: str) -> list:
            answers = [pipe.recv() if pipe.poll(LIMIT) else ("error", "nothing heard") for pipe in pipes]
            wrong = [f"rank {rank}: {value}" for rank, (said, value) in enumerate(answers) if said != kind]
            assert not wrong, f"while waiting for {kind!r}:\n" + "\n".join(wrong)
            return [value for _, value in answers]

        peers = hear("peer")
        for pipe in pipes:
            pipe.send(peers)
        assert hear("done") == [[], [], []]
        for pipe in pipes:
            pipe.send(None)
        found = hear("report")
        for process in processes:
            process.join(LIMIT)
        assert [process.exitcode for process in processes] == [0, 0, 0]
        yield found
    finally:
        for process, pipe in zip(processes, pipes, strict=False):
            if process.is_alive():
                process.kill()
            process.join(10.0)
            process.close()
            pipe.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_gloo_does(reports: list[dict[str, str]], name: str) -> None:
    """Every operation of the group gives every rank the same as Gloo, or what it promises beyond it."""
    for rank, report in enumerate(reports):
        assert report[name] == "", f"rank {rank}"
