"""Courses: a service's way through a recorded log, to wherever it is asked to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.errors import ConfigError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import read_log
from trainmover.services import SERVICES, replay
from trainmover.services.core import Core, Output, Say
from trainmover.services.course import Log, until
from trainmover.services.health import Health, HealthCore
from trainmover.services.replay import courses, merged
from trainmover.services.tables import after, watched

KILL = Path(__file__).resolve().parents[2] / "events" / "recordings" / "kill.tmlog"


@pytest.fixture(scope="module")
def envelopes() -> list[Envelope]:
    """The log of a run in which a machine was killed."""
    return [record.envelope for record in read_log(KILL)]


def of(envelopes: list[Envelope], kind: type[say.Event]) -> Envelope:
    """The first event of a kind."""
    return next(envelope for envelope in envelopes if isinstance(envelope.event, kind))


class Cautious(HealthCore):
    """A changed service: it never declares a machine dead."""

    def handle(self, envelope: Envelope, now: float) -> list[Output]:
        return [
            item
            for item in super().handle(envelope, now)
            if not (isinstance(item, Say) and isinstance(item.event, say.MachineFailed))
        ]


class Breaking(HealthCore):
    """A service that raises at the first broken link."""

    def handle(self, envelope: Envelope, now: float) -> list[Output]:
        if isinstance(envelope.event, say.LinkBroken):
            raise RuntimeError("not that")
        return super().handle(envelope, now)


def test_several_processes_find_what_one_finds(envelopes: list[Envelope]) -> None:
    """A replay with a process per service counts and compares the same."""
    cores: dict[str, type[Core]] = {name: service.core for name, service in SERVICES.items()}  # type: ignore[misc]
    cores["health"] = Cautious
    alone, together = (replay(envelopes, cores=cores, workers=number) for number in (1, 3))
    assert alone.inputs == together.inputs
    assert alone.outputs == together.outputs
    assert [str(item) for item in alone.differences] == [str(item) for item in together.differences]
    assert [item.kind for item in alone.differences] == ["missing"]


def test_a_core_that_raises_is_a_difference(envelopes: list[Envelope]) -> None:
    """What a changed core raises is told with the input, and the replay goes on."""
    result = replay(envelopes, service="health", cores={"health": Breaking})
    kinds = [item.kind for item in result.differences]
    assert kinds.count("raised") == 2
    assert "missing" in kinds
    assert "the core raised RuntimeError: not that" in str(result)


def test_ends_at_a_time(envelopes: list[Envelope]) -> None:
    """No input that was fed later than the time is fed."""
    failed = of(envelopes, say.MachineFailed)
    steps = list(merged(courses(Log(envelopes), until=failed.time - 0.001, watch=True)))
    assert steps
    assert max(step.now for step in steps) < failed.time
    assert not any(item.type == "machine.failed" for step in steps for item in step.said)


def test_ends_with_an_event_for_who_said_and_who_heard_it(envelopes: list[Envelope]) -> None:
    """Health ends with what made it say machine.failed, standby with hearing it, nobody decides more."""
    failed = of(envelopes, say.MachineFailed)
    ends = until(Log(envelopes), failed.id)
    assert ends.last["health"] == failed.cause
    assert ends.last["standby"] == failed.id
    steps = list(merged(courses(Log(envelopes), until=failed.id, watch=True)))
    said = [item.type for step in steps for item in step.said]
    assert said.count("machine.failed") == 1
    assert said.count("switch.committed") == 1  # the start


def test_an_id_that_nobody_knows_is_refused(envelopes: list[Envelope]) -> None:
    """Neither heard nor said: there is no such end."""
    with pytest.raises(ConfigError, match="no service has heard or said 'x'"):
        replay(envelopes, until="x")


def test_services_are_merged_by_time(envelopes: list[Envelope]) -> None:
    """Steps of all services come in the order in which they were taken."""
    steps = list(merged(courses(Log(envelopes), watch=True)))
    times = [step.now for step in steps]
    assert times == sorted(times)
    assert {step.service for step in steps} == set(SERVICES)


def test_what_moves_is_watched_only_inside() -> None:
    """Transitions are noted while somebody watches, and a trigger without meaning is none."""
    table = {Health.WELL: {"left": Health.LEFT}, Health.LEFT: {}}
    with watched() as moves:
        after(table, Health.WELL, "left")
        after(table, Health.LEFT, "left")
    after(table, Health.WELL, "left")
    assert moves == [(Health.WELL, "left", Health.LEFT)]
