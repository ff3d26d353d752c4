"""What a loss would cost: which state has a replica, a mirror, a checkpoint, or nothing.

What lives here: this part of the view, filled from events, and its sentence.  What never lives here: the
choice (``job.state``), and whoever acts on it (``services.roster``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainmover.events import catalogue as say


@dataclass(slots=True)
class Protection:
    """How the state of one generation's ranks is protected.

    Attributes:
        policy: ``job.state``.
        ranks: number of ranks.
        unreplicated: ranks whose state no other machine has; None before that is known.
        mirrors: what each of them said when its mirror was whole, by rank.
        failed: why a rank could not mirror its state, by rank.
        checkpoint: step of the newest whole checkpoint; None without one.
    """

    policy: str = "checkpoint"
    ranks: int = 0
    unreplicated: int | None = None
    mirrors: dict[int, say.MirrorWhole] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    checkpoint: int | None = None

    def note(self, event: say.Event) -> None:
        """Something that bears on it was said."""
        match event:
            case say.JobSubmitted():
                self.policy, self.ranks = event.state, event.machines * event.ranks_per_machine
            case say.RolesFound():
                self.unreplicated = sum(row.count for row in event.unreplicated)
                self.mirrors, self.failed = {}, {}
            case say.MirrorWhole():
                self.mirrors[event.rank] = event
            case say.MirrorFailed():
                self.mirrors.pop(event.rank, None)
                self.failed[event.rank] = event.reason
            case say.CheckpointSaved() | say.CheckpointLoaded():
                self.checkpoint = event.step
            case _:
                pass

    @property
    def step_bytes(self) -> int:
        """Most bytes that one rank sends for its mirror in one step."""
        return max((m.image_bytes + m.changes_bytes for m in self.mirrors.values()), default=0)

    @property
    def memory_bytes(self) -> int:
        """Most bytes that one rank holds for another: two images, and the changes of one step."""
        return max((2 * m.image_bytes + m.changes_bytes for m in self.mirrors.values()), default=0)

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {
            "policy": self.policy,
            "ranks_without_replica": self.unreplicated,
            "ranks_mirrored": len(self.mirrors),
            "mirror_bytes_per_step": self.step_bytes,
            "mirror_memory_bytes": self.memory_bytes,
            "a_loss": self.cost(),
        }

    def cost(self, step: int | None = None) -> str:
        """What the loss of a machine would cost now, in one sentence; empty before it is known.

        Args:
            step: committed steps, to tell how many would be done again.
        """
        if self.unreplicated is None:
            return ""
        if not self.unreplicated:
            return "every state has a replica on another machine: a loss costs no step"
        who = f"the state of {self.unreplicated} of {self.ranks} ranks has no replica"
        if self.policy == "mirror" and len(self.mirrors) >= self.unreplicated:
            return (
                f"{who} and is mirrored on the next machine ({_size(self.step_bytes)} per rank and step, "
                f"{_size(self.memory_bytes)} of memory): a loss costs no step; that of two neighbours at "
                f"once {self._back(step)}"
            )
        if self.policy == "mirror":
            why = next(iter(self.failed.values()), "")
            state = f"cannot be mirrored ({why})" if why else "is not mirrored yet"
            return f"{who} and {state}: a loss {self._back(step)}"
        return f"{who} (--state {self.policy}): a loss {self._back(step)}"

    def _back(self, step: int | None) -> str:
        if self.policy == "none" or self.checkpoint is None:
            return "ends the job"
        behind = "" if step is None or step < self.checkpoint else f" and does {step - self.checkpoint} again"
        return f"goes back to step {self.checkpoint}{behind}"


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
