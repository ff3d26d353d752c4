"""Evidence and verdicts of the health core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmover.events import catalogue as say
from trainmover.services.health import TABLE, Health, HealthCore
from trainmover.services.tables import after, check

Kit = SimpleNamespace


@pytest.fixture
def bench(kit: Kit) -> Any:
    """Health in a job of three machines and a spare, in training on epoch 1."""
    bench = kit.Bench(HealthCore())
    bench.hear(kit.submitted(), *(kit.joined(f"m{i}") for i in range(4)))
    bench.hear(*(kit.launch(f"m{i}", i) for i in range(3)))
    assert bench.hear(kit.committed(1, ("m0", "m1", "m2"), kind="start"), kit.started()) == []
    return bench


def expired(machine: str, life: str = "a") -> say.LeaseExpired:
    return say.LeaseExpired(machine=machine, incarnation=life, silent_seconds=1.4, limit_seconds=1.2)


def test_the_table_is_whole() -> None:
    """Every state has a row, verdicts are final, and every living state can be failed by proof."""
    check(TABLE, Health)
    assert not TABLE[Health.FAILED]
    assert not TABLE[Health.LEFT]
    for state in (Health.WELL, Health.ASKED, Health.LAPSED, Health.SUSPECTED):
        for proof in ("rank exited", "lease stalled", "deserted", "replaced"):
            assert after(TABLE, state, proof) is Health.FAILED


def test_a_lapsed_lease_is_checked_by_a_probe(bench: Any, kit: Kit) -> None:
    """Missing heartbeats make health ask: a machine that answers was only busy, a silent one has failed."""
    assert kit.brief(bench.hear(expired("m1"))) == ["probe m1"]
    assert kit.brief(bench.hear(kit.probed("m1", "alive"))) == []
    assert kit.brief(bench.hear(expired("m1"))) == ["probe m1"]
    assert kit.brief(bench.hear(kit.probed("m1", "silent"))) == ["machine.failed machine=m1"]
    lines = bench.said[-1].evidence
    assert any("no heartbeat" in line for line in lines)
    assert any("does not answer" in line for line in lines)


def test_a_rank_that_is_stuck_gets_a_new_epoch(bench: Any, kit: Kit) -> None:
    """A rank that says of itself that its epoch is over blames nobody: the links are made again."""
    assert kit.brief(bench.hear(kit.broken("m0", "m0"))) == ["timer grace:1"]
    assert kit.brief(bench.fire("grace:1")) == ["link.repair epoch=1"]
    assert bench.hear(kit.broken("m0", "m0")) == [], "asked for already"


def test_a_stuck_rank_waits_for_a_lost_machine(bench: Any, kit: Kit) -> None:
    """While a machine is lost a rank waits for its replacement, not for a repair."""
    bench.hear(kit.broken("m0", "m0"), kit.exited("m1", signal=9))
    assert kit.brief(bench.fire("grace:1")) == []


def test_two_suspicions_are_proof(bench: Any, kit: Kit) -> None:
    """A machine without heartbeats that also loses a link has failed, in either order."""
    bench.hear(expired("m1"))
    assert kit.brief(bench.hear(kit.broken("m0", "m1"))) == ["machine.failed machine=m1"]
    bench.hear(kit.broken("m0", "m2"))
    assert kit.brief(bench.hear(expired("m2"))) == ["machine.failed machine=m2"]


def test_absence_is_proof(bench: Any, kit: Kit) -> None:
    """A broken link makes health ask; when nobody listens any more the machine has failed at once."""
    assert kit.brief(bench.hear(kit.broken("m0", "m1"), kit.broken("m2", "m1"))) == ["probe m1"]
    assert kit.brief(bench.hear(kit.probed("m1", "absent"))) == ["machine.failed machine=m1"]
    verdict = bench.said[-1]
    assert any("m0 lost the link 0-1 of epoch 1: connection reset" in line for line in verdict.evidence)
    assert any("m2 lost the link" in line for line in verdict.evidence)


def test_silence_is_suspicion(bench: Any, kit: Kit) -> None:
    """A machine that does not answer is suspected once and asked again until its lease decides."""
    bench.hear(kit.broken("m0", "m1"))
    assert kit.brief(bench.hear(kit.probed("m1", "silent"))) == [
        "machine.suspected machine=m1",
        "timer ask:m1",
    ]
    assert kit.brief(bench.fire("ask:m1")) == ["probe m1"]
    assert kit.brief(bench.hear(kit.probed("m1", "silent"))) == ["timer ask:m1"]
    assert kit.brief(bench.hear(expired("m1"))) == ["machine.failed machine=m1"]
    assert kit.brief(bench.fire("ask:m1")) == []


def test_both_ends_alive_repairs_the_link(bench: Any, kit: Kit) -> None:
    """When both ends answer and no rank exits in the grace time, the link is made again, once."""
    bench.hear(kit.broken("m0", "m1"), kit.broken("m1", "m0"))
    assert kit.brief(bench.hear(kit.probed("m1", "alive"))) == ["timer grace:1"]
    assert kit.brief(bench.hear(kit.probed("m0", "alive"))) == []
    assert bench.timers["grace:1"] == bench.now + 1.5
    assert kit.brief(bench.fire("grace:1")) == ["link.repair epoch=1"]
    assert bench.hear(kit.broken("m0", "m1")) == []


def test_an_exit_in_the_grace_time_is_the_cause(bench: Any, kit: Kit) -> None:
    """A rank's exit that comes after the answer fails its machine, and there is no repair."""
    bench.hear(kit.broken("m0", "m1"), kit.probed("m1", "alive"))
    assert kit.brief(bench.hear(kit.exited("m1", signal=9))) == ["machine.failed machine=m1"]
    assert "ended by signal 9" in bench.said[-1].reason
    assert bench.fire("grace:1") == []


