"""Copies of events whose senders could not bring them into the log."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.events.examples import JOB, envelope, example, left
from trainmover.errors import DecodeError
from trainmover.events.catalogue import EVENTS, Heartbeat, JournalCopy, JournalEntry
from trainmover.events.codec import decode_message, encode_message
from trainmover.events.copies import TAKEN_MOST, Unstored, copy_of, opened, original
from trainmover.events.feed import FeedQueue


def test_what_the_log_shows_is_not_missing():
    """Missing is what was heard long enough ago and seen in the log neither itself nor as a copy."""
    unstored = Unstored()
    for number in range(5):
        unstored.heard(left(number), now=float(number))
    unstored.stored(left(0))
    unstored.stored(copy_of(left(1), "planner", 9.0))
    assert unstored.take(3.0) == [left(2), left(3)]
    assert unstored.take(3.0) == [], "each is given once"
    assert unstored.take(4.0) == [left(4)]
    assert not unstored


def test_few_are_taken_at_a_time():
    """While the log takes nothing everything is missing: only so many copies are under way."""
    unstored = Unstored()
    for number in range(TAKEN_MOST + 10):
        unstored.heard(left(number), now=0.0)
    assert len(unstored.take(1.0)) == TAKEN_MOST
    assert unstored.take(1.0) == []
    for number in range(3):
        unstored.stored(left(number))
    assert [item.id for item in unstored.take(1.0)] == [left(TAKEN_MOST + n).id for n in range(3)]


def test_memory_is_bounded():
    """What is heard beyond the limit is not remembered."""
    unstored = Unstored(most=2)
    for number in range(5):
        unstored.heard(left(number), now=0.0)
    assert len(unstored) == 2


async def test_a_feed_tells_what_it_heard_and_the_log_lacks():
    """Only what was heard counts, not what came out of the log, before or after."""
    queue = FeedQueue(history=False)
    queue.offer(left(1))
    queue.offer(left(2), stored=True)
    queue.offer(left(2))
    queue.offer(left(3))
    queue.offer(left(3), stored=True)
    assert await queue.unstored(60.0, 1.0) == [], "not yet"
    assert await queue.unstored(0.0, 1.0) == [left(1)]
    assert await queue.unstored(0.0, 1.0) == []


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_any_journalled_event_comes_back_out_of_its_copy(name):
    """Through bytes and back: the very envelope, whoever copied it, and one id for all copies."""
    random = Random(name)
    model = EVENTS[name]
    said = envelope(example(model, random), random)
    copies = [copy_of(said, service, 5.0) for service in ("planner", "standby")]
    assert len({copy.id for copy in copies}) == 1
    headers, body = encode_message(copies[0])
    arrived = decode_message(headers, body, copies[0].subject)
    if model.journalled and model not in (JournalCopy, JournalEntry):
        assert original(arrived) == said
    else:
        with pytest.raises(DecodeError):
            original(arrived)
    if model is not JournalCopy:
        assert original(said) is said


@pytest.mark.parametrize(
    "change", [{"about": "another"}, {"body": b"\xc1"}, {"headers": {}}, {"headers": {"ce-type": "x"}}]
)
def test_a_copy_that_is_none_is_refused(change):
    """What is not whole, or another event than it says, is an error."""
    copy = copy_of(left(1), "planner", 5.0)
    broken = replace(copy, event=copy.event.model_copy(update=change))
    with pytest.raises(DecodeError):
        original(broken)


def test_a_copy_of_another_job_is_refused():
    """A copy carries an event of its own job."""
    copy = copy_of(replace(left(1), job="other"), "planner", 5.0)
    with pytest.raises(DecodeError, match="no copy"):
        original(replace(copy, job=JOB))


def test_samples_are_never_copied():
    """What is not journalled cannot come into the log by a copy."""
    random = Random(1)
    beat = envelope(example(Heartbeat, random), random)
    with pytest.raises(DecodeError, match="no copy"):
        original(copy_of(beat, "planner", 5.0))


def test_a_log_is_opened():
    """What only a copy has stands before it; what the log has itself stays where it is."""
    copies = [copy_of(left(number), "planner", 5.0) for number in (1, 2)]
    log = [left(0), *copies, left(2)]
    assert opened(log) == [left(0), left(1), *copies, left(2)]
