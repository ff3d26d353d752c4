"""A recording: the results of one rank's calls that cross its machine's border, phase by phase.

Phase 0 is everything before the first step, phase k the k-th step with what follows it up to the next
boundary.  A recording is two files in a folder or at any fsspec URL: ``tensors.bin`` has the contents,
each once however often it was returned (a sharded model is gathered several times in a step), compressed
where a sample shows that it pays; ``index.json``, written last, makes the recording whole: without it
the folder does not count.  Both have checksums, and nothing in them is pickled.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trainmover.ccl.view import as_bytes
from trainmover.errors import JobError

INDEX = "index.json"
TENSORS = "tensors.bin"
FORMAT = 2

ALIGN = 64
"""Contents begin at multiples of this, so that they can be read as any dtype where they lie."""

SAMPLES, SAMPLE_BYTES = 16, 4096
"""So many pieces of this size, spread evenly, are compressed to see whether that pays for the whole."""

PAYS = 0.75
"""Compression pays when the sample shrinks to this part or less."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One call: the group by ordinal, which collective, what had to match, how many result tensors.

    ``source`` is the group rank from which a message of any source came; -1 where there is none.
    """

    group: int
    name: str
    detail: str
    outputs: int
    source: int = -1


@dataclass(frozen=True, slots=True)
class Phase:
    """The calls of one phase, in order, with their results flattened in the same order."""

    entries: tuple[Entry, ...]
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A recording's size.

    Attributes:
        stored: bytes on disk.
        raw, tensors: bytes and number of the results that were kept.
        contents: number of different ones.
    """

    stored: int
    raw: int
    tensors: int
    contents: int


@dataclass
class _Writer:
    """Puts contents one behind the other, each once."""

    file: Any
    at: int = 0
    raw: int = 0
    tensors: int = 0
    blobs: list[list[Any]] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)
    digest: Any = field(default_factory=hashlib.sha256)

    def put(self, tensor: torch.Tensor) -> list[Any]:
        """Store a result; returns its place in the index: content, dtype, shape."""
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        view = as_bytes(flat) if flat.numel() else memoryview(b"")
        key = hashlib.sha256(view).digest()
        self.tensors, self.raw = self.tensors + 1, self.raw + len(view)
        if key not in self.known:
            self.known[key] = len(self.blobs)
            self.blobs.append(self._append(view))
        return [self.known[key], str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]

    def _append(self, view: memoryview) -> list[Any]:
        data: bytes | memoryview = view
        codec = "raw"
        if pays(view):
            data, codec = zlib.compress(view, 1), "zlib"
        self._write(bytes(-self.at % ALIGN))
        blob = [self.at, len(data), len(view), codec]
        self._write(data)
        return blob

    def _write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.at += len(data)


def pays(view: memoryview) -> bool:
    """Whether to compress a content, by a sample of it: an embedding's gradient is zero in places."""
    if len(view) < 256:
        return False
    step = max(SAMPLE_BYTES, len(view) // SAMPLES)
    sample = b"".join(view[at : at + SAMPLE_BYTES] for at in range(0, len(view), step))
    return len(zlib.compress(sample, 1)) <= PAYS * len(sample)


def write(url: str, phases: Iterable[Phase]) -> Size:
    """Write a whole recording.

    Args:
        url: a folder, or an fsspec URL of one.
        phases: in order.

    Raises:
        OSError: the place cannot be written to.
        ImportError: nothing that is installed serves this kind of URL.
    """
    files, folder = _at(url)
    files.makedirs(folder, exist_ok=True)
    index = f"{folder}/{INDEX}"
    if files.exists(index):
        files.rm(index)
    with files.open(f"{folder}/{TENSORS}", "wb") as file:
        writer = _Writer(file)
        records = []
        for phase in phases:
            places = iter([writer.put(tensor) for tensor in phase.tensors])
            records.append(
                [
                    [e.group, e.name, e.detail, e.source, [next(places) for _ in range(e.outputs)]]
                    for e in phase.entries
                ]
            )
    body = {
        "phases": records,
        "blobs": writer.blobs,
        "bytes": writer.at,
        "sha256": writer.digest.hexdigest(),
    }
    text = json.dumps(body, separators=(",", ":"))
    whole = {"format": FORMAT, "sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}
    data = json.dumps(whole, separators=(",", ":")).encode()
    files.pipe_file(index + ".part", data)
    files.mv(index + ".part", index)
    return Size(writer.at + len(data), writer.raw, writer.tensors, len(writer.blobs))


def _at(url: str) -> tuple[Any, str]:
    """The file system that serves a URL, and the path in it."""
    import fsspec  # type: ignore[import-untyped]  # not needed by ranks that neither write nor read one

    found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    return found


class Recording:
    """A recording, read whole; contents stay as they are stored until they are asked for.

    Args:
        url: a folder, or an fsspec URL of one.

    Raises:
        JobError: it is missing, not whole, or not what its checksums say.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            files, folder = _at(url)
            whole = json.loads(files.cat_file(f"{folder}/{INDEX}"))
            body = self._checked(whole)
            self._data = bytearray(files.cat_file(f"{folder}/{TENSORS}"))
        except (OSError, ValueError, ImportError) as error:
            raise JobError(f"no whole recording in {url}: {error}") from error
        found = hashlib.sha256(self._data).hexdigest()
        if len(self._data) != body["bytes"] or found != body["sha256"]:
            raise JobError(f"{url}/{TENSORS} is damaged: its checksum is not the index's")
        self._blobs: list[list[Any]] = body["blobs"]
        self._phases: list[list[list[Any]]] = body["phases"]

    def _checked(self, whole: Any) -> dict[str, Any]:
        kind = whole.get("format") if isinstance(whole, dict) else None
        if kind != FORMAT:
            raise JobError(f"the recording in {self.url} has format {kind}, this version reads {FORMAT}")
        body = whole.get("body")
        text = json.dumps(body, separators=(",", ":"))
        if hashlib.sha256(text.encode()).hexdigest() != whole.get("sha256"):
            raise JobError(f"{self.url}/{INDEX} is damaged: its checksum is not its content's")
        found: dict[str, Any] = body
        return found

    def __len__(self) -> int:
        return len(self._phases)

    def close(self) -> None:
        """Give the contents' memory back."""
        self._data = bytearray()

    def entries(self, phase: int) -> list[tuple[Entry, list[list[Any]]]]:
        """The calls of a phase in order, each with the places of its results for :meth:`tensor`."""
        return [
            (Entry(group, name, detail, len(places), source), places)
            for group, name, detail, source, places in self._phases[phase]
        ]

    def tensor(self, place: Sequence[Any]) -> torch.Tensor:
        """A result; it may share memory with the recording, so copy it."""
        number, dtype, shape = place
        at, stored, size, codec = self._blobs[number]
        kind: torch.dtype = getattr(torch, dtype)
        if not size:
            return torch.empty(shape, dtype=kind)
        if codec == "raw":
            flat = torch.frombuffer(self._data, dtype=torch.uint8, count=size, offset=at)
        else:
            data = zlib.decompress(memoryview(self._data)[at : at + stored], bufsize=size)
            flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return flat.view(kind).reshape(shape)

    def phase(self, number: int) -> Phase:
        """All of a phase at once."""
        calls = self.entries(number)
        tensors = [self.tensor(place) for _, places in calls for place in places]
        return Phase(tuple(entry for entry, _ in calls), tuple(tensors))
