"""Standby at scale: what it looks at, and that it misses nothing by not looking."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.steps import steps_of
from trainmover.events import catalogue as say
from trainmover.services import SERVICES
from trainmover.services.pool import Pool
from trainmover.services.spares import Spare
from trainmover.services.standby import StandbyCore

Kit = SimpleNamespace


class ThoroughPool(Pool):
    def _due(self) -> Any:
        self._line.stir_all()
        return super()._due()


class Thorough(StandbyCore):
    """Looks at every spare in every round."""

    pool_class = ThoroughPool


def start(kit: Kit, machines: int, spares: int = 2) -> list[say.Event]:
    """What standby hears until a job of this size trains and its spares are warm."""
    names = [f"m{number}" for number in range(machines)]
    extra = [f"s{number}" for number in range(spares)]
    return [
        kit.submitted(machines=machines, standbys=spares),
        *(kit.joined(name) for name in (*names, *extra)),
        *(kit.launch(name, seat, n=machines) for seat, name in enumerate(names)),
        kit.committed(1, names, kind="start"),
        *kit.ready(machines),
        *(kit.parked(name) for name in extra),
    ]


def test_the_start_takes_steps_in_proportion_to_the_machines(kit: Kit) -> None:
    """A machine more costs the start as much in a job of 800 machines as in one of 100."""
    costs = {}
    for machines in (100, 200, 800):
        bench, events = kit.Bench(StandbyCore()), start(kit, machines)
        costs[machines] = steps_of(lambda bench=bench, events=events: bench.hear(*events))  # type: ignore[misc]
        assert [event.machine for event in bench.said[1:]] == ["s0", "s1"]
        assert sum(spare.state is Spare.MEMBER for spare in bench.core.spares.values()) == machines
    assert costs[800] - costs[200] <= 1.1 * 6 * (costs[200] - costs[100])
    assert costs[800] <= 860 * 800


def test_an_event_in_training_costs_the_same_in_every_job(kit: Kit) -> None:
    """A failure in a job of 800 machines takes the steps that it takes in one of 100."""
    costs = []
    for machines in (100, 800):
        bench = kit.Bench(StandbyCore())
        bench.hear(*start(kit, machines))
        costs.append(steps_of(lambda bench=bench: bench.hear(kit.failed("m7"))))  # type: ignore[misc]
        assert bench.said[-1].type == "standby.replenish" or bench.said[-1].leaver == "m7"
    assert costs[1] <= 1.1 * costs[0]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    standbys=st.integers(0, 3),
    slots=st.integers(1, 2),
    faults=st.lists(
        st.tuples(
            st.integers(0, 50), st.sampled_from(["kill", "freeze", "move", "cut", "join"]), st.integers(0, 2)
        ),
        max_size=5,
    ),
)
def test_looking_only_where_something_changed_misses_nothing(
    kit: Kit, seed: int, standbys: int, slots: int, faults: list[tuple[int, str, int]]
) -> None:
    """A core that looks at all spares in every round says the same, event for event."""
    logs = []
    for core in (StandbyCore, Thorough):
        cores: Any = {name: service.core for name, service in SERVICES.items()} | {"standby": core}
        world = kit.World(
            seed=seed, jitter=0.02, doubles=0.2, standbys=standbys, slots=slots, cores=cores, replenish=False
        )

        def hit(kind: str, position: int, world: Any = world) -> None:
            plant, names = world.plant, world.plant.layout or ("m0", "m1", "m2")
            name = names[position]
            if kind == "join":
                plant.join(f"m{world.next_name + position}")
            elif kind == "move":
                plant.publish(say.MoveRequested(machine=name), "cli")
            elif kind == "cut" and plant.machines[name].well:
                plant.cut(name, names[(position + 1) % 3])
            elif plant.machines[name].well:
                (plant.kill if kind == "kill" else plant.freeze)(name)

        for step, kind, position in faults:
            if step:
                world.at(step, lambda kind=kind, position=position, hit=hit: hit(kind, position))  # type: ignore[misc]
            else:
                world.later(0.3, lambda kind=kind, position=position, hit=hit: hit(kind, position))  # type: ignore[misc]
        world.run(limit=120)
        logs.append([(envelope.id, envelope.event) for envelope in world.log])
    assert logs[0] == logs[1]
