"""For tests of training scripts: does this script end in the same bytes when machines come and go?

    from trainmover import testing

    def test_my_script_can_be_moved():
        testing.check(train)                     # train(): what the script does, with trainmover.join()

Two ways, of different cost.  :func:`rehearse` runs the script alone in this process, in which single steps
are void and the process is replaced: it takes as long as the steps take, and finds state that decides the
next step and is not tracked.  :func:`run` runs a real job of several machines, with a standby and faults
at exact steps, as ``trainmover run`` does: it takes some ten seconds, and finds what only several ranks can
get wrong.  Both give an :class:`Outcome`, and :func:`assert_same` compares two of them.

What never lives here: anything that a job needs.  Importing this needs no torch; rehearsing does.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmover.errors import ConfigError, JobError

if TYPE_CHECKING:
    from trainmover.training.rehearsal import Rehearsal

__all__ = ["Outcome", "assert_same", "check", "rehearse", "run"]

Train = Callable[[], object]
"""What a script does, from ``trainmover.join()`` to its last step."""

LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        digest: SHA-256 (hex) over parameters, buffers, optimizer and scheduler state.
        metrics: what each step logged, by step: means over the ranks.
        incidents: kind (``failure``, ``move``, ...) and machine of every incident, in their order.
        report: the whole report of a job (``report.json``); empty after a rehearsal.
    """

    digest: str
    metrics: dict[int, dict[str, float]]
    incidents: tuple[tuple[str, str], ...] = ()
    report: dict[str, Any] = field(default_factory=dict)


def check(train: Train, *, void: Collection[int] = (1, 2), replace: int = 2) -> None:
    """Rehearse a script undisturbed, with void steps, and with a replaced process; all must come to the same.

    Args:
        train: runs at least ``replace`` + 1 steps, the same ones each time that it is called.
        void: steps that are run twice.
        replace: step before which another process takes over.

    Raises:
        AssertionError: something else came out; says at which step it began, and what to look for.
    """
    undisturbed = rehearse(train)
    assert_same(rehearse(train), undisturbed, "nothing but run a second time")
    assert_same(rehearse(train, void=void), undisturbed, f"with the steps {_listed(void)} run twice")
    assert_same(rehearse(train, replace=replace), undisturbed, f"replaced before step {replace}")


def rehearse(train: Train, *, void: Collection[int] = (), replace: int | None = None) -> Outcome:
    """Run a script in this process, as the only rank, with void steps and a process that is replaced.

    Args:
        train: calls :func:`trainmover.join`, tracks and trains.  When the process is replaced it is called
            again: the first call is ended before step ``replace`` by an exception that ``except Exception``
            does not catch, the second one gets the state after two shadow steps of its own.
        void: steps whose first attempt is void; their gradients are filled with NaN.
        replace: step before which another process takes over; None: none does.

    Raises:
        ConfigError: ``torch.distributed`` is initialised already, or ``train`` made no job or too few steps.
    """
    import torch.distributed as dist

    from trainmover.training.job import rehearsed
    from trainmover.training.rehearsal import Baggage, Rehearsal, Replaced
    from trainmover.training.state import TrackedState

    if dist.is_initialized():
        raise ConfigError("a rehearsal needs a process without torch.distributed: destroy its group before")
    lives: list[tuple[Rehearsal, TrackedState]] = []

    def life(until: int | None, received: Baggage | None) -> None:
        def course(tracked: TrackedState) -> Rehearsal:
            lives.append((Rehearsal(tracked, void, until, received), tracked))
            return lives[-1][0]

        token, hook = rehearsed.set(course), sys.excepthook
        try:
            with contextlib.suppress(Replaced):
                train()
        finally:
            rehearsed.reset(token)
            sys.excepthook = hook  # torch.distributed puts its own before it, once for each group
            if dist.is_initialized():
                dist.destroy_process_group()

    life(replace, None)
    if replace is not None and lives:
        baggage = lives[-1][0].baggage
        if baggage is None:
            raise ConfigError(f"nothing was replaced: the script ended before step {replace}")
        life(None, baggage)
    if not lives:
        raise ConfigError("nothing was rehearsed: the function did not call trainmover.join()")
    metrics: dict[int, dict[str, float]] = {}
    for rehearsal, _ in lives:
        metrics |= rehearsal.metrics
    return Outcome(lives[-1][1].digest(), metrics)


