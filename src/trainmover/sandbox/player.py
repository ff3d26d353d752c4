"""The player: answers a joiner's collective calls from a recording.

Calls must come in the recorded order, group by group within a phase; a call that differs says so,
naming both.  Barriers and sends return at once.  Phases follow the shadow steps, so that a joiner
that makes fewer calls at the end of a step does not read the next step's results.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from trainmover.ccl.communicator import Call
from trainmover.errors import JobError
from trainmover.sandbox import recording

UNRECORDED = frozenset({"barrier", "send/recv"})
"""Calls without a result to return when they have no outputs."""


class Player:
    """Plays the recording in ``folder``.

    Raises:
        JobError: the recording is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._phases = recording.read(folder)
        self.lenient = False
        """While True, a call that was not recorded keeps its own values instead of being an error."""
        self._number = -1
        self._calls: dict[str, deque[tuple[recording.Entry, int]]] = {}
        self.next_phase()

    @property
    def steps(self) -> int:
        """Number of shadow steps that the recording carries."""
        return len(self._phases) - 1

    def next_phase(self) -> None:
        """Go on to the next phase; what was not played of the last one is left."""
        self._number += 1
        self._calls = {}
        if self._number >= len(self._phases):
            return
        at = 0
        for entry in self._phases[self._number].entries:
            self._calls.setdefault(entry.group, deque()).append((entry, at))
            at += entry.outputs

    def play(self, group: str, call: Call) -> None:
        """Fill a call's outputs.

        Raises:
            JobError: the recording has another call here, or none.
        """
        waiting = self._calls.get(group)
        if self.lenient and not (waiting and waiting[0][0].name == call.name):
            call.swallow()
            return
        if not waiting:
            if call.name in UNRECORDED and not call.outputs:
                return
            raise JobError(
                f"sandbox: {call.name} ({call.detail}) of group {group!r} in phase {self._number} was not "
                f"recorded ({self.folder}); the script does something else here than on the recorded rank"
            )
        entry, at = waiting.popleft()
        if (entry.name, entry.detail, entry.outputs) != (call.name, call.detail, len(call.outputs)):
            raise JobError(
                f"sandbox: the script calls {call.name} ({call.detail}) of group {group!r} in phase "
                f"{self._number}, the recorded rank called {entry.name} ({entry.detail}); {self.folder}"
            )
        tensors = self._phases[self._number].tensors[at : at + entry.outputs]
        for output, recorded in zip(call.outputs, tensors, strict=True):
            output.detach().copy_(recorded)
