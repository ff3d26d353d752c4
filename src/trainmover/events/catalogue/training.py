"""Events about training itself: its start, its steps, and the pulse of its machines."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from trainmover.events.catalogue.base import Count, Event, GroupGrid, MachineName, Name, Seconds


class TrainingStarted(Event):
    """The first step of this generation is committed on every rank: from here on nothing is lost (rank 0)."""

    type: ClassVar[str] = "training.started"

    generation: Count
    epoch: Count
    step: Count
    groups: dict[Name, tuple[Count, ...]]
    """Process groups by name, as global ranks."""
    grids: Annotated[tuple[GroupGrid, ...], Field(max_length=16)] = ()
    """Process groups that lie regularly; they are not listed in ``groups``."""


class TrainingResumed(Event):
    """The first step after a switch is committed (rank 0)."""

    type: ClassVar[str] = "training.resumed"

    epoch: Annotated[int, Field(ge=1)]
    step: Count


class StepSample(Event):
    """One committed step as one machine saw it (machine's lowest rank); core NATS only."""

    type: ClassVar[str] = "sample.step"
    journalled: ClassVar[bool] = False

    machine: MachineName
    rank: Count
    epoch: Count
    step: Count
    seconds: Seconds
    metrics: dict[str, float]
    peak_rss_bytes: Count


class Heartbeat(Event):
    """A machine is alive, and what it sees; core NATS only."""

    type: ClassVar[str] = "sample.beat"
    journalled: ClassVar[bool] = False

    machine: MachineName
    incarnation: Name
    sequence: Count
    ranks: tuple[str, ...]
    """State of each rank process by slot: starting, running, stopped, exited."""
    step: Count
    cpu_percent: Seconds
    rss_bytes: Count
    gpus: tuple[dict[str, float], ...] = ()
