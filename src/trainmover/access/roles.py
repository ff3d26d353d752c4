"""The roles: every kind of program on a job's bus, and what it says and hears.

What lives here: one table.  What a service says and hears is not written down a second time: it is
its core's own ``SAYS`` and areas, what every shell says beside its core, and what the service's
drivers say.  A role is also the name of a user on the bus.

Least permission, in one sentence each:

- a *service* says what its core decides and nothing else;
- a *machine* reports about itself and its ranks, and decides nothing;
- an *operator* makes the log, submits jobs and asks for moves;
- a *monitor* answers health requests, and otherwise only reads;
- a *reader* only reads, and cannot leave anything behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainmover.events import catalogue as say
from trainmover.events.catalogue import Event
from trainmover.machine.agent import AREAS as MACHINE_AREAS
from trainmover.machine.says import MACHINE_SAYS
from trainmover.services import SERVICES
from trainmover.services.core import Decider
from trainmover.services.leases import LeaseDriver
from trainmover.services.shell import SHELL_SAYS

EVERYTHING: Final = ">"
"""In :attr:`Role.hears`: whatever is said in the job."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of program.

    Attributes:
        name: of the role, and of its user on the bus.
        about: what it is, for people.
        says: events that it may publish.
        hears: areas, type names of un-journalled events, or :data:`EVERYTHING`.
        creates: may make the job's log.
        probes: may ask machines whether they are there.
        probed: answers such questions.
        serves: answers requests of NATS' service protocol (``$SRV``).
        asks: may send such requests.
    """

    name: str
    about: str
    says: frozenset[type[Event]] = frozenset()
    hears: tuple[str, ...] = (EVERYTHING,)
    creates: bool = False
    probes: bool = False
    probed: bool = False
    serves: bool = False
    asks: bool = False


def service_role(name: str) -> Role:
    """The role of one of the services, from its tables."""
    service = SERVICES[name]
    core = service.core()
    assert isinstance(core, Decider), "all services are deciders"
    says = {*core.SAYS, *SHELL_SAYS}
    hears = {*core.areas, "timer", "journal"}
    probes = say.MachineProbed in core.HEARS
    if probes:
        says.add(say.MachineProbed)
    if LeaseDriver in service.drivers:
        says |= LeaseDriver.SAYS
        hears.add(say.Heartbeat.type)
    return Role(
        name,
        f"the {name} service",
        says=frozenset(says),
        hears=tuple(sorted(hears)),
        probes=probes,
        serves=True,
    )


ROLES: Final[dict[str, Role]] = {
    role.name: role
    for role in (
        *(service_role(name) for name in SERVICES),
        Role(
            "machine",
            "a machine program and, through it, its ranks",
            says=MACHINE_SAYS,
            hears=MACHINE_AREAS,
            probed=True,
        ),
        Role(
            "operator",
            "people and programs that submit jobs and ask for moves",
            says=frozenset({say.JobSubmitted, say.JobFailed, say.MoveRequested, say.DeadLetter}),
            creates=True,
            asks=True,
        ),
        Role("monitor", "the monitor", serves=True),
        Role("reader", "whoever subscribes from outside"),
    )
}
"""The roles by name."""
