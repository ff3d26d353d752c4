"""Hands: what carries the troubles of a plan out, in the process that drives the run.

What lives here: watching for the moment of each trouble, and what is done then.  What never lives here:
which troubles there are (``plan``).

A moment is an event, heard as the driver hears it, or a rank that pauses at a point, read in what the rank
wrote down (which needs no bus).  Where it has not come when a rank has done the trouble's latest step, the
trouble begins then.  What lasts for a while is undone after it, also when the run has ended.  A trouble whose
target is not there does nothing; :attr:`Hands.done` has those that did something.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trainmover.chaos import disk
from trainmover.chaos.ground import Ground
from trainmover.chaos.plan import Plan, Trouble
from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.machine.supervisor import LocalRun

LOOK_SECONDS: Final = 0.02
"""How often the ranks' files are looked into."""

log = logging.getLogger("trainmover.chaos")


class Hands:
    """Carries out a plan's troubles on one run; see the module.

    Args:
        plan: what is to go wrong.
        ground: what can be troubled.

    Attributes:
        run: the run; set before it begins.
        done: what was done, in order.
    """

    def __init__(self, plan: Plan, ground: Ground) -> None:
        self.run: LocalRun | None = None
        self.done: list[str] = []
        self._ground = ground
        self._waiting = list(plan.troubles)
        self._seen: Counter[str] = Counter()
        self._read: dict[Path, int] = {}
        self._undo: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def observe(self, envelope: Envelope) -> None:
        """An event of the job."""
        self._seen[envelope.type] += 1
        self._moment(envelope.type, self._seen[envelope.type])

    async def watch(self, steps: Path) -> None:
        """Look for ranks that pause, until cancelled.

        Args:
            steps: folder of what ranks write down.
        """
        while True:
            if self._waiting:
                self._look_into(steps)
            await asyncio.sleep(LOOK_SECONDS)

    def let_go(self) -> None:
        """Undo now what would be undone later."""
        undo, self._undo = self._undo, {}
        for act, handle in undo.items():
            handle.cancel()
            act()

    # -- moments -----------------------------------------------------------------------------------

    def _look_into(self, steps: Path) -> None:
        for path in steps.glob("*.jsonl"):
            self._look(path)

    def _look(self, path: Path) -> None:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read[path] = self._read.get(path, 0) + len(line)
                if line.startswith((b'{"kind": "fault"', b'{"kind": "step"')):
                    with contextlib.suppress(ValueError, KeyError):
                        self._written(json.loads(line))

    def _written(self, fact: dict[str, Any]) -> None:
        if fact["kind"] == "fault":
            self._moment(str(fact["spec"]), 1)
        else:
            step = int(fact["step"])
            self._begin([t for t in self._waiting if t.latest is not None and step >= t.latest])

    def _moment(self, moment: str, count: int) -> None:
        self._begin([t for t in self._waiting if (t.moment, t.nth) == (moment, count)])

    def _begin(self, due: list[Trouble]) -> None:
        for trouble in due:
            self._waiting.remove(trouble)
            if trouble.delay:
                asyncio.get_running_loop().call_later(trouble.delay, self._strike, trouble)
            else:
                self._strike(trouble)

    def _strike(self, trouble: Trouble) -> None:
        assert self.run is not None, "there is a run to trouble"
        acts = {
            "service": self._service,
            "bus": self._bus,
            "stall": self._stall,
            "disk": self._disk,
            "clock": self._clock,
            "cut": self._network,
            "part": self._network,
            "narrow": self._network,
        }
        try:
            if acts[trouble.kind](self.run, trouble):
                self.done.append(str(trouble))
                log.warning("chaos: %s", trouble)
        except (ConfigError, OSError) as error:
            log.warning("chaos: %s could not be done: %s", trouble, error)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def undo() -> None:
            self._undo.pop(undo, None)
            with contextlib.suppress(ConfigError, OSError):
                act()

        self._undo[undo] = asyncio.get_running_loop().call_later(seconds, undo)

    # -- acts: each says whether there was anything to do -------------------------------------------

    def _service(self, run: LocalRun, trouble: Trouble) -> bool:
        child = run.services.get(trouble.target)
        if child is None or child.exit is not None:
            return False
        child.kill()
        return True

    def _bus(self, run: LocalRun, trouble: Trouble) -> bool:
        return self._signal_bus(run, signal.SIGKILL)

    def _stall(self, run: LocalRun, trouble: Trouble) -> bool:
        if not self._signal_bus(run, signal.SIGSTOP):
            return False

        def go_on() -> None:
            self._signal_bus(run, signal.SIGCONT)

        self._later(trouble.seconds, go_on)
        return True

    def _signal_bus(self, run: LocalRun, number: signal.Signals) -> bool:
        if run.server is None or run.server.pid is None or not run.server.running:
            return False
        os.kill(run.server.pid, number)
        return True

    def _disk(self, run: LocalRun, trouble: Trouble) -> bool:
        disk.fill(run.run_dir.path)
        self._later(trouble.seconds, lambda: disk.empty(run.run_dir.path))
        return True

    def _clock(self, run: LocalRun, trouble: Trouble) -> bool:
        self._ground.set_clock(trouble.target, trouble.seconds)
        return True

    def _network(self, run: LocalRun, trouble: Trouble) -> bool:
        network = self._ground.network
        one, _, other = trouble.target.partition("+")
        names = (one,) if trouble.kind == "cut" else (one, other)
        if network is None or not _are_there(run, *names):
            return False
        acts: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
            "cut": (network.cut, network.mend),
            "part": (network.part, network.join),
            "narrow": (network.narrow, network.widen),
        }
        begin, end = acts[trouble.kind]
        begin(*names)
        self._later(trouble.seconds, lambda: end(*names))
        return True


def _are_there(run: LocalRun, *names: str) -> bool:
    """These machines' programs run."""
    children = [run.machines.get(name) for name in names]
    return all(child is not None and child.exit is None for child in children)
