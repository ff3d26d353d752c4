"""The roster: answers that are kept are those that the facts give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events import catalogue as say
from trainmover.services.fleet import Fleet
from trainmover.services.roster import Roster

Kit = SimpleNamespace
MACHINES = ("m0", "m1", "m2", "m3", "m4")
LIVES = ("a", "b")

steps = st.tuples(
    st.sampled_from(("join", "join", "gone", "launch", "launch", "commit", "assign", "submit", "up", "up")),
    st.sampled_from(MACHINES),
    st.sampled_from(LIVES),
    st.integers(0, 3),
    st.permutations(MACHINES),
)


def event_of(kit: Kit, step: Any, epoch: int) -> say.Event:
    """One event, whether it makes sense or not."""
    kind, machine, life, number, order = step
    match kind:
        case "join":
            return kit.joined(machine, life, slots=1 + number % 2)
        case "gone":
            return kit.failed(machine, life)
        case "launch":
            return kit.launch(machine, number, life, generation=1 + number // 3)
        case "commit":
            return kit.committed(epoch, order[: 1 + number], generation=number // 2)
        case "assign":
            return kit.assigned(order[0], machine)
        case "up":
            return kit.up(machine, number % 2, life, generation=1 + number // 3)
        case _:
            return kit.submitted(machines=3, slots=1 + number % 2)


def about(roster: Roster, machine: str) -> Any:
    """What a core could ask about one machine."""
    seats = sorted(seat for seat, name in roster.seats.items() if name == machine)
    lives = [(roster.is_member(machine, life), roster.is_idle(machine, life)) for life in LIVES]
    ended = [(machine, life) in roster.gone for life in LIVES]
    return seats, lives, ended, roster.life(machine), roster.dead(machine)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=30))
def test_kept_answers_are_those_of_the_facts(kit: Kit, story: list[Any]) -> None:
    """Whatever comes in whatever order: idle, lost and seated machines, and who is touched, are right."""
    roster, fleets = Roster(), Roster()  # what is touched is told once: the fleet has its own
    fleet = Fleet(fleets)
    seen = {machine: about(roster, machine) for machine in MACHINES}
    endpoints: dict[Any, set[int]] = {}
    released: set[tuple[str, str | None]] = set()  # a committed switch took them off their seats
    for number, step in enumerate(story):
        event = event_of(kit, step, number + 1)
        sat = {machine: roster.life(machine) for machine in roster.seats.values()}
        generation = roster.generation
        roster.note(event)
        fleets.note(event)
        if isinstance(event, say.RankStarted):
            fleet.note(event)
            endpoints.setdefault((event.machine, event.incarnation, event.generation), set()).add(event.slot)
        touched = roster.take_touched()
        now = {machine: about(roster, machine) for machine in MACHINES}
        assert {machine for machine in MACHINES if now[machine] != seen[machine]} <= touched
        seen = now
        taken = set(roster.seats.values())
        if isinstance(event, say.SwitchCommitted) and roster.generation == generation:
            # (Who sat in an earlier generation has lost its seat with that.)
            released |= {(machine, life) for machine, life in sat.items() if machine not in taken}
        assert list(roster.idle()) == [
            joined
            for machine, joined in roster.joined.items()
            if machine not in taken
            and joined.slots >= roster.slots
            and (machine, joined.incarnation) not in roster.gone
            and (machine, joined.incarnation) not in released
        ]
        assert roster.idle_count == len(roster.idle())
        assert roster.lost() == [(s, m) for s, m in sorted(roster.seats.items()) if roster.dead(m)]
        assert roster.members == tuple(roster.seats[seat] for seat in sorted(roster.seats))
        assert all(roster.seated(machine) == (machine in taken) for machine in MACHINES)
        assert all(sorted(roster.seats_held(machine)) == now[machine][0] for machine in MACHINES)
        fleet.refresh()
        lacking = {
            machine
            for machine in taken
            if roster.dead(machine)
            or set(range(roster.slots))
            - endpoints.get((machine, roster.life(machine), roster.generation), set())
        }
        assert fleet.all_up() == (not lacking)
        assert fleet.all_up(leavers=lacking)
        assert not lacking or not fleet.all_up(leavers=set(sorted(lacking)[1:]))


def test_endpoints_of_a_machine_that_is_up(kit: Kit) -> None:
    """A machine is up with all its ranks, in this generation, and as long as it lives."""
    roster = Roster()
    fleet = Fleet(roster)
    for event in (kit.submitted(slots=2), kit.joined("m0", slots=2), kit.launch("m0", 0)):
        roster.note(event)
    fleet.note(kit.up("m0", 1))
    assert fleet.of(("m0", "a"), 0) is None
    fleet.note(kit.up("m0", 0))
    assert fleet.of(("m0", "a"), 0) == [kit.endpoint("m0", 0), kit.endpoint("m0", 1)]
    assert fleet.at(("m0", "a"), 0, 1) == kit.endpoint("m0", 1)
    assert fleet.all_up(joiners={0: ("m0", "a")})
    roster.note(kit.failed("m0"))
    assert fleet.of(("m0", "a"), 0) is None
    assert not fleet.all_up(joiners={0: ("m0", "a")})


def test_a_commit_of_an_older_generation_moves_no_seat(kit: Kit) -> None:
    """A start that is committed after its generation was given up changes the epoch and nothing else."""
    roster = Roster()
    for event in (kit.launch("m0", 0), kit.launch("m9", 0, generation=2)):
        roster.note(event)
    roster.note(kit.committed(1, ("m0",), kind="start"))
    assert (roster.epoch, roster.members, roster.settled) == (1, ("m9",), False)
