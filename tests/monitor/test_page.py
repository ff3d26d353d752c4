"""The dashboard in a real browser: Chromium, driven by Playwright; skipped where there is none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.monitor.conftest import Story
from trainmover.events import NatsBus, NatsServer
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import write_log

CHROMIUM = os.environ.get("TRAINMOVER_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip(
        "there is no Chromium (apt-get install chromium, or TRAINMOVER_CHROMIUM)", allow_module_level=True
    )
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")

HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
WAIT = 20_000
"""Milliseconds that anything may take in the browser."""

LOW_CONTRAST = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number);
    const srgb = text.startsWith('color(srgb');
    const [r, g, b] = n.slice(0, 3).map((v) => srgb ? v * 255 : v); return [r, g, b, n[3] ?? 1]; };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => e === null ? [255, 255, 255, 1]
    : over(parse(getComputedStyle(e).backgroundColor), behind(e.parentElement));
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('svg, .sr-only, [aria-hidden=true], :disabled')) continue;
    const back = behind(e); const ink = over(parse(getComputedStyle(e).color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x); const ratio = (a + 0.05) / (b + 0.05);
    const what = e.textContent.trim().slice(0, 30);
    if (ratio < 4.5) bad.push(`${e.tagName}.${e.className} ${what} ${ratio.toFixed(2)}`);
  }
  return bad;
}"""

NAMELESS = """() => [...document.querySelectorAll('button, input, select, a, summary, [role]')]
  .filter((e) => e.checkVisibility() && !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
    || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML.slice(0, 80))"""


