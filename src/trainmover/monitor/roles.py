"""Roles as a person sees them: which there are, and how they were recorded.

What lives here: the parts of the view that have to do with roles, filled from events.  What never
lives here: decisions about roles (``services.standby``), tables for the terminal (``cli.tables``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmover.events import catalogue as say


@dataclass(slots=True)
class RolesView:
    """The machine roles of one generation.

    Attributes:
        found: the roles; None before every rank is described.
        recorded: bytes of a role's recording by role and slot.
        failed: why a role was not recorded, by role.
    """

    found: say.RolesFound | None = None
    recorded: dict[str, dict[int, int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def note_recording(self, event: say.RecordingReady | say.RecordingFailed, position: int) -> None:
        """A rank on this position has recorded, or cannot."""
        role = self.at(position)
        if role is None:
            return
        if isinstance(event, say.RecordingReady):
            self.recorded.setdefault(role.name, {})[event.slot] = event.bytes
        else:
            self.failed.setdefault(role.name, event.reason)

    def at(self, position: int | None) -> say.MachineRole | None:
        """The role of a position, if it is known."""
        if position is None or self.found is None:
            return None
        return next((role for role in self.found.roles if holds(role, position)), None)

    @property
    def total(self) -> int:
        """Number of roles, those included that are too many to be listed."""
        return 0 if self.found is None else len(self.found.roles) + self.found.unlisted

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the recordings by role, all slots together."""
        return {role: sum(slots.values()) for role, slots in self.recorded.items()}


def holds(role: say.MachineRole, seat: int) -> bool:
    """Whether a seat has this role."""
    return any(
        0 <= seat - row.first < row.stride * row.count and (seat - row.first) % row.stride == 0
        for row in role.seats
    )
