"""A group that can be changed while it is there: its timeout, and its members.

Both roads share it.  Members are changed through torch's own experimental calls (torch 2.14 and newer).
Only a standalone process has a :class:`~trainmover.ccl.membership.Membership`; in a job it is the planner
that replaces members.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future

from trainmover.ccl.collectives import Collectives
from trainmover.ccl.communicator import Call
from trainmover.ccl.membership import Membership
from trainmover.ccl.memory import Memory
from trainmover.errors import LinkError


class Reconfigurable(Collectives):
    """The methods of torch's reconfigure API."""

    _membership: Membership | None = None

    @property
    def supports_reconfigure(self) -> bool:
        """True outside a job."""
        return self._membership is not None

    def get_reconfigure_handle(self) -> str:
        """What the other members of the next group need of this process, as of now."""
        return self._members().handle()

    def reconfigure(self, opts: Any) -> dist.Work:
        """Go into a group of exactly the processes whose handles are given."""
        return self._members().reconfigure(opts)

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on the group's calls may take this long (for ``dist.set_timeout``)."""
        self._communicator.groups[self._key].limit = timeout.total_seconds()

    def abort(self) -> None:
        """End every call of the process with an error, here and at the peers, until a reconfigure.

        In a job there is nothing to abort: a broken epoch ends its calls by itself.
        """
        if self._membership is not None:
            self._membership.abort()

    def _members(self) -> Membership:
        if self._membership is None:
            raise LinkError("reconfigure: this process is part of a job, whose planner replaces members")
        return self._membership

    def _begin(self, call: Call, memory: Memory, key: str | None = None) -> Future[Any]:
        if self._membership is not None and self._membership.given is not None:
            raise LinkError(f"{call.name}: the group has no members yet; reconfigure it first")
        return super()._begin(call, memory, key)
