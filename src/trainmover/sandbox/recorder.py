"""The recorder: keeps the results of this rank's collective calls during the first committed steps.

It watches live calls complete (:class:`~trainmover.ccl.communicator.Tap`), copies their results,
and at each boundary either drops the phase (the step was void) or hands it to a writer thread.
After the last phase it takes itself out of the way: recording costs nothing afterwards.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from trainmover.ccl.communicator import Call
from trainmover.sandbox.recording import Entry, Phase, write_index, write_phase

log = logging.getLogger(__name__)


class Recorder:
    """Records phases 0 to ``steps`` into ``folder``.

    Args:
        folder: where the recording goes.
        steps: number of committed steps to record after the start-up phase.
        whole: called from the writer thread with the size in bytes once the recording is whole.
    """

    def __init__(self, folder: Path, steps: int, whole: Callable[[int], None]) -> None:
        self.folder, self.steps = folder, steps
        self._whole = whole
        self._lock = threading.Lock()
        self._seen: list[tuple[int, Entry, list[torch.Tensor]]] = []
        self._phase = 0
        self._todo: queue.SimpleQueue[Phase | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="trainmover-recorder", daemon=True)
        self._thread.start()

    def saw(self, group: str, call: Call) -> None:
        """Keep one call's results. Calls may complete in another order than they were made in."""
        entry = Entry(group, call.name, call.detail, len(call.outputs))
        tensors = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in call.outputs]
        with self._lock:
            self._seen.append((call.number, entry, tensors))

    def drop_phase(self) -> None:
        """The step was void: forget what it brought."""
        with self._lock:
            self._seen = []

    def end_phase(self) -> bool:
        """The phase is committed. False when it was the last one and nothing more is wanted."""
        with self._lock:
            seen, self._seen = sorted(self._seen, key=lambda item: item[0]), []
        entries = tuple(entry for _, entry, _ in seen)
        phase = Phase(entries, tuple(tensor for _, _, tensors in seen for tensor in tensors))
        self._todo.put(phase)
        self._phase += 1
        if self._phase > self.steps:
            self._todo.put(None)
            return False
        return True

    def _write(self) -> None:
        records: list[dict[str, object]] = []
        try:
            while (phase := self._todo.get()) is not None:
                records.append(write_phase(self.folder, len(records), phase))
            self._whole(write_index(self.folder, records))
        except Exception:
            log.exception(
                "the recording in %s could not be written; standbys cannot warm from it", self.folder
            )
