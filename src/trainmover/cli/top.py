"""``trainmover top``: what the monitor shows, in a terminal.

What lives here: the picture (:func:`picture`, a pure function of a chronicle) and the keyboard.  The
same is in the browser with ``trainmover monitor``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainmover.cli.access import Access, BusOption, JobOption, find
from trainmover.cli.tables import (
    incident_line,
    machines_table,
    progress_line,
    role_lines,
    seconds,
    state_lines,
)
from trainmover.errors import ConfigError
from trainmover.events import catalogue as say
from trainmover.events.bus import Feed
from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.incidents import IncidentView, phases_of

REFRESH_PER_SECOND = 4
SAMPLE_SECONDS = 0.6
PAST_SECONDS = 60.0
CURVE, BAR = 60, 48
"""Characters of a curve, and of the longest incident's bar."""
INCIDENTS, EVENTS = 5, 12
RATE_STEPS = 5

PHASE_STYLES = {
    "detect": "red",
    "assign": "dark_orange",
    "plan": "yellow",
    "ask": "green_yellow",
    "prepare": "green",
    "switch and copy": "blue",
    "commit": "slate_blue1",
    "first step": "magenta",
}
LEVEL_STYLES = {"bad": "bold red", "warn": "yellow", "good": "green", "info": ""}
HELP = "q quit   p pause   i only events of incidents   ? help"


@dataclass(slots=True)
class Keys:
    """What was asked for with the keyboard."""

    paused: bool = False
    incidents_only: bool = False
    help: bool = False
    quit: asyncio.Event = field(default_factory=asyncio.Event)

    def press(self, key: str) -> None:
        """One key."""
        match key:
            case "q" | "\x03" | "\x1b":
                self.quit.set()
            case "p" | " ":
                self.paused = not self.paused
            case "i":
                self.incidents_only = not self.incidents_only
            case "?" | "h":
                self.help = not self.help
            case _:
                pass


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and end; for scripts.")] = False,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Watch a job in the terminal: machines, steps, incidents with their phases, events. q ends it.

    Exit codes: 0 ended with q, or printed; 1 with --once: the job has failed.
    """
    console = Console()
    if not once and not (console.is_terminal and sys.stdin.isatty()):
        raise ConfigError("this is no terminal: give --once, or use trainmover status --json")
    chronicle = asyncio.run(_watch(find(bus, job), console, once=once))
    if once:
        console.print(picture(chronicle, time.time(), Keys()))
        raise typer.Exit(1 if chronicle.view.phase == "failed" else 0)


def picture(chronicle: Chronicle, now: float, keys: Keys, height: int | None = None) -> RenderableType:
    """Everything on one screen.

    Args:
        now: unix seconds, for what is going on.
        keys: what was asked for.
        height: lines that there are; None: no limit.
    """
    view = chronicle.view
    parts: list[RenderableType] = [Text(f"job {view.job or '(none yet)'}"), progress_line(view)]
    if view.reason:
        parts.append(Text(view.reason, "bold red"))
    parts += curves(chronicle)
    parts.append(machines_table(view))
    parts += [*role_lines(view), *state_lines(view)]
    parts += incidents(list(view.incidents.values()), now)
    used = 12 + len(view.machines) + 3 * min(INCIDENTS, len(view.incidents))
    room = EVENTS if height is None else max(3, height - used)
    parts.append(events(chronicle, min(EVENTS, room), keys.incidents_only))
    foot = HELP if keys.help else f"{'paused; ' if keys.paused else ''}q quit, ? help"
    parts.append(Text(foot, "dim"))
    return Group(*parts)


def curves(chronicle: Chronicle) -> list[Text]:
    """Loss and steps per second of the last steps, as lines of blocks."""
    points = chronicle.series.points[-(CURVE + RATE_STEPS) :]
    if len(points) < 2:
        return []
    losses = [point.metrics["loss"] for point in points if "loss" in point.metrics][-CURVE:]
    rates = []
    for place in range(1, len(points)):
        before = points[max(0, place - RATE_STEPS)]
        took = points[place].time - before.time
        if took > 0 and points[place].step > before.step:
            rates.append((points[place].step - before.step) / took)
    lines = []
    for name, values in (("loss", losses), ("steps/s", rates[-CURVE:])):
        if len(values) > 1:
            low, high = min(values), max(values)
            lines.append(Text(f"{name:<8}{blocks(values)}  {values[-1]:.3g} ({low:.3g} to {high:.3g})"))
    return lines


def blocks(values: Sequence[float]) -> str:
    """A curve in one line."""
    low, high = min(values), max(values)
    signs = "▁▂▃▄▅▆▇█"
    if high <= low:
        return signs[3] * len(values)
    return "".join(signs[min(7, int(8 * (value - low) / (high - low)))] for value in values)


def incidents(found: Sequence[IncidentView], now: float) -> list[RenderableType]:
    """The last incidents, each with what its time was spent on."""
    shown = [item for item in found if item.times][-INCIDENTS:]
    if not shown:
        return []
    lengths = {item.id: _end(item, now) - min(item.times.values()) for item in shown}
    longest = max(1e-6, *lengths.values())
    parts: list[RenderableType] = []
    for item in reversed(shown):
        parts.append(incident_line(item, now))
        bar = Text("  ")
        for phase in phases_of(item):
            width = round(BAR * phase.seconds / longest)
            bar.append("█" * width, PHASE_STYLES.get(phase.name, ""))
        told = ", ".join(
            f"{phase.name} {seconds(phase.seconds)}" for phase in phases_of(item) if phase.seconds
        )
        if told:
            parts.append(bar)
            parts.append(Text(f"  {told}", "dim"))
    return parts


def events(chronicle: Chronicle, count: int, incidents_only: bool) -> Table:
    """The newest events, the newest last."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    found = [fact for fact in chronicle.facts if fact.incident or not incidents_only][-count:]
    for fact in found:
        clock = time.strftime("%H:%M:%S", time.localtime(fact.time))
        table.add_row(clock, Text(fact.type, "dim"), Text(printable(fact.text), LEVEL_STYLES[fact.level]))
    return table


