"""What a run shows while it goes on: a live picture on a terminal, plain lines elsewhere.

What lives here: two displays with one interface.  Both read the same :class:`ClusterView`.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from trainmover.cli.tables import incident_lines, machines_table, progress_line, role_lines, state_lines
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.facts import sentence
from trainmover.monitor.view import ClusterView

REFRESH_PER_SECOND = 5
PROGRESS_SECONDS = 2.0
NOTICES_SHOWN = 5

TOLD = frozenset(
    {
        "checkpoint.failed",
        "checkpoint.loaded",
        "job.submitted",
        "job.held",
        "job.completed",
        "job.failed",
        "machine.joined",
        "machine.left",
        "machine.suspected",
        "machine.failed",
        "rank.exited",
        "link.repair",
        "link.unreached",
        "move.requested",
        "move.refused",
        "recording.failed",
        "roles.found",
        "standby.parked",
        "standby.assigned",
        "standby.exhausted",
        "standby.replenish",
        "plan.ready",
        "switch.committed",
        "switch.aborted",
        "training.started",
        "training.resumed",
        "dead.letter",
    }
)
"""Events that plain lines tell of."""


class Display(AbstractContextManager["Display"], Protocol):
    """Shows a run while the context is open."""

    def observe(self, envelope: Envelope) -> None:
        """Take an event in."""

    def notice(self, text: str) -> None:
        """Tell a fact about the driver's own processes."""


class LiveDisplay:
    """A picture that is drawn again a few times per second; for terminals."""

    def __init__(self, console: Console) -> None:
        self.view = ClusterView()
        self._notices: list[str] = []
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=REFRESH_PER_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def observe(self, envelope: Envelope) -> None:
        """Take an event in; it shows with the next drawing."""
        self.view.apply(envelope)

    def notice(self, text: str) -> None:
        """Keep the last few facts below the picture."""
        self._notices = [*self._notices, text][-NOTICES_SHOWN:]

    def _draw(self) -> Group:
        return Group(
            progress_line(self.view),
            machines_table(self.view),
            *role_lines(self.view),
            *state_lines(self.view),
            *incident_lines(self.view, time.time()),
            *(Text(text, "dim") for text in self._notices),
        )


class PlainDisplay:
    """One line per fact, and one per couple of seconds with the step and the loss."""

    def __init__(self, console: Console) -> None:
        self.view = ClusterView()
        self._console = console
        self._told = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def observe(self, envelope: Envelope) -> None:
        """Take an event in and print it if it is worth a line."""
        self.view.apply(envelope)
        event = envelope.event
        if event.type in TOLD:
            self._print(envelope.time, sentence(event) or event.type)
        elif isinstance(event, say.StepSample) and envelope.time - self._told >= PROGRESS_SECONDS:
            self._told = envelope.time
            self._print(envelope.time, progress_line(self.view).plain)

    def notice(self, text: str) -> None:
        """Print a fact about the driver's own processes."""
        self._print(time.time(), text)

    def _print(self, when: float, text: str) -> None:
        start = self.view.submitted_at
        clock = f"{max(0.0, when - start):8.2f} s" if start is not None else f"{'':8}  "
        self._console.print(f"{clock}  {text}", markup=False, highlight=False, soft_wrap=True)


def display_for(console: Console) -> LiveDisplay | PlainDisplay:
    """The display that fits where the output goes."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
