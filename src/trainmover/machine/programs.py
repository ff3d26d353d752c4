"""The programs of a local run: with which command and environment each is started.

What lives here: what a service and a machine are told, and where they run.  What never lives here: when one
is started, and what follows from its end (``supervisor``).

Nothing secret is on a command line: everybody on this computer can read that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainmover import logs
from trainmover.machine.children import Child, Priority, may_come_forward
from trainmover.machine.hosts import Hosts, Place


@dataclass(frozen=True, slots=True)
class Programs:
    """How the programs of one job are started.

    Attributes:
        job: its name on the bus.
        secret: what its links show each other; for machines only.
        slots: ranks per machine.
        hosts: where the programs are.
        logs: folder of their log files.
        address: the bus as a program of a role reaches it.
        link_tls: folder of the certificates for links; None: plain text.
    """

    job: str
    secret: str = field(repr=False)
    slots: int
    hosts: Hosts
    logs: Path
    address: Callable[[str], str]
    link_tls: Path | None = None

    def service(self, name: str) -> Child:
        """Start a service."""
        return self._start(f"service-{name}", name, self.hosts.service(name), "service", name)

    def machine(self, name: str, *, spare: bool = False) -> Child:
        """Start a machine; a spare starts beside training, and stands back until it has joined."""
        priority: Priority = "low" if spare and may_come_forward() else "normal"
        place = self.hosts.machine(name)
        command = ("machine", "--name", name, "--slots", str(self.slots), "--host", place.address)
        return self._start(name, "machine", place, *command, priority=priority)

    def _start(
        self, name: str, role: str, place: Place, *arguments: str, priority: Priority = "normal"
    ) -> Child:
        environment = dict(os.environ) | {
            "TRAINMOVER_BUS": self.address(role),
            "TRAINMOVER_JOB": self.job,
            **place.environment,
        }
        if role == "machine":
            environment["TRAINMOVER_SECRET"] = self.secret
        # Into a file of the run folder, where nobody is disturbed.
        environment.setdefault(logs.LEVEL_VARIABLE, "info")
        if self.link_tls is not None:
            environment["TRAINMOVER_LINK_TLS"] = str(self.link_tls)
        if priority != "normal":
            environment["TRAINMOVER_STAND_BACK"] = "1"
        return Child.start(
            name,
            [*place.prefix, sys.executable, "-m", "trainmover.cli", *arguments],
            env=environment,
            log=self.logs / f"{name}.log",
            own_group=True,
            priority=priority,
        )
