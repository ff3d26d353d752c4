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

When a machine is lost in the middle, its part never comes.  The others hear of it from the switch
(:meth:`Checkpointer.lost`): what it had not written they do not wait for, and the first of them says that
there will be no such checkpoint.  A rank that cannot do its part (a full disk, or it still works on the one
before) says so in an empty file ``failed-R``, for which a full disk has room, too.  Whoever begins the next
one removes what is left.  Where a switch meets a step that has a checkpoint, all ranks of the new epoch make
it, in a folder of their own, whatever had become of it in the epoch before (``resume``).  Nothing that goes
wrong here stops training: it is said, and the last whole checkpoint stays what it was.
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
from dataclasses import replace
from typing import Any

import msgpack
import torch

from trainmover.events.catalogue import CheckpointFailed, CheckpointSaved, Event
from trainmover.training.attempt import Attempt, GivenUpError, LostError, Snapshot
from trainmover.training.manifest import file_of, metadata_of, table_of, values_of
from trainmover.training.pieces import Piece, merge, pieces
from trainmover.training.shelf import METADATA, VALUES, Shelf
from trainmover.training.state import TrackedState, tensor_bytes

log = logging.getLogger(__name__)

END_SECONDS = 120.0
"""Longest wait for a checkpoint at the end of the job."""
LEAVE_SECONDS = 20.0
"""Longest wait for the own part of one where the machine is to leave the job."""
FAILED, LOST = "failed-", "lost-"
"""Begin the names of the files by which a rank says that it cannot do its part, or that another's is lost."""


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
        self._telling: list[threading.Thread] = []

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
                self._beside(self._mark, step, epoch, f"{FAILED}{rank}")
                return False
            before.given_up.set()
            self._buffers = {}  # the thread may still read them
        began = time.monotonic()
        held = [(piece, self._copy(piece.name, tensor)) for piece, tensor in pieces(tracked, rank)]
        shared = tracked.shared_values()
        copying = time.monotonic() - began
        snapshot = Snapshot(step, rank, world_size, held, shared, private, copying, absent or {})
        self._attempt = Attempt(snapshot, epoch)
        self._beside(self._make, self._attempt, before)
        return True

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The content in host memory, in the memory of the snapshot before where that fits."""
        kept = self._buffers.get(name)
        if kept is None or kept.dtype != tensor.dtype or kept.shape != tensor.shape:
            kept = self._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        with torch.no_grad():
            return kept.copy_(tensor)

    def lost(self, machines: Mapping[int, str]) -> None:
        """Ranks have left the job without a word: nobody waits for their parts of the last one.

        The first rank that took part in it and is still there says so, where it does not become whole.

        Args:
            machines: by rank, the machine that it was on.
        """
        attempt = self._attempt
        if attempt is None or attempt.outcome == "failed":
            return
        shot = attempt.snapshot
        gone = {rank: machine for rank, machine in machines.items() if rank in shot.present}
        attempt.lost = {**attempt.lost, **gone}
        if gone and shot.rank == next(rank for rank in shot.present if rank not in attempt.lost):
            self._telling.append(self._beside(self._say_lost, attempt, gone))

    def leave(self, limit: float = LEAVE_SECONDS) -> None:
        """Before the machine leaves the job: let the own part of the last one be written."""
        attempt = self._attempt
        if attempt is not None and not attempt.over.wait(limit):
            self._say_failed(attempt, f"its machine leaves, and did not wait longer than {limit:g} s")
            self._mark(attempt.snapshot.step, attempt.epoch, f"{FAILED}{attempt.snapshot.rank}")
            attempt.given_up.set()

    def finish(self, broken: Callable[[], bool], limit: float = END_SECONDS) -> None:
        """Wait until the last one is written and lost ones are told, at the end; not for lost machines."""
        attempt, until = self._attempt, time.monotonic() + limit
        while attempt is not None and not attempt.over.wait(0.05):
            if time.monotonic() > until or (attempt.waiting and broken()):
                attempt.given_up.set()
                return
        for telling in self._telling:
            telling.join(max(0.0, until - time.monotonic()))

    # -- the work (thread) ---------------------------------------------------------------------

    def _beside(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name="trainmover-checkpoint", daemon=True)
        thread.start()
        return thread

    def _make(self, attempt: Attempt, before: Attempt | None) -> None:
        shot = attempt.snapshot
        mark = ""
        try:
            if before is not None:  # given up, but what it writes is not to be cleared away under its hands
                before.over.wait(END_SECONDS)
            self._write(attempt)
            attempt.outcome = "done"
        except GivenUpError as error:
            log.info("rank %d gives up the checkpoint of step %d: %s", shot.rank, shot.step, error)
            attempt.outcome = error.outcome
            mark = LOST if error.outcome == "lost" else FAILED
        except Exception as error:
            attempt.outcome = "failed"
            if not attempt.given_up.is_set():  # else its folder is gone
                log.exception("rank %d cannot write the checkpoint of step %d", shot.rank, shot.step)
                self._say_failed(attempt, f"{type(error).__name__}: {error}")
                mark = FAILED
        finally:
            if mark and not attempt.given_up.is_set():
                self._mark(shot.step, attempt.epoch, f"{mark}{shot.rank}")
            attempt.over.set()

    def _mark(self, step: int, epoch: int, name: str) -> None:
        """Tell the others that this checkpoint comes to nothing, and nobody needs to wait for it."""
        folder = self.shelf.part(step, self.generation, epoch)
        with contextlib.suppress(
            Exception
        ):  # where that fails too, the others wait until the next one is due
            self.shelf.begin(folder)
            self.shelf.files.touch(f"{folder}/{name}")

    def _say_failed(self, attempt: Attempt, reason: str) -> None:
        shot = attempt.snapshot
        self._say(
            CheckpointFailed(machine=self.machine, rank=shot.rank, step=shot.step, reason=reason[:2000])
        )

    def _say_lost(self, attempt: Attempt, gone: Mapping[int, str]) -> None:
        """Say whose loss has cost this checkpoint, unless all that was needed of them is there."""
        attempt.over.wait(END_SECONDS)
        with contextlib.suppress(OSError):
            if attempt.outcome == "failed" or self.shelf.of_step(attempt.snapshot.step) is not None:
                return
        ranks = ", ".join(f"rank {rank} ({machine})" for rank, machine in sorted(gone.items()))
        self._say_failed(attempt, f"lost before it was whole: {ranks}")

    def _names(self, folder: str, rank: int) -> set[str]:
        """What is in the folder, while this rank waits for something there.

        Raises:
            LostError: somebody's part is lost.
            GivenUpError: somebody cannot do his part, or had said so and the folder was removed since.
        """
        names = self.shelf.names(folder)
        if f"index-{rank}" not in names:
            raise GivenUpError("others have given it up, and begun the next one")
        for mark, error, what in (
            (FAILED, GivenUpError, "could not do its part"),
            (LOST, LostError, "misses the part of a rank that was lost"),
        ):
            if ranks := sorted(name.removeprefix(mark) for name in names if name.startswith(mark)):
                raise error(f"rank {ranks[0]} {what}")
        return names

    def _write(self, attempt: Attempt) -> None:
        shot, shelf = attempt.snapshot, self.shelf
        leads = shot.rank == shot.present[0]
        folder = shelf.part(shot.step, self.generation, attempt.epoch)
        if leads:
            shelf.clear_parts(shot.step, but=folder)
        shelf.begin(folder)
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
        rank, first = attempt.snapshot.rank, attempt.snapshot.present[0]
        name = f"plan-{rank}"

        def look() -> bytes | None:
            return self.shelf.get(f"{folder}/{name}") if name in self._names(folder, rank) else None

        keys = msgpack.unpackb(attempt.wait_for(look, "the plan", lambda: [first]))
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
            names = self._names(folder, attempt.snapshot.rank)
            for rank in sorted(missing):
                name = f"{kind}-{rank}"
                data = self.shelf.get(f"{folder}/{name}") if name in names else None
                if data is not None:
                    found[rank] = msgpack.unpackb(data)
                    missing.discard(rank)
            return None if missing else found

        attempt.wait_for(look, f"its {kind}", lambda: missing)
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
