"""Checkpoints beside training: the step waits for a copy to host memory, a thread does the rest.

All ranks take part, and none of them calls another for it: they meet in the checkpoint's folder, so that
what happens to the job's groups meanwhile does not matter to them.

1. Every rank copies its pieces, computes their checksums and says in ``index-R`` what it holds, together
   with its shared and private values.
2. Rank 0 waits for all indexes, finds out what is the same (:func:`~trainmover.training.pieces.merge`) and
   tells each rank in ``plan-R`` what to write: replicas share the work.
3. Every rank writes its ``rank-R.distcp`` and says in ``done-R`` where each piece is.
4. Rank 0 waits for all of it, writes what is common and makes the checkpoint whole
   (:class:`~trainmover.training.shelf.Shelf`); then older ones go.

Where seats are vacant the first rank that is there does what rank 0 does, and adds the private values of
absent ranks, which everybody keeps.  Their tensors are their replicas'; where ranks have different ones it is
not known here whose, and no checkpoint is made until the seats are filled.

When a machine is lost in the middle, its part never comes.  The checkpoint is given up when the next one
is due, and whoever begins the next removes what is left of it.  A rank that cannot do its part says so in an
empty file ``failed-R``, for which a full disk has room, too: the others do not wait for it.  A rank that
still works on one when the next is due leaves that one out.  Nothing that goes wrong here stops training: it
is said, and the last whole checkpoint stays what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
import torch

from trainmover.events.catalogue import CheckpointFailed, CheckpointSaved, Event
from trainmover.training.manifest import file_of, metadata_of, table_of, values_of
from trainmover.training.pieces import Piece, merge, pieces
from trainmover.training.shelf import METADATA, VALUES, Shelf
from trainmover.training.state import TrackedState, tensor_bytes

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 600.0
"""Longest wait for the others' parts of a checkpoint."""
END_SECONDS = 120.0
"""Longest wait for a checkpoint at the end of the job."""
POLL_SECONDS, POLL_MOST = 0.01, 0.5
"""How often to look for what others write: soon at first, then ever less often."""


FAILED = "failed-"
"""Begins the name of the file by which a rank says that it cannot do its part."""


class GivenUpError(Exception):
    """This checkpoint will not be finished."""


@dataclass
class Snapshot:
    """What one rank has at one boundary, in host memory.

    Attributes:
        step: committed steps.
        held: the pieces with copies of their contents.
        copying: seconds that training waited for the copy.
    """

    step: int
    rank: int
    world_size: int
    held: list[tuple[Piece, torch.Tensor]]
    shared: bytes
    private: bytes
    copying: float
    absent: Mapping[int, bytes] = field(default_factory=dict)
    """Private values of ranks that are not there."""

    @property
    def present(self) -> list[int]:
        """Ranks that are there."""
        return [rank for rank in range(self.world_size) if rank not in self.absent]


class Attempt:
    """One checkpoint in the making, at one rank."""

    def __init__(self, snapshot: Snapshot, epoch: int) -> None:
        self.snapshot = snapshot
        self.epoch = epoch
        self.began = time.monotonic()
        self.waiting = False
        self.given_up = threading.Event()
        self.over = threading.Event()

    def wait_for(self, found: Callable[[], Any], what: str) -> Any:
        """Wait until ``found`` returns something.

        Raises:
            GivenUpError: the next checkpoint is due, or it takes too long.
        """
        pause, self.waiting = POLL_SECONDS, True
        until = time.monotonic() + GIVE_UP_SECONDS
        while (result := found()) is None:
            if time.monotonic() > until:
                raise GivenUpError(f"{what} did not come within {GIVE_UP_SECONDS:g} s")
            if self.given_up.wait(pause):
                raise GivenUpError(f"{what} did not come before the next one was due")
            pause = min(POLL_MOST, pause * 1.5)
        self.waiting = False
        return result