def test_a_suspect_that_answers_gets_its_grace_time(bench: Any, kit: Kit) -> None:
    """A repair waits for everybody accused: one that is still suspected delays it."""
    bench.hear(kit.broken("m0", "m1"), kit.broken("m0", "m2"))
    bench.hear(kit.probed("m1", "alive"), kit.probed("m2", "silent"))
    assert bench.fire("grace:1") == []
    returned = say.LeaseReturned(machine="m2", incarnation="a", silent_seconds=1.0)
    assert kit.brief(bench.hear(returned)) == ["timer grace:1"]
    assert kit.brief(bench.fire("grace:1")) == ["link.repair epoch=1"]


def test_old_and_foreign_links_accuse_nobody(bench: Any, kit: Kit) -> None:
    """A link of an older epoch, of an unknown one, or with a machine without a seat means nothing."""
    bench.hear(kit.committed(3, ("m0", "m3", "m2"), leavers=("m1",), joiners=("m3",)))
    for event in (
        kit.broken("m0", "m2", epoch=1),
        kit.broken("m0", "m2", epoch=9),
        kit.broken("m0", "m1", epoch=3),
        kit.broken("m1", "m0", epoch=3),
    ):
        assert bench.hear(event) == []
    assert kit.brief(bench.hear(kit.broken("m0", "m3", epoch=3))) == ["probe m3"]


def test_links_of_an_epoch_on_its_way_count(bench: Any, kit: Kit) -> None:
    """Ranks may work in an epoch before its commit is said: its layout counts until it is aborted."""
    prepare = say.SwitchPrepare(
        epoch=2,
        kind="failure",
        generation=1,
        incidents=("inc-1",),
        machines=("m0", "m3", "m2"),
        ranks_per_machine=1,
        leavers=("m1",),
        joiners=("m3",),
        endpoints=(),
        limit_seconds=60.0,
    )
    bench.hear(prepare)
    assert kit.brief(bench.hear(kit.broken("m0", "m3", epoch=2))) == ["probe m3"]
    bench.hear(say.SwitchAborted(epoch=2, incidents=("inc-1",), reason="x"))
    assert bench.hear(kit.broken("m0", "m2", epoch=2)) == []


@pytest.mark.parametrize("first", range(4))
def test_a_life_fails_once(bench: Any, kit: Kit, first: int) -> None:
    """Whatever proof comes first and whatever follows, one life is declared dead once."""
    proofs = [
        kit.exited("m1", signal=11),
        kit.joined("m1", "b"),
        say.LeaseStalled(machine="m1", incarnation="a", slot=0, state="stopped"),
        kit.left("m1"),
    ]
    proofs = proofs[first:] + proofs[:first]
    assert kit.brief(bench.hear(*proofs, *proofs)) == ["machine.failed machine=m1"]


def test_a_new_life_replaces_the_old_one(bench: Any, kit: Kit) -> None:
    """A machine that joins again has lost its old life; the new one can fail on its own."""
    assert kit.brief(bench.hear(kit.joined("m1", "b"))) == ["machine.failed machine=m1"]
    assert bench.said[-1].incarnation == "a"
    assert kit.brief(bench.hear(kit.exited("m1", "b"))) == ["machine.failed machine=m1"]


def test_a_released_leaver_does_not_fail(bench: Any, kit: Kit) -> None:
    """What a leaver does after its seat is taken is nobody's concern, in either order of hearing."""
    assert bench.hear(kit.left("m2", reason="released")) == []
    assert bench.hear(kit.committed(2, ("m0", "m1", "m3"), leavers=("m2",), joiners=("m3",))) == []
    assert bench.hear(kit.committed(4, ("m0", "m4", "m3"), leavers=("m1",), joiners=("m4",))) == []
    assert bench.hear(kit.exited("m1", signal=9), expired("m1"), kit.left("m1")) == []


