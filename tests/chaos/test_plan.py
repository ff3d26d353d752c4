"""Plans: what a seed becomes, and what is never drawn together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import get_args

from trainmover.chaos.plan import NETWORK, ROLES_STEP, SERVICES, Plan, Setting, TroubleKind, draw, undisturbed
from trainmover.faults import FaultSpec

SETTING = Setting(machines=4, ranks_per_machine=2, standbys=2, steps=40)
SEEDS = range(400)


def plans(setting: Setting = SETTING) -> list[Plan]:
    """Plans of many seeds."""
    return [draw(seed, setting) for seed in SEEDS]


def test_a_seed_always_becomes_the_same_plan() -> None:
    """And another seed another one."""
    assert plans() == plans()
    assert len(set(map(str, plans()))) > 350


def test_something_goes_wrong_in_every_plan() -> None:
    """In each plan a machine is lost or moved, and each kind is in some."""
    assert all({"kill", "stop", "move"} & {fault.kind for fault in plan.faults} for plan in plans())
    troubles = [trouble for plan in plans() for trouble in plan.troubles]
    assert {trouble.kind for trouble in troubles} == set(get_args(TroubleKind))
    assert {trouble.target for trouble in troubles if trouble.kind == "service"} == set(SERVICES)
    assert {fault.kind for plan in plans() for fault in plan.faults} == {
        "kill",
        "stop",
        "move",
        "slow",
        "pause",
    }


def test_faults_are_ones_that_a_run_takes() -> None:
    """What is drawn reads back from its own words, and fits the job."""
    for fault in (fault for plan in plans() for fault in plan.faults):
        assert FaultSpec.parse(str(fault)) == fault
        assert fault.step < SETTING.steps
        assert fault.slot < SETTING.ranks_per_machine


def test_no_trouble_is_drawn_in_vain() -> None:
    """One whose moment does not come begins at a step that every run comes to."""
    troubles = [trouble for plan in plans() for trouble in plan.troubles]
    assert {trouble.latest for trouble in troubles} == {SETTING.steps * 3 // 4}
    assert all(str(trouble).endswith(" or at step 30") for trouble in troubles)


def test_without_checkpoints_machines_are_lost_in_steps_of_their_own() -> None:
    """A machine and the keeper of its private state are not lost together, unless there are checkpoints."""
    for plan in plans():
        if plan.checkpoint_every:
            continue
        members = {f"m{number}" for number in range(SETTING.machines)}
        losses = [f for f in plan.faults if f.kind in ("kill", "stop") and f.machine in members]
        steps = sorted(fault.step for fault in losses)
        assert all(later - earlier > 1 for earlier, later in pairwise(steps)), plan
        if any(trouble.kind in NETWORK for trouble in plan.troubles):
            assert not losses, plan


def test_only_what_can_be_made_here_is_drawn() -> None:
    """Troubles that need root are left out where there is none."""
    setting = Setting(4, 1, 2, 40, kinds=("service", "clock"), checkpoints=False)
    assert {t.kind for plan in plans(setting) for t in plan.troubles} == {"service", "clock"}
    assert not any(plan.checkpoint_every for plan in plans(setting))


def first_losses(found: list[Plan]) -> list[int]:
    """The first step of each plan in which a machine is lost or moved."""
    hits = [[f for f in plan.faults if f.kind in ("kill", "stop", "move")] for plan in found]
    spares = ("m4", "m5")
    return [min((f.step for f in faults if f.machine not in spares), default=99) for faults in hits]


def test_where_only_checkpoints_have_a_lost_state_there_is_one_before_a_loss() -> None:
    """Each plan makes them, nothing is lost before the second is due, and they can be written."""
    found = plans(replace(SETTING, state="checkpoint"))
    assert {plan.checkpoint_every for plan in found} == {3, 5, 7}
    assert undisturbed("checkpoint").checkpoint_every
    assert not undisturbed("mirror").checkpoint_every
    assert all(
        step > 2 * plan.checkpoint_every for plan, step in zip(found, first_losses(found), strict=True)
    )
    troubles = [trouble for plan in found for trouble in plan.troubles]
    assert {trouble.kind for trouble in troubles} == set(get_args(TroubleKind)) - {"disk"}
    assert all(t.moment.startswith("pause:") for t in troubles if t.kind in NETWORK)


def test_of_two_neighbours_one_is_never_lost_where_a_job_shrinks() -> None:
    """So what the others compute for the lost ones has the bits of full strength."""
    found = plans(replace(SETTING, on_exhausted="shrink", standbys=0))
    hit = {f.machine for plan in found for f in plan.faults if f.kind in ("kill", "stop", "move")}
    cut = {t.target for plan in found for t in plan.troubles if t.kind in NETWORK}
    assert hit == {"m0", "m2"}
    assert cut == {"m0", "m2", "m0+m2"}
    assert min(first_losses(found)) >= ROLES_STEP
