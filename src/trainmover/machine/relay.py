"""The relay: what the bus says, handed to those ranks of this machine that it concerns.

What lives here: which rank hears what, and what is kept for ranks that connect later.  What never
lives here: what the machine itself does about an event (``agent``), processes (``ranks``).

- *switch.prepare* goes to the ranks that train.  Of a spare, only the set of ranks that is warm in the
  role that it is assigned (``standby.assigned``) has a part in a switch; the assignment may be heard
  after the request to prepare.
- *roles.found* goes to the ranks that train: it says who writes its recording.
- *sandbox.peers* is the machine's own: the ranks of one role learn of each other, once all are up.
"""

from __future__ import annotations

from trainmover.events import catalogue as say
from trainmover.machine.ranks import Rank, Ranks


class Relay:
    """Hands events to the ranks of one machine; see the module.

    Attributes:
        role: the role that this spare is assigned; empty for a machine that was launched.
    """

    def __init__(self, machine: str, ranks: Ranks) -> None:
        self.role = ""
        self._machine = machine
        self._ranks = ranks
        self._prepare: say.SwitchPrepare | None = None
        self._roles: say.RolesFound | None = None

    def connected(self, rank: Rank) -> None:
        """A rank can be spoken to: it gets what it has missed."""
        rank.prepared = 0
        self._pass_roles(rank)
        self._pass_prepare(rank)

    def started(self, rank: Rank) -> None:
        """A rank is up; with the last one of a set in the sandbox, all of them are introduced."""
        if not rank.role:
            return
        ranks = self._ranks.of_role(rank.role)
        endpoints = [other.endpoint for other in ranks if other.endpoint is not None]
        if len(endpoints) == len(ranks):
            for other in ranks:
                other.send(say.SandboxPeers(role=rank.role, endpoints=tuple(endpoints)))

    def roles(self, event: say.RolesFound) -> None:
        """Hand on the roles."""
        self._roles = event
        for rank in self._ranks:
            self._pass_roles(rank)

    def assigned(self, event: say.StandbyAssigned) -> None:
        """This spare takes a seat of a certain role."""
        self.role = event.role
        for rank in self._ranks:
            self._pass_prepare(rank)

    def prepare(self, event: say.SwitchPrepare) -> None:
        """Hand on a request to prepare an epoch."""
        self._prepare = event
        for rank in self._ranks:
            self._pass_prepare(rank)

    def over(self, event: say.SwitchCommitted | say.SwitchAborted) -> None:
        """Hand on the end of a switch."""
        prepare = self._prepare
        if prepare is not None:
            committed = isinstance(event, say.SwitchCommitted) and prepare.epoch <= event.epoch
            if committed or prepare.epoch == event.epoch:
                self._prepare = None
        for rank in self._ranks:
            if rank.mode == "live" or rank.role == self.role:
                rank.send(event)

    def forget(self) -> None:
        """All ranks were ended: nothing that was meant for them is kept for others."""
        self._prepare, self.role = None, ""

    def _pass_prepare(self, rank: Rank) -> None:
        prepare = self._prepare
        if prepare is None or rank.generation != prepare.generation or rank.prepared >= prepare.epoch:
            return
        # A spare that shares its name with an old leaver has no part in that switch.
        mine = rank.mode == "live" or (self._machine in prepare.machines and rank.role == self.role)
        if mine and rank.line is not None:
            rank.prepared = prepare.epoch
            rank.send(prepare)

    def _pass_roles(self, rank: Rank) -> None:
        if self._roles is not None and rank.generation == self._roles.generation and rank.mode == "live":
            rank.send(self._roles)