class Checkpointer:
    """Makes checkpoints of one rank's state.

    Args:
        shelf: where they go.
        every: committed steps from one to the next.
        keep: how many whole ones stay.
        job: the job's name.
        generation: its start.
        machine: whose rank this is, for what is said.
        say: tells events; called from the thread.
    """

    def __init__(
        self,
        shelf: Shelf,
        *,
        every: int,
        keep: int,
        job: str,
        generation: int,
        machine: str,
        say: Callable[[Event], None],
    ) -> None:
        self.shelf = shelf
        self.every, self.keep = every, keep
        self.job, self.generation, self.machine = job, generation, machine
        self._say = say
        self._attempt: Attempt | None = None
        self._buffers: dict[str, torch.Tensor] = {}

    # -- at the boundary (main thread) ---------------------------------------------------------

    def due(self, step: int, total: int) -> bool:
        """Whether there is one after ``step`` committed steps: each so many, and after the last."""
        return step > 0 and (step % self.every == 0 or step == total)

    def take(
        self,
        step: int,
        rank: int,
        world_size: int,
        tracked: TrackedState,
        private: bytes,
        epoch: int,
        absent: Mapping[int, bytes] | None = None,
    ) -> bool:
        """Copy the state after ``step`` committed steps and write it beside training.

        Args:
            private: the private values as of that step.
            epoch: the membership's.
            absent: private values of the ranks that are not there.

        Returns:
            False when the one before is still being written, and this one is left out.
        """
        before = self._attempt
        if before is not None and not before.over.is_set():
            if not before.waiting and before.epoch == epoch:
                log.warning(
                    "rank %d still writes the checkpoint of step %d; that of step %d is left out",
                    *(rank, before.snapshot.step, step),
                )
                return False
            before.given_up.set()
            self._buffers = {}  # the thread may still read them
        began = time.monotonic()
        held = [(piece, self._copy(piece.name, tensor)) for piece, tensor in pieces(tracked, rank)]
        shared = tracked.shared_values()
        copying = time.monotonic() - began
        snapshot = Snapshot(step, rank, world_size, held, shared, private, copying, absent or {})
        self._attempt = Attempt(snapshot, epoch)
        threading.Thread(
            target=self._make, args=(self._attempt,), name=f"trainmover-checkpoint-{step}", daemon=True
        ).start()
        return True

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The content in host memory, in the memory of the snapshot before where that fits."""
        kept = self._buffers.get(name)
        if kept is None or kept.dtype != tensor.dtype or kept.shape != tensor.shape:
            kept = self._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        with torch.no_grad():
            return kept.copy_(tensor)

    def finish(self, broken: Callable[[], bool], limit: float = END_SECONDS) -> None:
        """Wait until the last one is written, at the end; not for machines that are lost."""
        attempt, until = self._attempt, time.monotonic() + limit
        while attempt is not None and not attempt.over.wait(0.05):
            if time.monotonic() > until or (attempt.waiting and broken()):
                attempt.given_up.set()
                return

    # -- the work (thread) ---------------------------------------------------------------------

    def _make(self, attempt: Attempt) -> None:
        snapshot = attempt.snapshot
        try:
            self._write(attempt)
        except GivenUpError as error:
            log.info("rank %d gives up the checkpoint of step %d: %s", snapshot.rank, snapshot.step, error)
            self._tell_others(attempt)
        except Exception as error:
            if attempt.given_up.is_set():
                return  # its folder is gone
            log.exception("rank %d cannot write the checkpoint of step %d", snapshot.rank, snapshot.step)
            self._say(
                CheckpointFailed(
                    machine=self.machine,
                    rank=snapshot.rank,
                    step=snapshot.step,
                    reason=f"{type(error).__name__}: {error}"[:2000],
                )
            )
            self._tell_others(attempt)
        finally:
            attempt.over.set()

    def _tell_others(self, attempt: Attempt) -> None:
        """This checkpoint comes to nothing; nobody needs to wait for it."""
        shot = attempt.snapshot
        if not attempt.given_up.is_set():
            with contextlib.suppress(Exception):  # where that fails too, the others wait as for a lost rank
                self.shelf.files.touch(f"{self.shelf.part(shot.step, self.generation)}/{FAILED}{shot.rank}")

    def _names(self, folder: str) -> set[str]:
        """What is in the folder.

        Raises:
            GivenUpError: somebody cannot do his part.
        """
        names = self.shelf.names(folder)
        if failed := sorted(name.removeprefix(FAILED) for name in names if name.startswith(FAILED)):
            raise GivenUpError(f"rank {failed[0]} could not do its part")
        return names

    def _write(self, attempt: Attempt) -> None:
        shot, shelf = attempt.snapshot, self.shelf
        leads = shot.rank == shot.present[0]
        if leads:
            shelf.clear_parts(shot.step, but=shelf.part(shot.step, self.generation))
        folder = shelf.begin(shot.step, self.generation)
        known = [
            replace(piece, digest=hashlib.sha256(tensor_bytes(tensor)).hexdigest())
            for piece, tensor in shot.held
        ]
        optimizers = [piece.name for piece in known]
        values = msgpack.packb({"shared": shot.shared, "private": shot.private, "names": optimizers})
        index = {"rows": [piece.row() for piece in known], "values": values}
        shelf.put(f"{folder}/index-{shot.rank}", msgpack.packb(index))
        if leads:
            self._lead(attempt, folder)
        else:
            self._take_part(attempt, folder)

    def _take_part(self, attempt: Attempt, folder: str) -> None:
        rank = attempt.snapshot.rank
        name = f"plan-{rank}"

        def look() -> bytes | None:
            return self.shelf.get(f"{folder}/{name}") if name in self._names(folder) else None

        keys = msgpack.unpackb(attempt.wait_for(look, "the first rank's plan"))
        if not keys:
            return
        tensors = {piece.name: tensor for piece, tensor in attempt.snapshot.held}
        rows = self._write_tensors(f"{folder}/{file_of(rank)}", [(key, tensors[name]) for key, name in keys])
        self.shelf.put(f"{folder}/done-{rank}", msgpack.packb(rows))

    def _write_tensors(self, path: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> list[list[Any]]:
        """Write tensors one after another; returns where each is, its bytes and its checksum."""
        rows: list[list[Any]] = []
        with self.shelf.files.open(path, "wb") as file:
            at = 0
            for key, tensor in tensors:
                stream = io.BytesIO()
                torch.save(tensor, stream)
                data = stream.getbuffer()
                file.write(data)
                rows.append([key, at, len(data), hashlib.sha256(data).hexdigest()])
                at += len(data)
        self.shelf.sync(path)
        return rows

    # -- what rank 0 does for all --------------------------------------------------------------

    def _lead(self, attempt: Attempt, folder: str) -> None:
        shot, shelf = attempt.snapshot, self.shelf
        ranks = shot.present
        indexes = self._collect(attempt, folder, "index", ranks)
        held = {rank: [Piece.of_row(row) for row in indexes[rank]["rows"]] for rank in ranks}
        merged = merge([held[rank] for rank in ranks])
        if shot.absent and merged.variants:
            raise GivenUpError(
                f"ranks {sorted(shot.absent)} are absent, and not all ranks have the same state"
            )
        writes = {ranks[number]: keys for number, keys in merged.writes.items()}
        for rank in ranks:
            shelf.put(f"{folder}/plan-{rank}", msgpack.packb(writes.get(rank, [])))
        self._take_part(attempt, folder)
        done = self._collect(attempt, folder, "done", sorted(writes))
        tensors = table_of(merged.entries, writes, held, done)
        values = [values_of(indexes, shot.absent, rank) for rank in range(shot.world_size)]
        body = {
            "step": shot.step,
            "job": self.job,
            "generation": self.generation,
            "world_size": shot.world_size,
            "period": merged.period,
            "tensors": tensors,
            "variants": merged.variants,
            "values": self._write_values(f"{folder}/{VALUES}", values),
        }
        shelf.put(f"{folder}/{METADATA}", pickle.dumps(metadata_of(tensors)))
        shelf.drop(folder, [f"{kind}-{rank}" for kind in ("index", "plan", "done") for rank in ranks])
        place = shelf.publish(folder, body)
        shelf.trim(self.keep, shot.step)
        size = sum(chunk[4] for entry in tensors.values() for chunk in entry["chunks"])
        self._say(
            CheckpointSaved(
                generation=self.generation,
                step=shot.step,
                path=place,
                bytes=size,
                copy_seconds=shot.copying,
                seconds=time.monotonic() - attempt.began,
            )
        )

    def _collect(self, attempt: Attempt, folder: str, kind: str, ranks: Iterable[int]) -> dict[int, Any]:
        """What each of these ranks says in its file of a kind."""
        found: dict[int, Any] = {}
        missing = set(ranks)

        def look() -> dict[int, Any] | None:
            names = self._names(folder)
            for rank in sorted(missing):
                name = f"{kind}-{rank}"
                data = self.shelf.get(f"{folder}/{name}") if name in names else None
                if data is not None:
                    found[rank] = msgpack.unpackb(data)
                    missing.discard(rank)
            return None if missing else found

        attempt.wait_for(look, f"the {kind} of other ranks")
        return found

    def _write_values(self, path: str, values: Iterable[bytes]) -> list[list[Any]]:
        rows: list[list[Any]] = []
        at = 0
        with self.shelf.files.open(path, "wb") as file:
            for data in values:
                file.write(data)
                rows.append([at, len(data), hashlib.sha256(data).hexdigest()])
                at += len(data)
        self.shelf.sync(path)
        return rows
