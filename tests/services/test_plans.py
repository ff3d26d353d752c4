"""Plans of large jobs: they carry what is new, at the price of what is new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.steps import steps_of
from trainmover.events import catalogue as say
from trainmover.services.planner import PlannerCore
from trainmover.services.plans import SOURCES, WHOLE, groups_in
from trainmover.services.switcher import SwitcherCore
from trainmover.topology import Grid, Groups, Layout, links_at

Kit = SimpleNamespace
SLOTS = 64


def grid(replicas: int) -> say.GroupGrid:
    """Data and tensor groups: a tensor group fills a machine."""
    return say.GroupGrid(
        dims=(say.GridDim(name="data", size=replicas), say.GridDim(name="tensor", size=SLOTS)),
    )


def training(kit: Kit, machines: int) -> Any:
    """A planner in a job of so many machines of 64 ranks, in training on epoch 1."""
    bench = kit.Bench(PlannerCore())
    names = [f"m{number}" for number in range(machines)]
    bench.hear(kit.submitted(machines, SLOTS, 0), *(kit.joined(name, slots=SLOTS) for name in names))
    bench.hear(*(kit.up(name, slot) for name in names for slot in range(SLOTS)))
    assert bench.said[-1].type == "plan.ready"
    bench.hear(kit.committed(1, names, kind="start"))
    bench.hear(say.TrainingStarted(generation=1, epoch=1, step=1, groups={}, grids=(grid(machines),)))
    bench.hear(*(kit.recorded("m1", slot) for slot in range(SLOTS)))
    return bench


def change(kit: Kit, bench: Any, seat: int) -> None:
    """The machine on a seat fails and a spare that is up takes its place."""
    bench.hear(kit.joined("s0", slots=SLOTS), *(kit.up("s0", slot, mode="sandbox") for slot in range(SLOTS)))
    bench.hear(kit.failed(f"m{seat}"))
    bench.assignment = kit.assigned(f"m{seat}", "s0")


SMALL, LARGE = WHOLE // SLOTS, 2 * WHOLE // SLOTS


def test_a_large_job_plans_with_the_endpoints_that_are_new(kit: Kit) -> None:
    """Endpoints: of the joiner, of everybody it gets a link to, and of those that serve it state."""
    bench = training(kit, LARGE)
    start = bench.said[-1]
    assert (len(start.endpoints), start.endpoint_ranks, start.links_added) == (LARGE * SLOTS, (), ())
    change(kit, bench, 9)
    bench.hear(bench.assignment)
    plan = bench.said[-1]
    assert (plan.machines[9], plan.leavers, plan.joiners) == ("s0", ("m9",), ("s0",))
    groups = Groups(grids=[Grid((("data", LARGE), ("tensor", SLOTS)))])
    mine = range(9 * SLOTS, 10 * SLOTS)
    links = set().union(*(links_at(rank, LARGE * SLOTS, SLOTS, groups) for rank in mine))
    assert {(link.group, link.low, link.high) for link in plan.links_added} == {
        (link.group, link.low, link.high) for link in links
    }
    ends = {rank for link in links for rank in (link.low, link.high)}
    assert plan.endpoint_ranks == tuple(sorted({*ends, *range(SOURCES)}))
    layout = Layout(plan.epoch, plan.machines, SLOTS)
    for rank, endpoint in zip(plan.endpoint_ranks, plan.endpoints, strict=True):
        assert endpoint == kit.endpoint(layout.machine_of(rank), rank % SLOTS)
    assert plan.links_total == groups.links_total(LARGE * SLOTS, SLOTS)
    assert say.PlanReady.model_validate(plan.model_dump()) == plan, "what was not checked again is right"


def test_sources_of_state_are_ranks_that_stay(kit: Kit) -> None:
    """When the lowest machine is the one that changes, the sources are the lowest ranks after it."""
    bench = training(kit, LARGE)
    change(kit, bench, 0)
    bench.hear(bench.assignment)
    plan = bench.said[-1]
    assert set(range(SLOTS + SOURCES)) <= set(plan.endpoint_ranks)
    assert plan.endpoints[SLOTS] == kit.endpoint("m1", 0)


def test_a_small_job_plans_with_all_endpoints(kit: Kit) -> None:
    """Up to the limit every plan carries every endpoint by rank, and a start lists its links."""
    bench = training(kit, SMALL)
    start = bench.said[-1]
    assert len(start.links_added) == start.links_total > 0
    change(kit, bench, 9)
    bench.hear(bench.assignment)
    plan = bench.said[-1]
    assert (len(plan.endpoints), plan.endpoint_ranks) == (WHOLE, ())
    assert plan.endpoints[9 * SLOTS] == kit.endpoint("s0", 0)
    assert plan.endpoints[10 * SLOTS] == kit.endpoint("m10", 0)


def test_a_repair_of_a_large_job_brings_no_endpoints(kit: Kit) -> None:
    """When nobody is new, everybody keeps what is known."""
    bench = training(kit, LARGE)
    bench.hear(say.LinkRepair(epoch=1, reason="cut"))
    plan = bench.said[-1]
    assert (plan.kind, plan.endpoints, plan.endpoint_ranks, plan.links_added) == ("repair", (), (), ())


def test_a_decision_takes_the_same_steps_in_every_large_job(kit: Kit) -> None:
    """Twice the ranks, the same steps: a decision does not walk the layout."""
    costs = []
    for machines in (LARGE, 2 * LARGE):
        bench = training(kit, machines)
        change(kit, bench, 41)
        costs.append(steps_of(lambda bench=bench: bench.hear(bench.assignment)))  # type: ignore[misc]
        assert bench.said[-1].type == "plan.ready"
    assert costs[1] <= 1.05 * costs[0]


def test_the_switcher_hands_on_which_ranks_are_meant(kit: Kit) -> None:
    """The order to prepare carries the endpoints as the plan does."""
    bench = kit.Bench(SwitcherCore())
    bench.hear(kit.submitted(2), kit.joined("m0"), kit.joined("m1"), kit.launch("m0", 0), kit.launch("m1", 1))
    plan = kit.plan(1, ("m0", "m1"), kind="start", base=0)
    bench.hear(plan.model_copy(update={"endpoints": plan.endpoints[1:], "endpoint_ranks": (1,)}))
    prepare = bench.said[-1]
    assert (prepare.endpoints, prepare.endpoint_ranks) == (plan.endpoints[1:], (1,))


@pytest.mark.parametrize(
    "told",
    [
        say.GroupGrid(dims=()),
        say.GroupGrid(dims=(say.GridDim(name="a", size=5),)),
        say.GroupGrid(dims=(say.GridDim(name="a", size=2),), first=3),
        say.GroupGrid(dims=(say.GridDim(name="a", size=2),), axes=(("b",),)),
        say.GroupGrid(dims=(say.GridDim(name="a" * 127, size=2),)),
        say.GroupGrid(dims=(say.GridDim(name="data", size=2),)),
    ],
)
def test_what_a_rank_says_is_not_trusted_to_fit(told: say.GroupGrid) -> None:
    """Grids that cannot be, or take another's name, and lists of ranks that are not there are left out."""
    good = say.GroupGrid(dims=(say.GridDim(name="data", size=4),))
    lists = {"x": (0, 3), "y": (0, 4), "z": (1, 1), "data:0": (0, 1)}
    event = say.TrainingStarted(generation=1, epoch=1, step=1, groups=lists, grids=(good, told))
    assert dict(groups_in(event, 4)) == {"x": (0, 3), "data:0": (0, 1, 2, 3)}
