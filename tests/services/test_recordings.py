"""Recorded incidents of real runs: the services of today decide as those did that were there."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover.events import catalogue as say
from trainmover.events.log import read_log
from trainmover.services import SERVICES, replay

FOLDER = Path(__file__).resolve().parents[2] / "events" / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.tmlog"))

SHOWS: dict[str, type[say.Event]] = {
    "kill": say.MachineFailed,
    "move": say.MoveRequested,
    "aborted": say.SwitchAborted,
    "frozen": say.LeaseExpired,
    "held": say.JobFailed,
    "checkpoint": say.CheckpointLoaded,
    "mirror": say.MirrorWhole,
    "shrink": say.StandbyExhausted,
}
"""The event that a recording is there for."""


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_incident_replays_without_a_difference(path: Path) -> None:
    """Every service hears what it heard then and says the same, under the same ids.

    Where a changed decision is meant, record it anew (``python tools/record.py NAME``).
    """
    envelopes = [record.envelope for record in read_log(path)]
    result = replay(envelopes)
    assert result.same, str(result)
    assert set(result.inputs) == set(SERVICES)
    assert sum(result.outputs.values()) > 4
    assert any(isinstance(envelope.event, SHOWS[path.stem]) for envelope in envelopes)


def test_there_is_one_of_each_kind() -> None:
    """No recording is missing, and none has nothing to show."""
    assert {path.stem for path in RECORDINGS} == set(SHOWS)


def test_recordings_do_not_say_where_they_were_made() -> None:
    """Folders, hosts and interpreters are plain words in them."""
    for path in RECORDINGS:
        (submitted,) = (r.envelope.event for r in read_log(path) if r.envelope.type == "job.submitted")
        assert isinstance(submitted, say.JobSubmitted)
        assert (submitted.run_dir, submitted.python) == ("/run", "python")
        assert submitted.script.startswith("/trainmover/examples/train_gpt")
        hosts = {
            r.envelope.event.host for r in read_log(path) if isinstance(r.envelope.event, say.MachineJoined)
        }
        assert hosts <= {"host", "127.0.0.1"}
