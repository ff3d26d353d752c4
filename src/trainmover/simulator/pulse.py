"""The pulse: a machine's heartbeats.

What lives here: what a beat says.  What never lives here: which of them are lost (``cluster``), what is
made of them (``services.leases``).
"""

from __future__ import annotations

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.simulator.bus import JOB
from trainmover.simulator.ranks import RankSet
from trainmover.simulator.setup import BEGIN

WORSE = ("running", "stopped", "exited")
"""States of a rank process, the worst last."""


class Pulse:
    """The heartbeats of one life of a machine."""

    def __init__(self, machine: str, incarnation: str, ranks: RankSet) -> None:
        self._ranks = ranks
        self._sequence = 0
        beat = say.Heartbeat(
            machine=machine,
            incarnation=incarnation,
            sequence=0,
            ranks=(),
            step=0,
            cpu_percent=0.0,
            rss_bytes=0,
        )
        name = f"{machine}-{incarnation}-beat"
        self._beat = Envelope(id=name, source=machine, time=BEGIN, job=JOB, event=beat)

    def beat(self) -> Envelope:
        """Its next heartbeat.  Many are sent, so it is always the same object, and good until the next."""
        self._sequence += 1
        fields = self._beat.event.__dict__
        fields["sequence"], fields["ranks"] = self._sequence, self._states()
        return self._beat

    def _states(self) -> tuple[str, ...]:
        states: dict[int, str] = {}
        for rank in self._ranks.all:
            state = "exited" if rank.over else "stopped" if rank.stopped else "running"
            if state != "running" or rank.slot not in states:
                states[rank.slot] = max(states.get(rank.slot, "running"), state, key=WORSE.index)
        return tuple(states[slot] for slot in sorted(states))
