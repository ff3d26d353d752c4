"""``trainmover top``: the picture in a terminal, its keys, and its manners in a script."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.monitor.conftest import Story
from trainmover.cli import top
from trainmover.events import NatsBus, NatsServer
from trainmover.events import catalogue as say
from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.series import points_of


@pytest.fixture
def story() -> Story:
    """A job of two machines that has lost one and goes on."""
    story = Story()
    story.begin()
    story.kill()
    return story


def shown(story: Story, keys: top.Keys | None = None) -> str:
    chronicle = Chronicle(way_back=False)
    for envelope in story.envelopes:
        chronicle.apply(envelope)
    chronicle.recall(list(points_of(story.facts)))
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(top.picture(chronicle, story.ORIGIN + 10, keys or top.Keys()))
    return console.file.getvalue()


def test_it_shows_what_the_page_shows(story: Story) -> None:
    """Job, step, loss, curves, machines by seat, incidents with their phases, events."""
    text = shown(story)
    flat = " ".join(text.split())
    assert "job job" in text
    assert re.search(r"training\s+step 5\s+loss 5\.0000", text)
    assert re.search(r"loss\s+[▁▂▃▄▅▆▇█]{6}\s+5 \(5 to 10\)", text)
    assert re.search(r"m2\s+1\s+training", text)
    assert re.search(r"m1\s+-\s+failed", text)
    assert "failure of m1, m2 takes over: over after 1.40 s" in text
    assert "detect 0.10 s" in flat
    assert "first step 0.30 s" in flat
    assert "machine m1 is declared dead: gone" in text


def test_only_events_of_incidents_can_be_asked_for(story: Story) -> None:
    """The key i leaves out all others."""
    keys = top.Keys()
    keys.press("i")
    text = shown(story, keys)
    assert "machine m1 is declared dead" in text
    assert "training goes on" not in text


def test_what_a_machine_says_cannot_move_the_cursor(story: Story) -> None:
    """Escapes in a reason are spaces."""
    story.tell(9.0, say.JobHeld(incident="inc-9", reason="a\x1b[2Jb\nc"))
    assert "\x1b" not in shown(story)


def test_an_empty_job_has_a_picture() -> None:
    """Nothing is said yet: nothing is drawn but the frame."""
    console = Console(file=io.StringIO(), width=80)
    console.print(top.picture(Chronicle(), 0.0, top.Keys()))
    assert "waiting" in console.file.getvalue()


def command(server: NatsServer, *options: str) -> list[str]:
    where = ("--bus", server.url, "--job", "job")
    return [sys.executable, "-m", "trainmover.cli", "top", *where, *options]


async def told(server: NatsServer, story: Story) -> None:
    bus = await NatsBus.connect(server.url, "job", "driver")
    for envelope in story.envelopes:
        await bus.publish(envelope)
    await bus.flush(10)
    await bus.close()


def test_once_is_for_scripts_and_a_terminal_is_needed_otherwise(tmp_path: Path, story: Story) -> None:
    """``--once`` prints and ends; without it a pipe is refused in one sentence."""
    story.complete()
    with NatsServer(tmp_path) as server:
        asyncio.run(told(server, story))
        once = subprocess.run(
            command(server, "--once"), capture_output=True, text=True, timeout=60, check=False
        )
        assert once.returncode == 0, once.stderr
        assert "completed" in once.stdout
        assert "\x1b" not in once.stdout
        piped = subprocess.run(command(server), capture_output=True, text=True, timeout=60, check=False)
        assert piped.returncode == 2
        assert "give --once" in piped.stderr


def test_q_ends_it_and_the_terminal_is_as_before(tmp_path: Path, story: Story) -> None:
    """On a real terminal it draws; q leaves the second screen and gives the settings back."""
    import termios

    with NatsServer(tmp_path) as server:
        asyncio.run(told(server, story))
        outer, inner = pty.openpty()
        try:
            before = termios.tcgetattr(inner)
            child = subprocess.Popen(
                command(server), stdin=inner, stdout=inner, stderr=inner,
                env=dict(os.environ) | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"},
            )  # fmt: skip
            text, pressed, deadline = "", False, time.monotonic() + 60
            os.set_blocking(outer, False)
            while child.poll() is None and time.monotonic() < deadline:
                try:
                    text += os.read(outer, 65536).decode("utf-8", "replace")
                except BlockingIOError:
                    time.sleep(0.02)
                if "takes over" in text and not pressed:
                    pressed = True
                    os.write(outer, b"q")
            assert child.wait(10) == 0, text[-2000:]
            after = termios.tcgetattr(inner)
        finally:
            os.close(outer)
            os.close(inner)
    assert "\x1b[?1049h" in text
    assert before[3] == after[3]
