"""The folder of checkpoints: what is in it, when one counts, and how old ones go.

    CHECKPOINTS/
      step-00000040/              a whole checkpoint: the state after 40 committed steps
        manifest.json             written last; says what belongs to it, and the checksum of every part
        rank-00003.distcp ...     tensors, in the format of torch.distributed.checkpoint
        values.bin                what is small: shared and private values of every rank
        .metadata                 for other readers of that format; ours does not read it
      step-00000060.g1.e3.part/   one that generation 1 is writing in its epoch 3, or gave up

A checkpoint counts when its manifest is there and is what its own checksum says.  In a folder it also gets
its name last, by one rename, so a kill at any instant leaves either a whole one or a ``.part``.  At a URL
of fsspec, where a rename is not one act, the manifest alone decides.

What lives here: names, files and their order.  What never lives here: tensors, ranks, agreement.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmover.errors import JobError

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
METADATA = ".metadata"
VALUES = "values.bin"
NAME = re.compile(r"step-(?P<step>\d{8,})(\.g\d+(\.e\d+)?)?")
PART = re.compile(r"step-(?P<step>\d{8,})\.g\d+(\.e\d+)?\.part")


class DamagedError(JobError):
    """A checkpoint is not what its checksums say; the one before it may be."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a whole checkpoint says of itself.

    Attributes:
        folder: where it is.
        step: committed steps.
        job: the job that made it.
        world_size: that job's number of ranks.
        period: ranks at this distance had equal state; ``world_size`` when no two had.
        tensors: by key: dtype, shape, whether it is a shard of a distributed tensor, kind of device, and its
            chunks (offsets, sizes, file, where in it, bytes, SHA-256).
        variants: by name the ranks that shared each of its contents, for names that had several.
        values: by rank, where in ``values.bin`` its values are, their bytes and SHA-256.
    """

    folder: str
    step: int
    job: str
    generation: int
    world_size: int
    period: int
    tensors: dict[str, dict[str, Any]]
    variants: dict[str, list[list[int]]]
    values: list[list[Any]]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(chunk[4] for entry in self.tensors.values() for chunk in entry["chunks"])


class Shelf:
    """The checkpoints in one folder, or at one URL.

    Args:
        url: a folder, or an fsspec URL of one; it need not exist.

    Raises:
        JobError: nothing that is installed serves this kind of URL.
    """

    def __init__(self, url: str) -> None:
        import fsspec  # type: ignore[import-untyped]  # not needed by ranks without checkpoints
        from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

        self.url = url
        try:
            self.files, self.root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise JobError(f"checkpoints cannot be kept at {url}: {error}") from error
        self.local = isinstance(self.files, LocalFileSystem)

    # -- one that is being written -------------------------------------------------------------

    def part(self, step: int, generation: int, epoch: int) -> str:
        """Where a checkpoint is written; other generations and epochs have folders of their own."""
        name = f"{self.root}/step-{step:08d}.g{generation}.e{epoch}"
        return f"{name}.part" if self.local else name

    def begin(self, folder: str) -> None:
        """Make the folder of :meth:`part`."""
        self.files.makedirs(folder, exist_ok=True)

    def put(self, path: str, data: bytes) -> None:
        """Write a small file that others wait for: it is there whole, or not at all."""
        self.files.pipe_file(f"{path}.new" if self.local else path, data)
        if self.local:
            os.replace(f"{path}.new", path)

    def get(self, path: str) -> bytes | None:
        """A file's content; None while it is not there."""
        try:
            found: bytes = self.files.cat_file(path)
        except FileNotFoundError:
            return None
        return found

    def names(self, folder: str) -> set[str]:
        """Names in a folder now."""
        self.files.invalidate_cache()
        try:
            return {entry.rstrip("/").rpartition("/")[2] for entry in self.files.ls(folder, detail=False)}
        except FileNotFoundError:
            return set()

    def sync(self, path: str) -> None:
        """Let a file, or the names in a folder, survive a loss of power."""
        if self.local:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def publish(self, folder: str, body: dict[str, Any]) -> str:
        """Make what is in ``folder`` a whole checkpoint; returns where it is.

        One of this step that is whole already stays.  It was made in an epoch before, or before everything
        was lost and this step done again: it holds the same.
        """
        if (there := self.of_step(body["step"])) is not None:
            self._remove(folder)
            return there
        text = json.dumps(body, separators=(",", ":"), sort_keys=True)
        whole = {"format": FORMAT, "sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}
        path = f"{folder}/{MANIFEST}"
        self.put(path, json.dumps(whole, separators=(",", ":"), sort_keys=True).encode())
        if not self.local:
            return folder
        self.sync(path)
        self.sync(folder)
        final = f"{self.root}/step-{body['step']:08d}"
        if os.path.exists(final):
            self.put_aside(final)
        os.rename(folder, final)
        self.sync(self.root)
        return final

    def drop(self, folder: str, names: list[str]) -> None:
        """Remove files of a folder, as far as they are there."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.files.rm_file(f"{folder}/{name}")

    # -- those that are there ------------------------------------------------------------------

    def of_step(self, step: int) -> str | None:
        """Where the whole one of a step is; None: there is none."""
        for name in sorted(self.names(self.root)):
            found = NAME.fullmatch(name)
            if found is not None and int(found["step"]) == step and self._read(f"{self.root}/{name}"):
                return f"{self.root}/{name}"
        return None

    def whole(self) -> list[Manifest]:
        """The whole checkpoints, newest first."""
        found = [self._read(f"{self.root}/{name}") for name in self.names(self.root) if NAME.fullmatch(name)]
        return sorted((m for m in found if m is not None), key=lambda m: (-m.step, m.folder))

    def _read(self, folder: str) -> Manifest | None:
        try:
            data = self.get(f"{folder}/{MANIFEST}")
        except OSError as error:
            log.warning("the checkpoint %s cannot be read: %s", folder, error)
            return None
        if data is None:
            return None
        try:
            whole = json.loads(data)
            body = whole["body"]
            text = json.dumps(body, separators=(",", ":"), sort_keys=True)
            right = hashlib.sha256(text.encode()).hexdigest() == whole["sha256"]
            if whole["format"] != FORMAT:
                log.warning("%s has format %s; this version reads %d", folder, whole["format"], FORMAT)
                return None
            if not right:
                log.warning("%s/%s is damaged: its checksum is not its content's", folder, MANIFEST)
                return None
            return Manifest(folder=folder, **body)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s/%s is damaged: %r", folder, MANIFEST, error)
            return None

    def trim(self, keep: int, newest: int) -> None:
        """Keep the newest ``keep`` whole ones up to step ``newest``; what was given up before goes, too."""
        there = [manifest for manifest in self.whole() if manifest.step <= newest]
        for manifest in there[max(1, keep) :]:
            self.drop(manifest.folder, [MANIFEST])
            self._remove(manifest.folder)
        self.clear_parts(newest)

    def clear_parts(self, before: int, but: str = "") -> None:
        """Remove what was given up in the writing, of steps up to ``before``."""
        for name in self.names(self.root):
            found = PART.fullmatch(name) or (None if self.local else NAME.fullmatch(name))
            folder = f"{self.root}/{name}"
            if found is None or int(found["step"]) > before or folder == but:
                continue
            if MANIFEST not in self.names(folder) or PART.fullmatch(name):
                self._remove(folder)

    def put_aside(self, folder: str) -> None:
        """A damaged checkpoint does not count any more; it stays for whoever wants to look."""
        if not self.local:
            self.drop(folder, [MANIFEST])
            return
        aside = Path(f"{folder}.damaged")
        with contextlib.suppress(OSError):
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(folder, aside)

    def _remove(self, folder: str) -> None:
        try:
            self.files.rm(folder, recursive=True)
        except OSError as error:
            log.warning("the old checkpoint %s could not be removed: %s", folder, error)
