"""The recorder: what a rank is is seen, and what crosses its border kept, in its first committed steps.

It watches live calls complete (:class:`~trainmover.ccl.calls.Tap`) and notes what enters the rank's
signature; results of calls that cross the machine's border are copied to host memory.  At each boundary
the phase is kept, or dropped when the step was void.  After the last one the recorder takes itself out of
the way: nothing is watched afterwards.  Whether the copies are wanted is known when the ranks' roles are:
one machine of each role then writes its own (:meth:`write`), all others drop them (:meth:`drop`).  Where it
cannot be written for the moment (a disk that is full), it is tried again for some minutes: without it no
spare can ever be warm in that role.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch

from trainmover.ccl.calls import Call, GroupInfo
from trainmover.sandbox import recording
from trainmover.sandbox.recording import Entry, Phase
from trainmover.sandbox.signature import Seen, seen, signature

log = logging.getLogger(__name__)

MIB = 1024**2

LASTING = (
    FileExistsError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    TypeError,
    ValueError,
)
"""Errors of a place that will be no better in a minute."""
AGAIN_SECONDS, AGAIN_MOST = 0.5, 15.0
"""Pauses between attempts to write: short at first, then ever longer."""
GIVE_UP_SECONDS = 600.0
"""After that no attempt is begun."""


class Recorder:
    """Watches phases 0 to ``steps``.

    Args:
        steps: number of committed steps after the start-up phase.
        rank: tells this process's rank.
        limit: most bytes of results that are kept; beyond, all are dropped and there is no recording.
    """

    def __init__(self, steps: int, rank: Callable[[], int], limit: int = 2**63) -> None:
        self.steps, self.limit = steps, limit
        self._rank = rank
        self._lock = threading.Lock()
        self._seen: list[Seen] = []
        self._kept: list[tuple[int, int, Entry, list[torch.Tensor]]] = []
        self._bytes = self._phase_bytes = 0
        self._given_up = ""
        self._calls: list[list[Seen]] = []
        self._phases: list[Phase] = []
        self._messages: tuple[int, int, int] | None = None

    # -- watching ------------------------------------------------------------------------------

    def saw(self, group: GroupInfo, call: Call) -> None:
        """Note a call and keep its results. Calls may complete in another order than they were made in."""
        me = group.ranks.index(self._rank())
        what = seen(group, call, me)
        tensors: list[torch.Tensor] = []
        if not call.inside and not self._given_up:
            tensors = [host_copy(tensor) for tensor in call.outputs]
        source = call.result if isinstance(call.result, int) else -1
        entry = Entry(group.ordinal, call.name, call.detail, len(call.outputs), source)
        with self._lock:
            self._seen.append(what)
            if what.message:
                place = (group.ordinal, me, len(group.ranks))
                self._messages = min(self._messages or place, place)
            if not call.inside:
                self._keep(call.number, entry, tensors)

    def _keep(self, number: int, entry: Entry, tensors: list[torch.Tensor]) -> None:
        if self._given_up:
            return
        self._phase_bytes += sum(tensor.nbytes for tensor in tensors)
        self._kept.append((entry.group, number, entry, tensors))
        if self._bytes + self._phase_bytes > self.limit:
            self._given_up = (
                f"the results of its first {self.steps} steps take more than the limit of "
                f"{self.limit / MIB:.0f} MiB; raise the limit (--recording-limit) or record fewer steps"
            )
            self._kept, self._phases, self._bytes, self._phase_bytes = [], [], 0, 0
            log.warning(
                "rank %d records nothing, so that no standby can be warmed from it: %s",
                self._rank(),
                self._given_up,
            )

    def drop_phase(self) -> None:
        """The step was void: forget what it brought."""
        with self._lock:
            self._seen, self._kept, self._phase_bytes = [], [], 0

    def end_phase(self) -> bool:
        """The phase is committed. False when it was the last one and nothing more is watched."""
        with self._lock:
            kept = sorted(self._kept, key=lambda item: item[:2])
            self._calls.append(self._seen)
            self._bytes += self._phase_bytes
            self._seen, self._kept, self._phase_bytes = [], [], 0
            if not self._given_up:
                entries = tuple(entry for _, _, entry, _ in kept)
                self._phases.append(Phase(entries, tuple(t for *_, tensors in kept for t in tensors)))
        return len(self._calls) <= self.steps

    # -- what was seen ---------------------------------------------------------------------------

    def signature(self, sizes: Sequence[int], schema: str) -> str:
        """The rank's signature, from what was seen so far.

        Args:
            sizes: of the groups that there are, in creation order.
            schema: of the tracked state.
        """
        return signature(sizes, self._calls, schema)

    @property
    def phases_seen(self) -> int:
        """Number of phases that are over."""
        return len(self._calls)

    @property
    def stage(self) -> tuple[int, int] | None:
        """Own group rank and size of the first group in which messages were seen."""
        return None if self._messages is None else self._messages[1:]

    @property
    def bytes(self) -> int:
        """What is kept, in bytes."""
        return self._bytes

    # -- what becomes of it ------------------------------------------------------------------------

    def drop(self) -> None:
        """Nobody needs it."""
        self._phases, self._calls, self._bytes = [], [], 0

    def write(
        self, url: str, whole: Callable[[recording.Size], None], failed: Callable[[str], None]
    ) -> threading.Thread | None:
        """Write the recording, on a thread of its own; None when there is nothing to write.

        Args:
            url: where it goes.
            whole: called from that thread once it is whole.
            failed: called with the reason when there will be none.
        """
        phases, self._phases, self._calls = self._phases, [], []
        if not phases:
            failed(self._given_up or "nothing was kept of its first steps")
            return None
        thread = threading.Thread(
            target=self._write, args=(url, phases, whole, failed), name="trainmover-recorder", daemon=True
        )
        thread.start()
        return thread

    @staticmethod
    def _write(
        url: str,
        phases: list[Phase],
        whole: Callable[[recording.Size], None],
        failed: Callable[[str], None],
    ) -> None:
        pause, until = AGAIN_SECONDS, time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                size = recording.write(url, phases)
            except Exception as error:
                if isinstance(error, LASTING) or time.monotonic() > until:
                    log.exception(
                        "the recording in %s could not be written; standbys cannot warm from it", url
                    )
                    failed(f"the recording in {url} could not be written: {error!r}")
                    return
                log.warning("the recording in %s is tried again, it could not be written: %r", url, error)
            else:
                whole(size)
                return
            time.sleep(pause)
            pause = min(AGAIN_MOST, 2 * pause)


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the CPU's memory."""
    if tensor.device.type == "cpu":
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensor.detach().cpu()
