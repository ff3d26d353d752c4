"""From the chronicle to everybody who looks: one picture at first, then only what has changed.

What lives here: what a subscriber is sent and how fast.  What never lives here: HTTP (``server``).

A tick compares the rows of now with those of the last tick and sends the difference to all, encoded
once.  It takes longer in a larger cluster, so the pause between ticks grows with what a tick took:
watching costs at most a tenth of a processor.  Who reads too slowly is let go; the page connects
again and begins with a whole picture.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.series import Point
from trainmover.monitor.snapshot import incident_row, job_row, machine_row
from trainmover.version import __version__

TICK_SECONDS: Final = 0.4
TICK_SHARE: Final = 10.0
"""A tick that took t seconds is followed by a pause of at least this many times t."""
FRAMES_WAITING: Final = 64
SUBSCRIBERS: Final = 128
FACTS_AT_FIRST: Final = 500


class Subscriber:
    """One page: frames that wait to be written; None is the end."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(FRAMES_WAITING + 1)

    def offer(self, frame: bytes | None) -> bool:
        """Take a frame; False: too many wait already."""
        if frame is not None and self.frames.qsize() >= FRAMES_WAITING:
            return False
        if self.frames.full():
            self.frames.get_nowait()
        self.frames.put_nowait(frame)
        return True


class Broadcast:
    """What is sent to whom.

    Args:
        chronicle: what is shown.
        live: whether more will come; False for a finished run.
        connected: whether the bus is there now.
        clock: unix seconds.
    """

    def __init__(
        self,
        chronicle: Chronicle,
        *,
        live: bool,
        connected: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._chronicle = chronicle
        self._live = live
        self._connected = connected
        self._clock = clock
        self._subscribers: list[Subscriber] = []
        self._job: dict[str, Any] = {}
        self._layout: tuple[str, ...] = ()
        self._machines: dict[str, dict[str, Any]] = {}
        self._incidents: dict[str, dict[str, Any]] = {}
        self._fact = 0
        self._epoch = -1
        self._steps: list[Point] = []
        chronicle.on_step.append(self._steps.append)

    @property
    def watchers(self) -> int:
        """How many are looking."""
        return len(self._subscribers)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            began = time.perf_counter()
            self.tick()
            await asyncio.sleep(max(TICK_SECONDS, TICK_SHARE * (time.perf_counter() - began)))

    def subscribe(self) -> Subscriber | None:
        """Begin to look: the first frame is the whole picture.  None: too many look already."""
        if len(self._subscribers) >= SUBSCRIBERS:
            return None
        subscriber = Subscriber()
        subscriber.offer(frame_of("hello", self.hello()))
        self._subscribers.append(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Look no more."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def close(self) -> None:
        """Send everybody away."""
        for subscriber in self._subscribers:
            subscriber.offer(None)
        self._subscribers.clear()

    def tick(self) -> None:
        """Send what has changed since the last tick."""
        if not self._subscribers:
            # The next who looks gets a whole picture.  Still, nothing may pile up.
            self._steps.clear()
            return
        delta = self._delta()
        if not delta:
            return
        frame = frame_of("delta", delta | {"now": self._clock(), "last": self._chronicle.last})
        for subscriber in list(self._subscribers):
            if not subscriber.offer(frame):
                self.leave(subscriber)
                subscriber.offer(None)

    def hello(self) -> dict[str, Any]:
        """The whole picture; what follows continues it."""
        chronicle = self._chronicle
        self.tick()  # what has changed goes to all who look, before it counts as known
        self._delta()
        return {
            "version": __version__,
            "live": self._live,
            "now": self._clock(),
            "first": chronicle.first,
            "last": chronicle.last,
            "job": self._job,
            "layout": list(self._layout),
            "machines": list(self._machines.values()),
            "incidents": list(self._incidents.values()),
            "facts": [fact.as_json() for fact in chronicle.facts_before(None, FACTS_AT_FIRST)],
            "steps": [point.as_json() for point in chronicle.series.points],
            "marks": [mark.as_json() for mark in chronicle.marks],
        }

    def _delta(self) -> dict[str, Any]:
        view, chronicle = self._chronicle.view, self._chronicle
        delta: dict[str, Any] = {}
        job = job_row(view) | {"connected": self._connected(), "ready": True}
        if job != self._job:
            self._job = delta["job"] = job
        if view.layout != self._layout:
            self._layout = view.layout
            delta["layout"] = list(view.layout)
        machines = {name: machine_row(view, machine) for name, machine in view.machines.items()}
        changed = [row for name, row in machines.items() if row != self._machines.get(name)]
        if changed:
            delta["machines"] = changed
        self._machines = machines
        incidents = {name: incident_row(incident) for name, incident in view.incidents.items()}
        changed = [row for name, row in incidents.items() if row != self._incidents.get(name)]
        if changed:
            delta["incidents"] = changed
        gone = [name for name in self._incidents if name not in incidents]
        if gone:
            delta["gone"] = gone
        self._incidents = incidents
        if chronicle.facts and chronicle.facts[-1].number > self._fact:
            found = [fact for fact in chronicle.facts if fact.number > self._fact][-FACTS_AT_FIRST:]
            delta["facts"] = [fact.as_json() for fact in found]
            self._fact = chronicle.facts[-1].number
        if self._steps:
            delta["steps"] = [point.as_json() for point in self._steps]
            self._steps.clear()
        marks = [mark for mark in chronicle.marks if mark.epoch > self._epoch]
        if marks:
            delta["marks"] = [mark.as_json() for mark in marks]
            self._epoch = marks[-1].epoch
        return delta


def frame_of(name: str, content: dict[str, Any]) -> bytes:
    """One event of a server-sent event stream (HTML standard, 9.2)."""
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


def moment(chronicle: Chronicle, time: float) -> dict[str, Any]:
    """The picture of an earlier moment, for scrubbing."""
    view = chronicle.at(time)
    return {
        "time": time,
        "job": job_row(view) | {"connected": True, "ready": True},
        "layout": list(view.layout),
        "machines": [machine_row(view, machine) for machine in view.machines.values()],
        "incidents": [incident_row(incident) for incident in view.incidents.values()],
    }