def printable(text: str) -> str:
    """What others said, without what a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def _end(item: IncidentView, now: float) -> float:
    return now if item.state == "open" else max(item.times.values())


async def _watch(access: Access, console: Console, *, once: bool) -> Chronicle:
    from trainmover.events.nats_bus import NatsBus

    bus = await NatsBus.connect(access.bus, access.job, "top", create=False)
    chronicle = Chronicle(way_back=False)
    try:
        feed = await bus.feed(None, history=True)
        for envelope in await feed.past(PAST_SECONDS):
            chronicle.apply(envelope)
        await bus.listen([say.Heartbeat.type, say.StepSample.type], chronicle.apply)
        if once:
            if chronicle.view.phase not in ("completed", "failed"):
                await asyncio.sleep(SAMPLE_SECONDS)
            return chronicle
        following = asyncio.create_task(_follow(chronicle, feed))
        try:
            await _show(console, chronicle, following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    finally:
        await bus.close()
    return chronicle


async def _follow(chronicle: Chronicle, feed: Feed) -> None:
    async for envelope in feed:
        chronicle.apply(envelope)


async def _show(console: Console, chronicle: Chronicle, following: asyncio.Task[None]) -> None:
    """Draw until q is pressed."""
    keys = Keys()
    with _keyboard(keys), Live(console=console, screen=True, auto_refresh=False) as live:
        while not keys.quit.is_set() and not following.done():
            if not keys.paused or keys.help:
                live.update(picture(chronicle, time.time(), keys, console.height), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1 / REFRESH_PER_SECOND):
                    await keys.quit.wait()
    if following.done() and not following.cancelled():
        following.result()


@contextlib.contextmanager
def _keyboard(keys: Keys) -> Iterator[None]:
    """Single keys without Enter and without echo, while this is open."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(descriptor, 64)
        if not pressed:
            keys.quit.set()  # the terminal is gone
        for key in pressed.decode("utf-8", "ignore")[:1]:
            keys.press(key)

    try:
        tty.setcbreak(descriptor)
        loop.add_reader(descriptor, read)
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
