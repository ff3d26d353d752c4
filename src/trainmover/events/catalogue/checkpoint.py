"""Events about state that is kept once more: on disk (checkpoints), or on another machine (mirrors)."""

from __future__ import annotations

from typing import ClassVar

from trainmover.events.catalogue.base import Count, Event, MachineName, Seconds, Text


class CheckpointSaved(Event):
    """A checkpoint is whole and counts from now on (rank 0)."""

    type: ClassVar[str] = "checkpoint.saved"

    generation: Count
    step: Count
    """Committed steps that it holds."""
    path: Text
    bytes: Count
    """Of the tensors, on disk."""
    copy_seconds: Seconds
    """How long training waited for it."""
    seconds: Seconds
    """From the boundary until it was whole, beside training."""


class CheckpointFailed(Event):
    """This checkpoint will not be; the last whole one stays (the rank that could not write its part, or the
    first one that is there when another was lost)."""

    type: ClassVar[str] = "checkpoint.failed"

    machine: MachineName
    rank: Count
    step: Count
    reason: Text


class CheckpointLoaded(Event):
    """All ranks of a generation go on from this checkpoint (rank 0)."""

    type: ClassVar[str] = "checkpoint.loaded"

    generation: Count
    step: Count
    path: Text
    refused: tuple[Text, ...] = ()
    """Why newer ones were refused."""


class MirrorWhole(Event):
    """A rank's state, which no other has, is in the memory of its guardian, too, from this step on (rank).

    Said once by each process that mirrors its state.
    """

    type: ClassVar[str] = "mirror.whole"

    machine: MachineName
    rank: Count
    guardian: Count
    """The rank that keeps it; it holds two images and the changes of one step."""
    generation: Count
    step: Count
    """Committed steps."""
    image_bytes: Count
    """Sent beside each step's compute."""
    changes_bytes: Count
    """Sent at each vote."""


class MirrorFailed(Event):
    """A rank's state, which no other has, cannot be mirrored: a loss of its machine loses it (rank)."""

    type: ClassVar[str] = "mirror.failed"

    machine: MachineName
    rank: Count
    generation: Count
    reason: Text