def run(
    script: Path | str | Train,
    *args: str,
    machines: int = 2,
    ranks_per_machine: int = 1,
    standbys: int = 1,
    seed: int = 0,
    faults: Sequence[str] = (),
    options: Sequence[str] = (),
    folder: Path | None = None,
    limit: float = 120.0,
) -> Outcome:
    """Run a real job on this computer, with faults, to its end.

    Args:
        script: a file, or a function of a module's top level, which is imported from its file and called.
        args: the script's own arguments.
        machines: machines that train, each a group of processes.
        ranks_per_machine: ranks on each.
        standbys: machines that take over.
        seed: the job's seed.
        faults: such as ``kill:machine=1,step=20``, as ``trainmover run --fault`` takes them.
        options: further options of ``trainmover run``.
        folder: where the run's folder ``run`` is made, itself made if need be; None: it is not kept.
        limit: longest time in seconds.

    Raises:
        ConfigError: the function is none of a module's top level.
        JobError: the job failed, or did not end within the limit; has the last lines that it printed.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="trainmover-") as made:
            return run(
                script,
                *args,
                machines=machines,
                ranks_per_machine=ranks_per_machine,
                standbys=standbys,
                seed=seed,
                faults=faults,
                options=options,
                folder=Path(made),
                limit=limit,
            )
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(script) if isinstance(script, str | Path) else _script_of(script, folder)
    command = [sys.executable, "-m", "trainmover.cli", "run", "--machines", str(machines)]
    command += ["--ranks-per-machine", str(ranks_per_machine), "--standbys", str(standbys)]
    command += ["--seed", str(seed), "--run-dir", str(folder / "run")]
    command += [word for fault in faults for word in ("--fault", fault)]
    told = _to_its_end([*command, *options, str(path), *args], folder / "output", limit)
    report_file = folder / "run" / "report.json"
    if not report_file.is_file():
        raise JobError(f"the job left no report; it said:\n{told}")
    report = json.loads(report_file.read_text(encoding="utf-8"))
    losses = {step: {"loss": loss} for step, loss in enumerate(report["losses"]) if loss is not None}
    incidents = tuple((incident["kind"], incident["machine"]) for incident in report["incidents"])
    return Outcome(report["digest"], losses, incidents, report)


def assert_same(outcome: Outcome, undisturbed: Outcome, what: str = "disturbed") -> None:
    """Two runs must have come to the same bytes.

    Args:
        outcome: the run that is tested.
        undisturbed: the run that it is compared with.
        what: what was done to the first one, for the message.

    Raises:
        AssertionError: they have not; tells the first step that differs.
    """
    steps = sorted(outcome.metrics.keys() | undisturbed.metrics.keys())
    for step in steps:
        here, there = outcome.metrics.get(step), undisturbed.metrics.get(step)
        if not _equal(here, there):
            raise AssertionError(
                f"{what}, the run differs from step {step} on: it logged {here}, the undisturbed run "
                f"{there}. Something that decides this step is not tracked (a generator of its own, a "
                "counter, a buffer outside the model, a batch fetched ahead?), or the script is not "
                "deterministic."
            )
    if outcome.digest != undisturbed.digest:
        raise AssertionError(
            f"{what}, the run ends in other bytes ({outcome.digest[:12]}, undisturbed "
            f"{undisturbed.digest[:12]}), though it logged the same. Something changed the tracked state "
            "beside the steps' optimizers: an optimizer that is not tracked, tensors written after the step?"
        )


def _equal(here: dict[str, float] | None, there: dict[str, float] | None) -> bool:
    if here is None or there is None or here.keys() != there.keys():
        return False
    return all(
        value == there[name] or (math.isnan(value) and math.isnan(there[name]))
        for name, value in here.items()
    )


def _listed(steps: Collection[int]) -> str:
    return ", ".join(str(step) for step in sorted(steps))


def _script_of(train: Train, folder: Path) -> Path:
    """A file that imports the function's module from its file and calls it."""
    name, source = getattr(train, "__qualname__", ""), inspect.getsourcefile(train)
    if not name.isidentifier() or source is None:
        raise ConfigError(
            f"{name or train!r} cannot be called in another process: give a function of a module"
        )
    path = folder / f"{name}.py"
    path.write_text(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('rehearsed', {str(Path(source).absolute())!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"module.{name}()\n",
        encoding="utf-8",
    )
    return path


def _to_its_end(command: Sequence[str], output: Path, limit: float) -> str:
    """Run a program to its end and return what it printed last; nothing of it is left behind.

    Raises:
        JobError: its exit code was not 0, or it took too long.
    """
    with output.open("wb") as file:
        driver = subprocess.Popen(command, stdout=file, stderr=file, env=dict(os.environ))
        try:
            ended = f"it ended with code {driver.wait(limit)}"
        except subprocess.TimeoutExpired:
            ended = f"it did not end within {limit:g} s"
        finally:
            # What the driver started hangs on a leash and ends with it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.send_signal(signal.SIGTERM)
                driver.wait(30.0)
            driver.kill()
            driver.wait()
    told = "\n".join(output.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:])
    if driver.returncode != 0:
        raise JobError(f"the job failed ({ended}); its last words:\n{told}")
    return told
