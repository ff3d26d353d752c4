"""Roles: found from what ranks say, warmed one after another, and promoted when they are needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say
from trainmover.services import SERVICES, replay
from trainmover.services.described import Described
from trainmover.services.roles import LISTED, by_size, find_roles, seat_rows, seats_in

Kit = SimpleNamespace


# -- finding -------------------------------------------------------------------------------------


def told(events: Any) -> Described:
    """What is known once these ranks have said what they are."""
    described = Described()
    for event in events:
        described.note(event)
    return described


@settings(max_examples=100, deadline=None)
@given(
    kinds=st.lists(st.sampled_from("abc"), min_size=1, max_size=12), data=st.data(), slots=st.integers(1, 3)
)
def test_roles_are_the_classes_of_machines(kit: Kit, kinds: list[str], data: Any, slots: int) -> None:
    """In whatever order and however often ranks say it: machines that do the same are one role."""
    events = kit.all_described(len(kinds), kinds, slots=slots)
    order = data.draw(st.permutations(events))
    found = find_roles(told([*order, *events]), len(kinds), slots, 1)
    assert found == kit.found(len(kinds), kinds, slots=slots)
    seats = {tuple(seats_in(role)) for role in found.roles}
    assert seats == {tuple(s for s, kind in enumerate(kinds) if kind == each) for each in kinds}
    for role in found.roles:
        assert role.representative in seats_in(role)
        assert role.representative > 0 or seats_in(role) == [0]
    assert len({role.name for role in found.roles}) == len(found.roles)


@given(st.sets(st.integers(0, 60)))
def test_seats_are_written_as_rows(seats: set[int]) -> None:
    """Rows hold exactly the seats, and regular ones need a single row."""
    rows = seat_rows(sorted(seats))
    role = say.MachineRole(name="x", seats=rows or (say.SeatRow(first=0),), representative=0)
    assert seats_in(role) == sorted(seats) or not seats
    assert len(seat_rows(range(3, 90, 7))) == 1


def staged(kit: Kit, stages: list[Any], kinds: list[str] | None = None) -> list[str]:
    """Names of the roles of machines of one rank with these places in a pipeline."""
    kinds = kinds or [f"k{number}" for number in range(len(stages))]
    events = [
        kit.described(f"m{rank}", rank, kind=kind, stage=stage)
        for rank, (kind, stage) in enumerate(zip(kinds, stages, strict=True))
    ]
    return [role.name for role in find_roles(told(events), len(stages), 1, 1).roles]


def test_names_tell_the_place_in_a_pipeline(kit: Kit) -> None:
    """First, middle and last where all have a place; numbers where that is not enough; one role is all."""
    assert staged(kit, [(0, 3), (1, 3), (2, 3)]) == ["first", "middle", "last"]
    assert staged(kit, [(0, 4), (1, 4), (2, 4), (3, 4)]) == ["first", "middle-1", "middle-2", "last"]
    assert staged(kit, [(0, 2), (1, 2)]) == ["first", "last"]
    assert staged(kit, [(0, 3), None, (2, 3)]) == ["role-1", "role-2", "role-3"]
    assert staged(kit, [(0, 3), (2, 3)], ["same", "same"]) == ["all"]


def test_a_pipeline_inside_the_machines_gives_no_place(kit: Kit) -> None:
    """Machines that hold several stages are numbered."""
    events = [
        kit.described(f"m{seat}", seat * 2 + slot, slots=2, kind=f"k{seat}", stage=(slot, 2))
        for seat in range(2)
        for slot in range(2)
    ]
    assert [role.name for role in find_roles(told(events), 2, 2, 1).roles] == ["role-1", "role-2"]


def test_machines_that_are_all_different_are_still_told_of(kit: Kit) -> None:
    """More roles than can be listed: those with the most seats are, the others are counted."""
    kinds = ["twice", *(f"k{number}" for number in range(LISTED)), "twice"]
    found = kit.found(len(kinds), kinds)
    assert (len(found.roles), found.unlisted) == (LISTED, 1)
    assert seats_in(by_size(found.roles)[0]) == [0, LISTED + 1]


def test_replicas_are_ranks_of_the_same_state(kit: Kit) -> None:
    """Sources: the guardian if it is one, then the next higher rank, round; never the rank itself."""
    described = told(kit.all_described(6, ("a", "b") * 3))
    assert described.sources(2, lambda rank: True, 3, 8) == (4, 0)
    assert described.sources(2, lambda rank: True, 0, 8) == (0, 4)
    assert described.sources(2, lambda rank: rank != 4, 3, 8) == (0,)
    assert described.sources(1, lambda rank: True, 3, 1) == (3,)
    assert described.agree({0: "x", 2: "x", 4: "x", 1: "y", 3: "y"})
    assert not described.agree({0: "x", 1: "x", 3: "y"})


# -- all together --------------------------------------------------------------------------------


def sound(world: Any) -> None:
    """Whoever was assigned was parked in the seat's role; what joiners were told is right."""
    parked: set[Any] = set()
    slots, roles, seats = world.plant.slots, {}, {}
    for envelope in world.log:
        match envelope.event:
            case say.RolesFound() as found:
                roles = {seat: role.name for role in found.roles for seat in seats_in(role)}
            case say.StandbyParked() as event:
                parked.add((event.machine, event.incarnation, event.generation, event.role, event.slot))
            case say.MachineLaunch() as launch:
                seats[launch.position] = launch.machine
            case say.SwitchCommitted() as event:
                seats.update(enumerate(event.machines))
            case say.StandbyAssigned() as event:
                for slot in range(slots):
                    life = (event.joiner, event.joiner_incarnation)
                    assert (*life, event.generation, event.role, slot) in parked
            case say.PlanReady() as plan:
                assert len(plan.joiner_ranks) == len(plan.joiners) * slots
                for joiner in plan.joiner_ranks:
                    seat = joiner.rank // slots
                    assert plan.endpoints[joiner.rank].life.endswith(roles[seat])
                    assert joiner.rank not in joiner.sources
                    for source in joiner.sources:
                        assert roles[source // slots] == roles[seat]
                        assert plan.machines[source // slots] == seats[source // slots]
                    assert joiner.groups[0].count == len(plan.machines) * slots
            case _:
                pass


def ended(world: Any) -> None:
    """The job completed, or it is held: a state is nowhere any more, or too few are left to begin again."""
    if world.all(say.JobCompleted):
        return
    reason = world.all(say.JobHeld)[-1].reason
    here = {one.machine for one in world.all(say.MachineJoined)}
    here -= {one.machine for one in world.all(say.MachineFailed)}
    seats = {one.position for one in world.all(say.MachineLaunch)}
    too_few = "too few machines are left to start again" in reason and len(here) < len(seats)
    assert too_few or "the state of rank" in reason, world.story(
        say.StandbyAssigned, say.PlanReady, say.SwitchCommitted, say.JobHeld, say.MachineLaunch
    )
    assert not world.all(say.JobFailed)
    sound(world)
    result = replay(world.log)
    assert result.same, str(result)


@pytest.mark.parametrize("seat", [0, 3, 5])
@pytest.mark.parametrize("how", ["kill", "move"])
def test_a_machine_of_any_stage_is_replaced_by_the_one_spare(kit: Kit, seat: int, how: str) -> None:
    """One general standby takes a first, a middle or a last stage, by failure or by move."""
    world = kit.World(machines=6, slots=2, stages=3)
    hit = (
        (lambda: world.plant.kill(f"m{seat}"))
        if how == "kill"
        else (lambda: world.plant.publish(say.MoveRequested(machine=f"m{seat}"), "cli"))
    )
    world.at(40, hit).run()
    ended(world)
    assert world.plant.layout[seat] == "m6"
    (assigned,) = world.all(say.StandbyAssigned)
    assert assigned.role == ("first", "middle", "last")[seat // 2]
    assert [event.role for event in world.all(say.StandbyWarm) if event.machine == "m6"] == [
        "first",
        "middle",
        "last",
    ]


def test_two_machines_of_different_roles_at_once(kit: Kit) -> None:
    """Two standbys take two different stages in one switch."""
    world = kit.World(machines=6, slots=2, stages=3, standbys=2)
    world.at(40, lambda: (world.plant.kill("m1"), world.plant.kill("m4"))).run()
    ended(world)
    assert {world.plant.layout[1], world.plant.layout[4]} == {"m6", "m7"}
    assert len(world.all(say.SwitchCommitted)) == 2


def test_a_failure_while_its_role_is_not_warm_yet(kit: Kit) -> None:
    """The last stage fails right after the recording: it waits for that role, which comes next."""
    world = kit.World(machines=6, stages=3, steps=80)
    world.at(4, lambda: world.plant.kill("m4")).run()
    ended(world)
    assert world.plant.layout[4] == "m6"
    assert [event.role for event in world.all(say.StandbyWarm)][:2] in (["last"], ["first", "last"])


def test_a_spare_that_dies_while_it_warms_its_second_role(kit: Kit) -> None:
    """A fresh one is warmed from the beginning and is there when it is needed."""
    world = kit.World(machines=6, stages=3)
    world.run(lambda: any(event.role == "middle" for event in world.all(say.StandbyWarm)))
    world.plant.kill("m6")
    world.at(50, lambda: world.plant.kill("m2")).run()
    ended(world)
    assert world.plant.layout[2] == "m7"


def test_a_job_without_replicas_holds(kit: Kit) -> None:
    """Three stages on three machines: a failure cannot be mended, and a move is refused before."""
    world = kit.World(machines=3, stages=3)
    world.at(20, lambda: world.plant.publish(say.MoveRequested(machine="m1"), "cli"))
    world.at(30, lambda: world.plant.kill("m1")).run(limit=60)
    assert "the state of rank 1 is on no other machine" in world.all(say.MoveRefused)[0].reason
    (held,) = world.all(say.JobHeld)
    assert held.reason == (
        "nobody can take the place of m1 (position 1): the state of rank 1 is on no other machine that "
        "lives; a second data-parallel replica of it, on another machine, or a mirror (--state "
        "mirror) would have it"
    )
    assert len(world.all(say.SwitchCommitted)) == 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    jitter=st.sampled_from([0.0, 0.01, 0.05]),
    shape=st.sampled_from([(6, 3), (6, 2), (4, 2), (4, 1), (8, 4)]),
    slots=st.integers(1, 2),
    standbys=st.integers(1, 3),
    memory=st.sampled_from(["resident", "sequential"]),
    faults=st.lists(
        st.tuples(
            st.integers(1, 50),
            st.sampled_from(["kill", "freeze", "move", "cut", "spare"]),
            st.integers(0, 7),
        ),
        max_size=5,
    ),
)
def test_any_faults_in_a_pipeline(
    kit: Kit,
    seed: int,
    jitter: float,
    shape: tuple[int, int],
    slots: int,
    standbys: int,
    memory: str,
    faults: list[tuple[int, str, int]],
) -> None:
    """Whatever happens to members and spares, however late or often it is heard: it ends as it should."""
    machines, stages = shape
    world = kit.World(
        machines=machines,
        stages=stages,
        slots=slots,
        standbys=standbys,
        seed=seed,
        jitter=jitter,
        doubles=0.2,
        standby_memory=memory,
    )

    def hit(kind: str, position: int) -> None:
        plant = world.plant
        name = plant.layout[position % machines]
        if kind == "spare":
            idle = [m for m in plant.machines if m not in plant.layout and plant.machines[m].well]
            name = idle[position % len(idle)] if idle else name
        if not plant.machines[name].well:
            return
        if kind == "move":
            plant.publish(say.MoveRequested(machine=name), "cli")
        elif kind == "cut":
            plant.cut(name, plant.layout[(position + 1) % machines])
        else:
            (plant.freeze if kind == "freeze" else plant.kill)(name)

    for step, kind, position in faults:
        world.at(step, lambda kind=kind, position=position: hit(kind, position))  # type: ignore[misc]
    world.run(limit=600)
    ended(world)


def test_standby_hears_what_it_needs() -> None:
    """The services that need descriptions hear them."""
    for name in ("standby", "planner", "switcher"):
        assert "rank.described" in SERVICES[name].core().hears
