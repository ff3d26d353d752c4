"""Warming: in which roles a spare is warm, and which is next.

What lives here: what spares said of themselves (``standby.parked``), and the order in which roles are
warmed.  What never lives here: whether a spare lives, and who is assigned (``standby``).

A spare is warmed in one role at a time, all its slots together; the next one is asked for when the
last one is parked.  First comes what an open gap needs, then what the fewest other spares have (so
that two spares cover two roles sooner), then the roles with the most seats.  A job of many roles is
covered up to :data:`~trainmover.services.roles.MAX_ROLES` of them, and what an open gap needs.

A role can be out of reach: its ranks could not record, or :data:`STUBBORN` spares in a row ended while
they were warmed in it.  Then spares are warmed in the others, instead of being lost one after another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trainmover.events.catalogue import MachineRole, RankExited, StandbyParked, StandbyWarm
from trainmover.services.roles import MAX_ROLES, by_size
from trainmover.services.roster import Life, Roster
from trainmover.services.spares import WAITING, SpareMachine

STUBBORN = 2
"""Spares in a row that may end while they are warmed in a role, before it is given up."""


class Warming:
    """Who is warm in what; see the module."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._slots: dict[tuple[Life, int], dict[str, set[int]]] = {}
        self._ended: dict[tuple[int, str], dict[Life, str]] = {}
        self._ranked: tuple[tuple[MachineRole, ...], list[MachineRole]] = ((), [])

    def note(self, event: StandbyParked) -> None:
        """A slot of a spare is parked in a role."""
        key = ((event.machine, event.incarnation), event.generation)
        parked = self._slots.setdefault(key, {}).setdefault(event.role, set())
        parked.add(event.slot)
        if len(parked) >= self._roster.slots:
            self._ended.pop((event.generation, event.role), None)

    def note_end(self, event: RankExited) -> None:
        """A rank of a spare ended; while it was being warmed, that is a sign against the role."""
        life = (event.machine, event.incarnation)
        if event.again:
            self._slots.get((life, event.generation), {}).pop(event.role, None)
            return
        parked = self._slots.get((life, event.generation), {}).get(event.role, ())
        if event.mode == "sandbox" and len(parked) < self._roster.slots:
            last = event.error.strip().splitlines()[-1:] or ["it did not say why"]
            self._ended.setdefault((event.generation, event.role), {})[life] = last[0]

    def why_not(self, role: MachineRole) -> str:
        """Why no spare can be warm in a role, now or later; empty when one can."""
        if self._roster.recorded(role) == "failed":
            return f"it was not recorded ({self._roster.why_not_recorded(role)})"
        ended = self._ended.get((self._roster.generation, role.name), {})
        if len(ended) < STUBBORN:
            return ""
        return f"{len(ended)} spares in a row ended while they were warmed in it ({[*ended.values()][-1]})"

    def has(self, spare: SpareMachine, role: MachineRole) -> bool:
        """All slots of the spare are parked in this role."""
        current = spare.generation == self._roster.generation
        return current and role.name in spare.warmed and self._all_slots(spare, role.name)

    def busy(self, spare: SpareMachine) -> bool:
        """The role that it was asked for last is not parked yet."""
        return bool(spare.warmed) and not self._all_slots(spare, spare.warmed[-1])

    def of_use(self, spare: SpareMachine) -> bool:
        """It is parked in some role."""
        return any(self._all_slots(spare, name) for name in spare.warmed)

    def covered(self) -> list[MachineRole]:
        """The roles that every spare gets warm in: those with the most seats, that can be recorded."""
        roster = self._roster
        if self._ranked[0] is not roster.roles:
            self._ranked = roster.roles, by_size(roster.roles)
        found: list[MachineRole] = []
        for role in self._ranked[1]:
            if len(found) == MAX_ROLES:
                break
            if not self.why_not(role):
                found.append(role)
        return found

    def next_role(
        self, spare: SpareMachine, wanted: Iterable[MachineRole], pool: Iterable[SpareMachine]
    ) -> MachineRole | None:
        """The role that a spare is to be warmed in now.

        Args:
            spare: which one.
            wanted: roles of the seats that wait.
            pool: all idle spares.
        """
        if self.busy(spare):
            return None
        needed = {role.name: role for role in wanted if not self.why_not(role)}
        order = {role.name: role for role in self.covered()} | needed
        open_to = [
            role
            for role in order.values()
            if role.name not in spare.warmed and self._roster.recording(role) is not None
        ]
        if not open_to:
            return None
        others = [other for other in pool if other is not spare and other.state in WAITING]

        def rank(role: MachineRole) -> tuple[bool, int]:
            return role.name not in needed, sum(role.name in other.warmed for other in others)

        return min(open_to, key=rank)  # the first of equals: the order is that of ``covered``

    def complete(self, spare: SpareMachine, wanted: Iterable[MachineRole]) -> bool:
        """The spare is parked in every role that there is for it."""
        if not spare.warmed or self.busy(spare):
            return False
        roles = [*self.covered(), *(role for role in wanted if not self.why_not(role))]
        return all(role.name in spare.warmed for role in roles)

    def order(self, spare: SpareMachine, role: MachineRole, wanted: Iterable[MachineRole]) -> StandbyWarm:
        """The request to be warm in a role; the spare is on it from now on."""
        roster, job = self._roster, self._roster.job
        files = roster.recording(role)
        assert files is not None, "a spare is warmed only from a recording"
        keep = not spare.warmed or job is None or job.standby_memory == "resident"
        spare.generation = roster.generation
        spare.warmed.append(role.name)
        return StandbyWarm(
            machine=spare.life[0],
            incarnation=spare.life[1],
            generation=spare.generation,
            recordings=files,
            world_size=roster.size * roster.slots,
            ranks_per_machine=roster.slots,
            positions=(role.representative,) * len(files),
            role=role.name,
            memory="resident" if keep else "released",
            urgent=role in tuple(wanted),
        )

    def choose(self, role: MachineRole, spares: Iterable[SpareMachine]) -> SpareMachine | None:
        """The spare for a seat of this role: tensors in place first, then who is of the least other use."""
        job = self._roster.job
        sequential = job is not None and job.standby_memory == "sequential"

        def rank(spare: SpareMachine) -> tuple[bool, int]:
            released = sequential and spare.warmed[0] != role.name
            return released, sum(self._all_slots(spare, name) for name in spare.warmed)

        return min((spare for spare in spares if self.has(spare, role)), key=rank, default=None)

    def _all_slots(self, spare: SpareMachine, name: str) -> bool:
        parked: Collection[int] = self._slots.get((spare.life, spare.generation), {}).get(name, ())
        return len(parked) >= self._roster.slots