class Served:
    """A monitor in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "trainmover.cli", "monitor", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, self.process.wait(20)
        self.url = found[0]

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(20)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a monitor of a run that is over, in which somebody was hostile."""
    story = Story()
    story.begin()
    story.kill()
    story.tell(8.0, say.MachineSuspected(machine="m0", incarnation="a", reason=HOSTILE))
    story.complete()
    folder = tmp_path_factory.mktemp("run")
    write_log(folder / "events.tmlog", story.envelopes)
    (folder / "steps").mkdir()
    rows = [
        {"kind": "step", "step": fact.step, "epoch": fact.epoch, "rank": fact.rank, "start": fact.start,
         "end": fact.end, "seconds": fact.seconds, "loss": fact.loss}
        for fact in story.facts.steps
    ]  # fmt: skip
    (folder / "steps" / "m0-0-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    served = Served("--run", str(folder))
    yield served.url
    assert served.end() == 0


@pytest.fixture
def page(browser, finished: str, request: pytest.FixtureRequest) -> Iterator[object]:
    """The page of the finished run; whatever goes wrong in it fails the test."""
    context = browser.new_context(**getattr(request, "param", {}))
    fresh = context.new_page()
    wrong: list[str] = []
    fresh.on("pageerror", lambda error: wrong.append(str(error)))
    fresh.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    fresh.set_default_timeout(WAIT)
    fresh.goto(finished)
    fresh.wait_for_selector("#chart-metric canvas")
    yield fresh
    context.close()
    assert not wrong


def until(page, condition: Callable[[], bool]) -> None:
    """Wait for a condition; Playwright's own waiting for one needs ``eval``, which the page forbids."""
    for _ in range(WAIT // 50):
        if condition():
            return
        page.wait_for_timeout(50)
    raise TimeoutError(page.text_content("body"))


def texts(page, selector: str) -> list[str]:
    return page.eval_on_selector_all(selector, "all => all.map((e) => e.textContent)")


def test_a_finished_run_is_shown(page) -> None:
    """Phase, figures, curves, seats as they were at the end, the incident with its phases, events."""
    assert page.text_content("#phase") == "completed"
    assert page.text_content("#tile-step") == "5"
    assert page.text_content("#tile-incidents") == "1"
    assert texts(page, "#seats .name") == ["m0", "m2"]
    assert "m1 → m2" in page.text_content("#incidents")
    assert page.locator("#incidents .piece").count() == 8
    assert page.get_attribute("#chart-metric", "aria-label").endswith("failure m1→m2 at step 4")
    assert "machine m1 is declared dead: gone" in texts(page, "#feed .text")


def test_what_a_machine_says_is_never_html(page) -> None:
    """Tags in a reason are shown as they are; nothing of them becomes an element or runs."""
    page.locator("#seats .cell").first.click()
    assert any(HOSTILE in text for text in texts(page, "#feed .text"))
    assert HOSTILE in page.text_content("#machine")
    assert page.locator("#feed img, #machine img, #feed script, #machine script").count() == 0
    assert "hacked" not in page.title()


def test_the_past_can_be_looked_at(page) -> None:
    """The whole page goes back: seats, figures and events are those of then; l comes back."""
    page.keyboard.press("[")
    page.wait_for_selector("body.past")
    until(page, lambda: page.text_content("#phase") == "training")
    assert page.is_visible("#notice")
    assert texts(page, "#seats .name") == ["m0", "m1"]
    assert page.text_content("#tile-incidents") == "0"
    assert "machine m1 is declared dead: gone" not in texts(page, "#feed .text")
    page.keyboard.press("Shift+ArrowRight")
    until(page, lambda: page.text_content("#phase") == "completed")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("body.past")
    page.keyboard.press("l")
    page.wait_for_selector("body:not(.past)")


def test_the_slider_and_a_click_into_a_curve_look_back_too(page) -> None:
    """Both set the same moment."""
    page.locator("#chart-metric .u-over").click(position={"x": 40, "y": 60})
    page.wait_for_selector("body.past")
    page.focus("#time")
    page.keyboard.press("End")
    page.wait_for_selector("body:not(.past)")


def test_everything_can_be_done_with_the_keyboard(page) -> None:
    """Help, theme, filter, axis, and the way through the machines."""
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help", state="hidden")
    before = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") != before
    page.keyboard.press("x")
    assert page.get_attribute("#axis-step", "aria-pressed") == "true"
    page.keyboard.press("/")
    page.keyboard.type("m1 -link")
    until(page, lambda: page.locator("#feed li").count() < 8)
    assert all("m1" in text for text in texts(page, "#feed .text"))
    page.keyboard.press("Escape")
    assert page.input_value("#filter") == ""
    page.keyboard.press("m")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.key") == "m2"
    page.keyboard.press("Enter")
    page.wait_for_selector("#machine:not([hidden])")
    assert page.text_content("#machine h4") == "m2"


def test_an_incident_opens_to_its_phases_and_events(page) -> None:
    """The summary opens a table; its button filters the events."""
    page.locator("#incidents summary").click()
    rows = texts(page, "#incidents tbody tr td:first-child")
    assert rows[0] == "detect"
    assert rows[-1] == "first step"
    page.get_by_role("button", name="Its events").click()
    until(page, lambda: page.locator("#feed li").count() == 2)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param({"color_scheme": "dark"}, id="dark"),
        pytest.param({"color_scheme": "light"}, id="light"),
        pytest.param({"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}, id="phone"),
    ],
    indirect=True,
)
def test_it_can_be_read_by_everybody(page) -> None:
    """Contrast of all text, a name for everything that can be operated, nothing beside the screen."""
    page.locator("#incidents summary").click()
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("page", [{"reduced_motion": "reduce"}], indirect=True)
def test_nothing_moves_for_who_does_not_want_it(page) -> None:
    """No animation runs."""
    assert page.evaluate("document.getAnimations().length") == 0


def test_a_live_job_is_followed_and_a_lost_monitor_is_told(browser, tmp_path: Path) -> None:
    """What is said on the bus is on the page in a moment; when the monitor goes, the page says so."""
    story = Story()
    story.begin()
    story.started(2.5)
    with NatsServer(tmp_path / "nats") as server:

        def publish(envelopes: list[Envelope]) -> None:
            async def send() -> None:
                bus = await NatsBus.connect(server.url, "job", "driver")
                for envelope in envelopes:
                    await bus.publish(envelope)
                await bus.flush(10)
                await bus.close()

            asyncio.run(send())

        def say_aside(envelopes: list[Envelope]) -> None:
            """Sync Playwright has a loop of its own in this thread."""
            thread = threading.Thread(target=publish, args=(envelopes,))
            thread.start()
            thread.join(30)

        say_aside(story.envelopes)
        served = Served("--bus", server.url, "--job", "job")
        context = browser.new_context()
        try:
            live = context.new_page()
            live.set_default_timeout(WAIT)
            live.goto(served.url)
            until(live, lambda: live.locator("#seats .cell").count() == 2)
            told = len(story.envelopes)
            story.tell(4.8, say.MachineFailed(machine="m1", incarnation="a", reason="gone"), "inc-1")
            say_aside(story.envelopes[told:])
            live.wait_for_selector("#incidents li[data-state=open]")
            until(live, lambda: "m1 is declared dead" in live.text_content("#say"))
            assert texts(live, "#seats .state")[1].endswith("empty")
            assert served.end() == 0
            live.wait_for_selector(".link[data-link=lost]")
        finally:
            context.close()
            served.end()
