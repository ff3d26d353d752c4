"""Courses: a service's way through a recorded log, to wherever it is asked to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainmover.errors import ConfigError, DecodeError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.events.log import read_log, write_log
from trainmover.services import SERVICES, replay
from trainmover.services.core import Core, Output, Say
from trainmover.services.course import Log, until
from trainmover.services.health import Health, HealthCore
from trainmover.services.replay import courses, merged, replay_file
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


def test_a_file_is_replayed_in_parts_as_it_is_as_a_whole(envelopes: list[Envelope], tmp_path: Path) -> None:
    """Each process reads what its service heard and said; together they find what one finds."""
    path = tmp_path / "log.tmlog"
    lie = of(envelopes, say.StandbyAssigned)
    told = lie.event.model_copy(update={"joiner": "m9"})
    write_log(path, [replace(lie, event=told) if e is lie else e for e in envelopes])
    whole, parts = (replay_file(path, workers=number) for number in (1, 3))
    assert (whole.inputs, whole.outputs) == (parts.inputs, parts.outputs)
    assert [str(item) for item in whole.differences] == [str(item) for item in parts.differences]
    assert whole.differences
    early = of(envelopes, say.MachineFailed).time - 0.001
    some = [replay_file(path, workers=n, until=early, service="switcher") for n in (1, 3)]
    assert some[0].inputs == some[1].inputs
    with pytest.raises(ConfigError, match="no service weather"):
        replay_file(path, workers=3, service="weather")


def test_damage_is_found_where_no_service_looks(envelopes: list[Envelope], tmp_path: Path) -> None:
    """A record that no service needs is decoded all the same."""
    path = tmp_path / "log.tmlog"
    saved = say.CheckpointFailed(machine="m0", rank=0, step=5, reason="the disk is full, says the system")
    stray = Envelope(id="stray", source="m0", time=1.0, job=envelopes[0].job, event=saved)
    write_log(path, [*envelopes, stray])
    path.write_bytes(path.read_bytes()[::-1].replace(b"nosaer\xa6", b"nisiar\xa6", 1)[::-1])
    with pytest.raises(DecodeError, match="raisin"):
        replay_file(path, workers=3)


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
