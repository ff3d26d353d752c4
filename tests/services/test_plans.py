"""Plans of large jobs: they carry what is new, at the price of what is new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.steps import steps_of
from trainmover.events import catalogue as say
from trainmover.services.described import Described
from trainmover.services.planner import PlannerCore
from trainmover.services.plans import SOURCES, WHOLE
from trainmover.services.standby import StandbyCore
from trainmover.services.switcher import SwitcherCore
from trainmover.topology import Grid, Groups, Layout, links_at

Kit = SimpleNamespace
SLOTS = 64


def rows(replicas: int, rank: int) -> tuple[say.GroupRow, ...]:
    """Data and tensor groups: a tensor group fills a machine."""
    seat, slot = divmod(rank, SLOTS)
    return (
        say.GroupRow(name=f"data:{slot}", first=slot, stride=SLOTS, count=replicas),
        say.GroupRow(name=f"tensor:{seat * SLOTS}", first=seat * SLOTS, count=SLOTS),
    )


def training(kit: Kit, machines: int) -> Any:
    """A planner in a job of so many machines of 64 ranks, in training on epoch 1."""
    bench = kit.Bench(PlannerCore())
    names = [f"m{number}" for number in range(machines)]
    bench.hear(kit.submitted(machines, SLOTS, 0), *(kit.joined(name, slots=SLOTS) for name in names))
    bench.hear(*(kit.up(name, slot) for name in names for slot in range(SLOTS)))
    assert bench.said[-1].type == "plan.ready"
    bench.hear(kit.committed(1, names, kind="start"))
    bench.hear(kit.started(), kit.found(machines, slots=SLOTS))
    bench.hear(*kit.all_described(machines, slots=SLOTS, groups=lambda rank: rows(machines, rank)))
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
    sources = {rank for joiner in plan.joiner_ranks for rank in joiner.sources}
    assert plan.endpoint_ranks == tuple(sorted({*ends, *sources}))
    layout = Layout(plan.epoch, plan.machines, SLOTS)
    for rank, endpoint in zip(plan.endpoint_ranks, plan.endpoints, strict=True):
        role = "all" if rank in mine else ""
        assert endpoint == kit.endpoint(layout.machine_of(rank), rank % SLOTS, role=role)
    assert plan.links_total == groups.links_total(LARGE * SLOTS, SLOTS)
    assert say.PlanReady.model_validate(plan.model_dump()) == plan, "what was not checked again is right"


def test_joiners_are_told_their_groups_and_sources(kit: Kit) -> None:
    """Each rank of a joiner: its groups, and replicas that stay, the guardian first, others near it."""
    bench = training(kit, LARGE)
    change(kit, bench, 0)
    bench.hear(bench.assignment)
    plan = bench.said[-1]
    assert [joiner.rank for joiner in plan.joiner_ranks] == list(range(SLOTS))
    for joiner in plan.joiner_ranks:
        assert joiner.groups == rows(LARGE, joiner.rank)
        assert joiner.sources == tuple(joiner.rank + SLOTS * seat for seat in range(1, 1 + SOURCES))
        assert set(joiner.sources) <= set(plan.endpoint_ranks)


def test_a_small_job_plans_with_all_endpoints(kit: Kit) -> None:
    """Up to the limit every plan carries every endpoint by rank, and a start lists its links."""
    bench = training(kit, SMALL)
    start = bench.said[-1]
    assert len(start.links_added) == start.links_total > 0
    change(kit, bench, 9)
    bench.hear(bench.assignment)
    plan = bench.said[-1]
    assert (len(plan.endpoints), plan.endpoint_ranks) == (WHOLE, ())
    assert plan.endpoints[9 * SLOTS] == kit.endpoint("s0", 0, role="all")
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


def test_a_report_costs_the_same_in_every_job(kit: Kit) -> None:
    """A rank that has prepared costs the switcher the same in a job of 800 machines as in one of 100."""
    costs = []
    for machines in (100, 800):
        bench = kit.Bench(SwitcherCore())
        names = [f"m{number}" for number in range(machines)]
        bench.hear(kit.submitted(machines), *(kit.joined(name) for name in names))
        bench.hear(*(kit.launch(name, seat, n=machines) for seat, name in enumerate(names)))
        bench.hear(kit.plan(1, names, kind="start", base=0))
        reports = [kit.prepared(1, rank, name) for rank, name in enumerate(names)]
        costs.append(steps_of(lambda bench=bench, reports=reports: bench.hear(*reports[:50])))  # type: ignore[misc]
        bench.hear(*reports[50:], *(kit.adopted(1, rank, name) for rank, name in enumerate(names)))
        assert bench.said[-1].type == "switch.committed"
    assert costs[1] <= 1.1 * costs[0]


@pytest.mark.parametrize("core", [PlannerCore, SwitcherCore, StandbyCore])
def test_what_a_rank_is_costs_the_same_in_every_job(kit: Kit, core: Any) -> None:
    """All ranks say what they are while nothing else waits: none of them walks the others."""
    costs = []
    for machines in (100, 800):
        bench = kit.Bench(core())
        names = [f"m{number}" for number in range(machines)]
        bench.hear(kit.submitted(machines, standbys=0), *(kit.joined(name) for name in names))
        bench.hear(*(kit.launch(name, seat, n=machines) for seat, name in enumerate(names)))
        bench.hear(*(kit.up(name) for name in names), kit.committed(1, names, kind="start"))
        told = kit.all_described(machines)
        costs.append(steps_of(lambda bench=bench, told=told: bench.hear(kit.started(), *told[:50])))  # type: ignore[misc]
    assert costs[1] <= 1.1 * costs[0]


@pytest.mark.parametrize(
    "told",
    [
        say.GroupRow(name="odd"),
        say.GroupRow(name="odd", first=2, count=3),
        say.GroupRow(name="odd", ranks=(0, 4)),
        say.GroupRow(name="odd", ranks=(1, 1)),
        say.GroupRow(name="data", ranks=(3, 1)),
    ],
)
def test_what_a_rank_says_is_not_trusted_to_fit(kit: Kit, told: say.GroupRow) -> None:
    """Groups of ranks that are not there, or twice, are left out; a name is what its lowest rank says."""
    described = Described()
    described.note(kit.described("m1", 1, groups=(told, say.GroupRow(name="list", ranks=(3, 1)))))
    described.note(kit.described("m0", 0, groups=(say.GroupRow(name="data", stride=2, count=2),)))
    assert dict(described.groups(4)) == {"data": (0, 2), "list": (3, 1)}
