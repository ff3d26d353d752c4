"""The cluster as its events tell it: a pure reducer from events to what a person wants to know.

What lives here: :class:`ClusterView`, which takes events in.  What never lives here: clocks, I/O, colours;
what it holds is in ``state``, what each event changes in ``changes``.  The live display, ``trainmover
status`` and the report feed it the same events, from the bus or from a recorded log, so they cannot tell
different stories.

It tolerates repeated and unknown events, and samples that never come.
"""

from __future__ import annotations

from trainmover.events.envelope import Envelope
from trainmover.monitor.changes import CHANGES
from trainmover.monitor.machines import MachineState, MachineView
from trainmover.monitor.state import RATE_SAMPLES, ClusterState, Membership

__all__ = ["RATE_SAMPLES", "ClusterView", "MachineState", "MachineView", "Membership"]


class ClusterView(ClusterState):
    """State of one job, built by :meth:`apply` from its events in any sensible order."""

    __slots__ = ()

    def apply(self, envelope: Envelope) -> None:
        """Take one event in."""
        self.job = self.job or envelope.job
        if getattr(envelope.event, "generation", self.generation) >= self.generation:
            self.protection.note(envelope.event)
        change = CHANGES.get(type(envelope.event))
        if change is not None:
            change(self, envelope, envelope.event)

    @staticmethod
    def changed_by(envelope: Envelope) -> bool:
        """Whether an event of this type can change a view at all."""
        return type(envelope.event) in CHANGES