def test_a_spare_is_lost_with_its_sandbox(bench: Any, kit: Kit) -> None:
    """A sandbox rank that exits costs the spare, not the job."""
    outputs = bench.hear(kit.exited("m3", mode="sandbox", code=1, error="Boom"))
    assert kit.brief(outputs) == ["machine.failed machine=m3"]


def test_ranks_of_an_older_generation_may_end(bench: Any, kit: Kit) -> None:
    """The ranks that a fresh start ends are no evidence."""
    bench.hear(*(kit.launch(f"m{i}", i, generation=2) for i in range(3)))
    assert bench.hear(kit.exited("m1", signal=9, generation=1)) == []


def test_a_script_that_raises_before_the_first_step(kit: Kit) -> None:
    """An error of the script before any step fails the job with its text, unless a loss explains it."""
    bench = kit.Bench(HealthCore())
    bench.hear(kit.submitted(), kit.joined("m0"), kit.launch("m0", 0))
    bench.hear(kit.exited("m0", code=1, error="ValueError: no such file"))
    assert [event.type for event in bench.said] == ["job.failed"]
    assert "ValueError: no such file" in bench.said[0].reason
    assert bench.hear(expired("m0")) == [], "nothing is said after the end"

    bench = kit.Bench(HealthCore())
    bench.hear(kit.submitted(), *(kit.joined(f"m{i}") for i in range(3)))
    bench.hear(*(kit.launch(f"m{i}", i) for i in range(3)))
    bench.hear(kit.exited("m1", signal=9), kit.exited("m0", code=1, error="LinkError: m1"))
    assert [event.type for event in bench.said] == ["machine.failed", "machine.failed"]


def test_a_script_that_raises_again_and_again(bench: Any, kit: Kit) -> None:
    """Three machines in a row with an error and no committed step between them fail the job."""
    bench.hear(kit.exited("m0", code=1, error="IndexError"))
    bench.hear(say.TrainingResumed(epoch=2, step=5))
    bench.hear(kit.exited("m1", code=1, error="IndexError"))
    bench.hear(kit.exited("m2", code=1, error="IndexError"))
    assert [event.type for event in bench.said] == ["machine.failed"] * 3
    bench.hear(kit.joined("m5"), kit.exited("m5", code=1, error="IndexError: list index"))
    assert bench.said[-1].type == "job.failed"
    assert "IndexError: list index" in bench.said[-1].reason


def test_the_incident_is_named_after_the_life(bench: Any, kit: Kit) -> None:
    """Suspicion and verdict of one life carry the same incident, whatever the evidence was."""
    bench.hear(kit.broken("m0", "m1"))
    first = bench.hear(kit.probed("m1", "silent"))[0].incident
    second = bench.hear(expired("m1"))[0].incident
    assert first == second is not None


def test_a_state_that_is_nowhere_ends_the_job_with_one_sentence(bench: Any, kit: Kit) -> None:
    """Every rank that is left ends of it: the first one's words are the reason, and nothing follows."""
    lost = "the private state of rank 1 is lost: rank 2, which kept its copy, was lost with it"
    ends = [
        kit.exited(name, code=1, error=lost).model_copy(update={"hopeless": True}) for name in ("m0", "m3")
    ]
    assert [event.event for event in bench.hear(ends[0])] == [say.JobFailed(reason=lost)]
    assert bench.hear(ends[1]) == []


def test_a_state_that_is_nowhere_is_gone_back_for_where_there_are_checkpoints(kit: Kit) -> None:
    """Then it is a loss of machines like any other, after which everything starts from the checkpoint."""
    bench = kit.Bench(HealthCore())
    bench.hear(kit.submitted(checkpoint_every=5), *(kit.joined(f"m{i}") for i in range(3)))
    bench.hear(*(kit.launch(f"m{i}", i) for i in range(3)))
    bench.hear(kit.committed(1, ("m0", "m1", "m2"), kind="start"), kit.started())
    for name in ("m0", "m1", "m2"):
        end = kit.exited(name, code=1, error="lost").model_copy(update={"hopeless": True})
        assert kit.brief(bench.hear(end)) == [f"machine.failed machine={name}"]


def test_a_sandbox_rank_that_is_started_again_is_no_loss(bench: Any, kit: Kit) -> None:
    """The machine program says that it goes on without it."""
    end = kit.exited("m3", mode="sandbox", signal=9, role="last").model_copy(update={"again": True})
    assert bench.hear(end) == []
    assert kit.brief(bench.hear(kit.exited("m3", mode="sandbox", signal=9, role="last"))) == [
        "machine.failed machine=m3"
    ]
