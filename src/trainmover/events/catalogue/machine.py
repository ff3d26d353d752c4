"""Events about machines: they come and go, are launched, suspected and declared dead."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainmover.events.catalogue.base import Count, Event, MachineName, Machines, Name, Seconds, Text


class MachineJoined(Event):
    """A machine program is ready for work (machine). ``incarnation`` names this process life."""

    type: ClassVar[str] = "machine.joined"

    machine: MachineName
    incarnation: Name
    host: Annotated[str, Field(min_length=1, max_length=255)]
    slots: Annotated[int, Field(ge=1, le=64)]
    pid: Count


class MachineLeft(Event):
    """A machine ended in good order (machine): it was released, fenced or told to stop."""

    type: ClassVar[str] = "machine.left"

    machine: MachineName
    incarnation: Name
    reason: Text


class MachineLaunch(Event):
    """Request: start fresh ranks here, ending any that run (planner).

    ``generation`` counts starts from nothing: a failure before the first committed step has
    nothing to keep, so everything starts again.
    """

    type: ClassVar[str] = "machine.launch"

    machine: MachineName
    incarnation: Name
    position: Count
    world_size: Annotated[int, Field(ge=1)]
    ranks_per_machine: Annotated[int, Field(ge=1, le=64)]
    generation: Count
    record: bool
    """True when this machine's ranks record their collective results for standbys."""


class MachineSuspected(Event):
    """Something speaks against a machine, not enough to act on (health)."""

    type: ClassVar[str] = "machine.suspected"

    machine: MachineName
    incarnation: Name
    reason: Text


class MachineFailed(Event):
    """A machine is declared dead: from now on it is fenced, whether it runs or not (health)."""

    type: ClassVar[str] = "machine.failed"

    machine: MachineName
    incarnation: Name
    reason: Text
    evidence: tuple[str, ...] = ()
    unreached: Machines = ()
    """It runs, but it and these did not reach each other: it joins again once it reaches them."""


class MachineProbed(Event):
    """Answer to a probe by the health service's shell: ``absent`` means that nobody listens."""

    type: ClassVar[str] = "machine.probed"

    machine: MachineName
    incarnation: Name
    answer: Literal["alive", "absent", "silent"]


class LeaseExpired(Event):
    """A machine's heartbeats stopped for longer than its adaptive limit (health's shell)."""

    type: ClassVar[str] = "lease.expired"

    machine: MachineName
    incarnation: Name
    silent_seconds: Seconds
    limit_seconds: Seconds


class LeaseReturned(Event):
    """A machine whose lease had expired beats again (health's shell)."""

    type: ClassVar[str] = "lease.returned"

    machine: MachineName
    incarnation: Name
    silent_seconds: Seconds


class LeaseStalled(Event):
    """A machine beats, but one of its rank processes is stopped by the system (health's shell)."""

    type: ClassVar[str] = "lease.stalled"

    machine: MachineName
    incarnation: Name
    slot: Count
    state: Text
