"""The player: answers a joiner's calls that cross its machine's border from a recording.

Calls must come in the recorded order, group by group within a phase; a call that differs says so,
naming both and where.  Barriers and sends return at once.  Phases follow the shadow steps, so that a
joiner that makes fewer calls at the end of a step does not read the next step's results.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from trainmover.ccl.calls import Call, GroupInfo
from trainmover.ccl.tags import MESSAGE
from trainmover.errors import JobError
from trainmover.sandbox.recording import Entry, Recording

UNRECORDED = frozenset({"barrier", MESSAGE})
"""Calls without a result to return when they have no outputs."""

SIZED_BY_DATA = "all_to_all"
"""The collective whose sizes depend on what the data are (a token's expert), so that they may differ."""


class Player:
    """Plays the recording at ``url``.

    Raises:
        JobError: the recording is missing or damaged.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._recording = Recording(url)
        self.lenient = False
        """While True, a call that was not recorded keeps its own values instead of being an error."""
        self._number = -1
        self._calls: dict[int, deque[tuple[Entry, list[list[Any]]]]] = {}
        self._played: dict[int, int] = {}
        self.next_phase()

    @property
    def steps(self) -> int:
        """Number of shadow steps that the recording carries."""
        return len(self._recording) - 1

    def next_phase(self) -> None:
        """Go on to the next phase; what was not played of the last one is left."""
        self._number += 1
        self._calls, self._played = {}, {}
        if self._number < len(self._recording):
            for entry, places in self._recording.entries(self._number):
                self._calls.setdefault(entry.group, deque()).append((entry, places))

    def close(self) -> None:
        """Nothing more is played: give the recording's memory back."""
        self._calls = {}
        self._recording.close()

    def play(self, group: GroupInfo, call: Call) -> None:
        """Fill a call's outputs.

        Raises:
            JobError: the recording has another call here, or none.
        """
        waiting = self._calls.get(group.ordinal)
        if self.lenient and not (waiting and waiting[0][0].name == call.name):
            call.swallow()
            return
        number = self._played[group.ordinal] = self._played.get(group.ordinal, 0) + 1
        if not waiting:
            if call.name in UNRECORDED and not call.outputs:
                return
            raise JobError(
                f"sandbox: {_words(call)}, {self._where(group, number)}, was not recorded ({self.url}); the "
                "script does something else here than on the recorded rank"
            )
        entry, places = waiting.popleft()
        if (entry.name, entry.detail, entry.outputs) != (call.name, call.detail, len(call.outputs)):
            raise JobError(
                f"sandbox: the script calls {_words(call)}, {self._where(group, number)}; the recorded rank "
                f"called {entry.name} ({entry.detail}) with {entry.outputs} results there; {self.url}"
            )
        for output, place in zip(call.outputs, places, strict=True):
            self._fill(output.detach(), self._recording.tensor(place), group, call, number)
        if entry.source >= 0:
            call.result = entry.source

    def _fill(
        self, output: torch.Tensor, recorded: torch.Tensor, group: GroupInfo, call: Call, number: int
    ) -> None:
        if output.dtype == recorded.dtype and output.numel() == recorded.numel():
            output.copy_(recorded.reshape(output.shape))
            return
        if call.name != SIZED_BY_DATA or output.dtype != recorded.dtype:
            raise JobError(
                f"sandbox: {_words(call)}, {self._where(group, number)}, wants "
                f"{tuple(output.shape)} x {output.dtype}; the recorded rank got {tuple(recorded.shape)} x "
                f"{recorded.dtype}; {self.url}"
            )
        flat = torch.zeros(output.numel(), dtype=output.dtype)
        fits = min(output.numel(), recorded.numel())
        flat[:fits] = recorded.reshape(-1)[:fits]
        output.copy_(flat.reshape(output.shape))

    def _where(self, group: GroupInfo, number: int) -> str:
        phase = "start-up" if self._number == 0 else f"shadow step {self._number}"
        return (
            f"call {number} of group {group.name!r} (ranks {group.ranks}) in phase {self._number} ({phase})"
        )


def _words(call: Call) -> str:
    return f"{call.name} ({call.detail})"
